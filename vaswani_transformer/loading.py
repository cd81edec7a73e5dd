"""Load a trained model whole and undamaged, and identify it by a fingerprint."""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from huggingface_hub import hf_hub_download
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import GENERATION_CONFIG_NAME

from .averaging import find_model_folder
from .files import digest_file, read_object
from .model.configuration_vaswani import VaswaniConfig
from .model.modeling_vaswani import VaswaniForConditionalGeneration
from .model.pipeline_vaswani import TRANSLATION_TASK

CARD_FILE = "README.md"
TOKENIZER_FILES = ("tokenizer.json", "source.spm")  # one of them: ours, or of a model that was MarianMT's


def load_translator(
    folder: str | Path, *, dtype: str | None = None
) -> tuple[VaswaniForConditionalGeneration, PreTrainedTokenizerFast]:
    """Load model and tokenizer from a model folder, a run folder (its newest model) or a Hub id.

    The model is moved to the GPU if there is one.

    Raises:
        FileNotFoundError: if the folder holds no model, or lacks a part of one.
        ValueError: if it is another kind of model, if a file of it is damaged, or if its files do not belong together.
    """
    path = Path(folder)
    if path.is_dir():
        folder = str(_find_model(path))
    elif len(path.parts) != 2 or path.is_absolute():  # not of the form owner/name
        raise FileNotFoundError(f"{folder} does not exist; name a model folder, a run folder or a Hub id.")
    with naming_damage(folder):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if not isinstance(config, VaswaniConfig):
        raise ValueError(
            f"{folder} is a model of type {config.model_type!r}, expected {VaswaniConfig.model_type!r}; `vaswani "
            f"convert` makes one of MarianMT's and OPUS-MT's."
        )
    options = {} if dtype is None else {"dtype": dtype}
    options["attn_implementation"] = "sdpa"  # one that config.json names may be code of others
    with naming_damage(folder):
        model, report = VaswaniForConditionalGeneration.from_pretrained(
            folder, trust_remote_code=False, config=config, output_loading_info=True, **options
        )
    tokenizer = load_tokenizer(folder)
    # transformers replaces missing weights by random ones, without an error.
    unmatched = {"missing": report["missing_keys"], "unexpected": report["unexpected_keys"]}
    faults = [f"{what} weights: {', '.join(sorted(keys)[:3])}" for what, keys in unmatched.items() if keys]
    if len(tokenizer) > model.config.vocab_size:
        faults.append(f"the tokenizer has {len(tokenizer)} entries, the model {model.config.vocab_size}")
    if faults:
        raise ValueError(f"the files of {folder} do not belong together: {'; '.join(faults)}. Copy the model again.")
    if torch.accelerator.is_available():
        model.to(torch.accelerator.current_accelerator())
    return model.eval(), tokenizer


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer in a folder or on the Hub.

    Raises:
        ValueError: if it is damaged, or if it needs Python code that comes with it.
        ImportError: if it needs sentencepiece, which is missing.
    """
    with naming_damage(name):
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)


@contextlib.contextmanager
def naming_damage(name: str | Path) -> Iterator[None]:
    """Name the model in the error of a reader over a damaged file, a ValueError, and in the Hub's, an OSError."""
    try:
        yield
    except OSError as error:
        if Path(name).exists():  # the error names the file
            raise
        raise OSError(f"there is no folder {name}, and the Hub gave no model of that name: {error}") from error
    except (MemoryError, ImportError):  # these say what is missing
        raise
    except Exception as error:
        reason = f"holds a damaged file ({type(error).__name__}: {error}); copy or download the model again."
        if "trust_remote_code" in str(error):  # transformers has no class for it
            reason = "can only be read by the Python code that comes with it, and such code is not run."
        raise ValueError(f"{name} {reason}") from error


def _find_model(path: Path) -> Path:
    """Return `path` or the newest model of a run, checked to have all parts."""
    path = find_model_folder(path)
    needed = (("config.json",), TOKENIZER_FILES, ("model.safetensors", "model.safetensors.index.json"))
    missing = [names[0] for names in needed if not any((path / name).exists() for name in names)]
    if missing:
        raise FileNotFoundError(
            f"{path} is not a whole model: {', '.join(missing)} missing. Name a folder written by save_pretrained "
            f"(with its tokenizer), or a run folder with a checkpoint."
        )
    if os.path.lexists(path / GENERATION_CONFIG_NAME):
        read_object(path / GENERATION_CONFIG_NAME)  # transformers ignores one that it cannot read
    return path


def find_languages(config: Mapping) -> tuple[str, str] | None:
    """Return source and target language of a model, by a task in its `config` such as "translation_en_to_de"."""
    fields = [config.get(name) for name in ("custom_pipelines", "task_specific_params")]
    tasks = [TRANSLATION_TASK.fullmatch(str(name)) for field in fields if isinstance(field, Mapping) for name in field]
    return next((task.groups() for task in tasks if task and task[1]), None)


def fingerprint_model(name: str | Path) -> str:
    """Return a digest of the files of a model that `load_translator` has loaded, equal for copies of it."""
    folder = find_model_folder(Path(name))
    if not folder.is_dir():  # a Hub id: the folder of the commit in the cache
        folder = Path(hf_hub_download(str(name), "config.json", local_files_only=True)).parent
    digest = hashlib.sha256()
    for part in sorted(folder.iterdir()):
        if part.suffix in (".json", ".safetensors", ".spm"):
            digest.update(part.name.encode() + bytes.fromhex(digest_file(part)))
    return digest.hexdigest()[:16]
