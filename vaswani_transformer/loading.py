"""Load a trained model whole and undamaged, and tell it from others."""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from huggingface_hub import hf_hub_download
from safetensors import safe_open
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import GENERATION_CONFIG_NAME

from .bounds import is_within_bounds
from .devices import avoid_plans_per_shape
from .files import digest_file, read_object
from .model.configuration_vaswani import VaswaniConfig
from .model.modeling_vaswani import VaswaniForConditionalGeneration
from .model.pipeline_vaswani import TRANSLATION_TASK, find_model_folder

SEARCH_SETTINGS = ("num_beams", "length_penalty", "max_length_offset")
TOKEN_IDS = ("pad_token_id", "eos_token_id", "decoder_start_token_id", "bos_token_id")
# The model that comes with a clone of the repository, but not with the wheel.
BUNDLED_MODEL = Path(__file__).parents[1] / "model_cards" / "everyday_en_de"
CARD_FILE = "README.md"
TOKENIZER_FILES = ("tokenizer.json", "source.spm")  # one of them: ours, or of a model that was MarianMT's
WEIGHT_TYPES = {"F64", "F32", "F16", "BF16"}  # as safetensors calls them


def load_translator(
    folder: str | Path, *, dtype: str | None = None
) -> tuple[VaswaniForConditionalGeneration, PreTrainedTokenizerFast]:
    """Load model and tokenizer from a model folder, a run folder (its final model) or a Hub id.

    The model goes to the GPU if there is one, except with dtype="int8": a model in float32, for an engine in int8.

    Raises:
        FileNotFoundError: if the folder holds no model, or lacks a part of one.
        ValueError: if it is another kind of model, if a file of it is damaged, or if its files do not belong together.
    """
    path = Path(folder)
    if path.is_dir():
        path = _find_model(path)
        folder = str(path)
    elif len(path.parts) != 2 or path.is_absolute():  # not of the form owner/name
        raise FileNotFoundError(f"{folder} does not exist; name a model folder, a run folder or a Hub id.")
    with naming_damage(folder):
        kind = VaswaniConfig.get_config_dict(folder)[0].get("model_type")
    if kind != VaswaniConfig.model_type:
        raise ValueError(
            f"{folder} is a model of type {kind!r}, expected {VaswaniConfig.model_type!r}; `vaswani convert` makes one "
            f"of MarianMT's and OPUS-MT's."
        )
    with naming_damage(folder):
        config = VaswaniConfig.from_pretrained(folder, trust_remote_code=False)
    _refuse_foreign_code(folder, config)
    options = {"config": config, "output_loading_info": True} | (
        {} if dtype is None else {"dtype": "float32" if dtype == "int8" else dtype}
    )
    with naming_damage(folder):
        model, report = VaswaniForConditionalGeneration.from_pretrained(folder, trust_remote_code=False, **options)
    tokenizer = load_tokenizer(folder)
    _check_fit(folder, model, tokenizer, report)
    if torch.accelerator.is_available() and dtype != "int8":
        model.to(torch.accelerator.current_accelerator())
        avoid_plans_per_shape(model.device.type)
    return model.eval(), tokenizer


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer in a folder or on the Hub, and try it on two sentences.

    Raises:
        OSError: if there is none.
        ValueError: if it is damaged, or if it needs sentencepiece or code of its own.
    """
    try:
        with naming_damage(name):
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
            # A setting of the wrong type fails at its first use.
            tokenizer.pad({"input_ids": tokenizer(["a", "a b"]).input_ids}, return_tensors="pt")
    except ImportError as error:
        raise ValueError(
            f'the tokenizer of {name} needs sentencepiece: pip install "vaswani-transformer[convert]"'
        ) from error
    return tokenizer


@contextlib.contextmanager
def naming_damage(name: str | Path) -> Iterator[None]:
    """Name the model in the error of a reader over a damaged file, a ValueError, and in the Hub's, an OSError."""
    try:
        yield
    except OSError as error:
        if Path(name).exists():  # the error names the file
            raise
        raise OSError(f"there is no folder {name}, and the Hub gave no model of that name: {error}") from error
    except (MemoryError, ImportError, KeyboardInterrupt):  # these say what is missing
        raise
    except BaseException as error:  # the Rust code of tokenizers has one that is no Exception
        if "trust_remote_code" in str(error):  # transformers has no class for it
            raise ValueError(
                f"{name} comes with Python code without which it cannot be read, and such code is not run: take a "
                f"model that needs none."
            ) from error
        raise ValueError(
            f"{name} holds a damaged file ({type(error).__name__}: {error}); copy or download the model again."
        ) from error


def _refuse_foreign_code(folder: str | Path, config: VaswaniConfig) -> None:
    """Refuse a config.json that asks for other code than this package's; no saved Vaswani model does."""
    settings = {
        "quantization_config": getattr(config, "quantization_config", None),
        "attn_implementation": config._attn_implementation,
    }
    for name, value in settings.items():
        if value is not None:
            raise ValueError(
                f"config.json of {folder} sets {name} to {value!r:.80}: a model is read here as it was trained, with "
                f"PyTorch's attention. Remove {name} from config.json, or save the model without it."
            )


def _check_fit(
    folder: str | Path, model: VaswaniForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, report: dict
) -> None:
    """Refuse files that are whole, but not parts of one model: it would translate into noise."""
    faults = []
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[what]:
            faults.append(f"{what.partition('_')[0]} weights: {', '.join(sorted(map(str, report[what]))[:3])}")
    num_entries = 1 + max(tokenizer.get_vocab().values())
    if num_entries > model.config.vocab_size:
        faults.append(f"the tokenizer has {num_entries} entries, the model {model.config.vocab_size}")
    faults += _faults_of_search(model)
    parameters = model.named_parameters()
    faults += [f"{name} has a value that is not finite" for name, value in parameters if not value.isfinite().all()]
    if faults:
        raise ValueError(
            f"the files of {folder} do not belong together, or are damaged: {'; '.join(faults[:3])}. Copy or download "
            f"the model again."
        )


def _faults_of_search(model: VaswaniForConditionalGeneration) -> list[str]:
    """Return settings of generation_config.json with which no search is possible."""
    settings, faults = model.generation_config, []
    for name in SEARCH_SETTINGS:
        value = getattr(settings, name, None)
        if value is not None and not is_within_bounds(name, value):
            faults.append(f"{name} of the search is {value!r:.40}")
    if not isinstance(getattr(settings, "length_penalty_type", ""), str):
        faults.append("length_penalty_type of the search is no name")
    for name in TOKEN_IDS:
        value = getattr(settings, name, None)
        if value is None and name == "bos_token_id":
            continue
        for token in value if isinstance(value, list) and name == "eos_token_id" else [value]:
            if not (isinstance(token, int) and 0 <= token < model.config.vocab_size):
                faults.append(f"{name} of the search is {token!r:.40}, no entry of the vocabulary")
    return faults


def _find_model(path: Path) -> Path:
    """Return `path` or its final model, checked to be whole."""
    path = find_model_folder(path)
    VaswaniForConditionalGeneration.refuse_pickle(path)
    weights = ("model.safetensors", "model.safetensors.index.json")
    needed = (("config.json",), TOKENIZER_FILES, weights)
    missing = [names[0] for names in needed if not any((path / name).exists() for name in names)]
    if missing:
        raise FileNotFoundError(
            f"{path} is not a whole model: {', '.join(missing)} missing. Name a folder written by save_pretrained "
            f"(with its tokenizer), or a run folder whose training has finished."
        )
    if os.path.lexists(path / GENERATION_CONFIG_NAME):
        read_object(path / GENERATION_CONFIG_NAME)  # transformers takes one that it cannot read for none
    for file in path.glob("*.safetensors"):
        _check_weights(file)
    return path


def _check_weights(path: Path) -> None:
    """Refuse weights that are no floating-point numbers, which would be converted in silence."""
    with naming_damage(path.parent), safe_open(path, "pt") as weights:
        types = {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118 - it is no mapping
    if types - WEIGHT_TYPES:
        raise ValueError(f"{path} holds weights of type {', '.join(sorted(types - WEIGHT_TYPES))}: it is damaged.")


def find_languages(pipelines: object) -> tuple[str, str] | None:
    """Return source and target language by the name of the model's own task, among `custom_pipelines` of its config."""
    tasks = [TRANSLATION_TASK.fullmatch(str(name)) for name in pipelines] if isinstance(pipelines, Mapping) else []
    return next((task.groups() for task in tasks if task and task[1]), None)


def fingerprint_model(name: str | Path) -> str:
    """Return a digest of the files of a trained model, equal for copies of it.

    Args:
        name: as for `load_translator`, which has loaded it.
    """
    path = Path(name)
    if path.is_dir():
        folder = _find_model(path)
    else:  # a Hub id: the folder of the commit in the cache
        folder = Path(hf_hub_download(str(name), "config.json", local_files_only=True)).parent
    digest = hashlib.sha256()
    for part in sorted(folder.iterdir()):
        if part.suffix in (".json", ".safetensors", ".spm"):
            digest.update(part.name.encode() + bytes.fromhex(digest_file(part)))
    return digest.hexdigest()[:16]
