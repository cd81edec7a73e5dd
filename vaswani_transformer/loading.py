"""Load a trained model, check that it is whole and undamaged, and identify it by a fingerprint."""

import contextlib
import filecmp
import hashlib
import re
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

import torch
from huggingface_hub import hf_hub_download
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from .bounds import SEARCH_BOUNDS
from .files import digest_files
from .model import layers_vaswani, modeling_vaswani
from .model.configuration_vaswani import VaswaniConfig
from .model.modeling_vaswani import VaswaniForConditionalGeneration
from .model.pipeline_vaswani import find_languages
from .runs import SUFFIXES, find_model

logger = logging.get_logger(__name__)


def check_place(name: str | Path) -> None:
    """Raise a FileNotFoundError if `name` is neither a folder nor a Hub id.

    A Hub id has the form owner/name, where no folder "owner" exists. Any other name is taken for a mistyped folder, and
    so is a name that differs from an existing folder by a letter or two of "owner". The Hub is not asked for such a
    name, because a request without a network takes a minute.
    """
    path = Path(name)
    if path.is_file():
        raise FileNotFoundError(f"{name} is a file; name the folder of a model or a run, or a Hub id.")
    if path.is_dir():
        return
    is_id = re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)) and not path.parent.is_dir()
    owners = [found.parent.name for found in Path().glob(f"*/{path.name}")] if is_id else []
    near = get_close_matches(path.parent.name, owners, n=1, cutoff=0.85)
    if near or not is_id:
        hint = f" (did you mean {near[0]}/{path.name}?)" if near else ""
        raise FileNotFoundError(f"{name} does not exist{hint}; name a model folder, a run folder or a Hub id.")


class Loaded(NamedTuple):
    """A loaded model and its folder. If `load` was given a run folder, that folder may later hold a newer model."""

    folder: Path  # the folder with the model's files; for a Hub model, the folder of the commit in the cache
    model: VaswaniForConditionalGeneration
    tokenizer: PreTrainedTokenizerFast
    fingerprint: str  # a digest of the model's files, see `fingerprint_model`

    @property
    def languages(self) -> tuple[str, str] | None:
        """Source and target language, or None if the config does not name them."""
        return find_languages(vars(self.model.config))


def load(name: str | Path, *, dtype: str | None = None) -> Loaded:
    """Return a model with its tokenizer. The model is on the GPU if there is one.

    Args:
        name: a model folder, a run folder (the newest model is loaded) or a Hub id.
        dtype: the data type of the weights, such as "bfloat16"; by default the data type in the config.

    Raises:
        FileNotFoundError: if `name` is neither a folder nor a Hub id, or if a part of the model is missing.
        OSError: if a file changes while it is loaded, or if the Hub has no model of this name.
        ValueError: if `name` is no model of this package, if a file is damaged, or if the files do not belong together.
    """
    check_place(name)
    options = {} if dtype is None else {"dtype": dtype}
    if Path(name).is_dir():
        folder = find_model(Path(name))
        name = str(folder)
        revision = None
    else:
        with naming_damage(name):
            folder = Path(hf_hub_download(str(name), "config.json")).parent
        revision = folder.name  # Model and tokenizer are loaded from this commit.
    with _refusing_changes(folder):
        model = _load_model(str(name), revision=revision, **options)
        tokenizer = load_tokenizer(name, revision=revision)
        fingerprint = fingerprint_model(folder)
    if change := find_changed_code(folder, model):
        logger.warning(
            f"{change}. `vaswani check --model {name}` says whether the model still translates as when it was saved."
        )
    if len(tokenizer) > model.config.vocab_size:
        raise ValueError(
            f"the files of {name} do not belong together: the tokenizer has {len(tokenizer)} entries, the model "
            f"{model.config.vocab_size}. Copy the model again."
        )
    if torch.accelerator.is_available():
        model.to(torch.accelerator.current_accelerator())
    return Loaded(folder, model.eval(), tokenizer, fingerprint)


def load_translator(
    name: str | Path, *, dtype: str | None = None
) -> tuple[VaswaniForConditionalGeneration, PreTrainedTokenizerFast]:
    """Return the model and tokenizer that `load` loads."""
    loaded = load(name, dtype=dtype)
    return loaded.model, loaded.tokenizer


def _load_model(name: str, **options) -> VaswaniForConditionalGeneration:
    """Return a model of this package, after a check that its weights and settings fit its config."""
    with naming_damage(name):
        config = AutoConfig.from_pretrained(name, trust_remote_code=False, **options)
    if not isinstance(config, VaswaniConfig):
        raise ValueError(
            f"{name} is a model of type {config.model_type!r}, expected {VaswaniConfig.model_type!r}. `vaswani "
            f"convert` converts models of MarianMT and OPUS-MT."
        )
    options["attn_implementation"] = "sdpa"  # config.json may name a kernel that is a stranger's code.
    # The class of the config decides the class of the model, so a registered subclass is loaded as that subclass.
    model = load_weights(AutoModelForSeq2SeqLM, name, config=config, **options)
    with naming_damage(name):
        _check_settings(model)
    return model


def find_changed_code(folder: Path, model: VaswaniForConditionalGeneration) -> str:
    """Return in words which code in `folder` differs from the installed code of `model`; "" if none does.

    Beside the weights lies the code with which the model was saved. The package never runs the code in `folder`.
    """
    for module in (layers_vaswani, modeling_vaswani, sys.modules[type(model).__module__]):
        installed = Path(getattr(module, "__file__", ""))  # The class of a variation may come from a notebook.
        saved = folder / installed.name
        if saved.is_file() and not filecmp.cmp(saved, installed, shallow=False):
            return f"the model was saved with other code than the installed code. The installed code runs, not {saved}"
    return ""


def load_weights(model_class: type, name: str, **options) -> PreTrainedModel:
    """Return what `from_pretrained` of `model_class` loads.

    transformers replaces missing weights by random numbers, without an error. Here missing weights are an error.

    Raises:
        ValueError: if a file is damaged, or if weights are missing or do not belong to the model.
    """
    with naming_damage(name):
        model, report = model_class.from_pretrained(name, trust_remote_code=False, output_loading_info=True, **options)
    for kind in ("missing", "unexpected"):
        if keys := report[f"{kind}_keys"]:
            raise ValueError(
                f"the files of {name} do not belong together: {kind} weights: {', '.join(sorted(keys)[:3])}. Copy the "
                f"model again, or load it by the class that saved it."
            )
    return model


def _check_settings(model: VaswaniForConditionalGeneration) -> None:
    """Raise an error if a value in the generation config of `model` is wrong.

    Numbers, token ids, alignment heads and the rules of logits processors are checked.
    """
    config = model.config
    options = vars(model.generation_config)
    needed = {"pad_token_id", "eos_token_id", "decoder_start_token_id"}
    for name, value in options.items():
        if name in SEARCH_BOUNDS and value is not None and value not in SEARCH_BOUNDS[name]:
            raise ValueError(f"{name} must be {SEARCH_BOUNDS[name]}, got {value!r}")
        ids = value if isinstance(value, list) else [value]
        is_given = name in needed or (name.endswith("_token_id") and value is not None)
        if is_given and not all(type(token) is int and 0 <= token < config.vocab_size for token in ids):
            raise ValueError(f"{name} must be a token id below {config.vocab_size:,}, got {value!r}")
    if (heads := options.get("alignment_heads")) is not None:
        # Pairs are compared as text, because True == 1 in Python.
        known = {str([layer, head]) for layer in range(config.decoder_layers) for head in range(config.num_heads)}
        if not isinstance(heads, list) or not heads or not known.issuperset(map(str, heads)):
            raise ValueError(
                f"alignment_heads must be pairs [layer, head], layers below {config.decoder_layers} and heads below "
                f"{config.num_heads}, got {heads!r}"
            )
    _, search, _ = model.resolve_options(None, {})
    model._prepare_special_tokens(search, device="cpu")
    model._get_logits_processor(search, input_ids_seq_length=1, encoder_input_ids=torch.zeros(1, 1, dtype=torch.long))


def load_tensors(path: Path, *allowed: type) -> dict:
    """Return the content of a .pt file. It may hold only tensors, plain values and objects of the `allowed` types.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if the file is damaged, or if it holds other objects, because these may run code.
    """
    try:
        with torch.serialization.safe_globals([*allowed]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # Damaged bytes may raise any exception.
        raise ValueError(
            f"{path} was not loaded. It is damaged, or it holds more than tensors and plain values. Other objects are "
            f"not loaded, because they may run code."
        ) from error


def load_tokenizer(name: str | Path, *, revision: str | None = None) -> PreTrainedTokenizerBase:
    """Return the tokenizer in a folder or on the Hub.

    Raises:
        ValueError: if the tokenizer is damaged, if it has no padding or end token, or if it needs Python code that
            comes with it.
        ImportError: if the tokenizer needs sentencepiece, and sentencepiece is missing.
    """
    with naming_damage(name):
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False, revision=revision)
        if not isinstance(tokenizer.model_max_length, int | float):
            raise ValueError(f"model_max_length must be a number, got {tokenizer.model_max_length!r}")
        if None in (tokenizer.pad_token, tokenizer.eos_token):
            raise ValueError("tokenizer_config.json names no pad_token or no eos_token, or cannot be read")
    return tokenizer


@contextlib.contextmanager
def naming_damage(name: str | Path) -> Iterator[None]:
    """Let errors of the block name the model: a ValueError for a damaged file, an OSError if the Hub has no model."""
    try:
        yield
    except OSError as error:
        if Path(name).exists():  # The error already names the file.
            raise
        raise OSError(f"there is no folder {name}, and the Hub gave no model of this name: {error}") from error
    except (MemoryError, ImportError):  # These errors say what is missing.
        raise
    except BaseException as error:
        # tokenizers, which is written in Rust, may end by a PanicException. This class is no Exception.
        is_fatal = not isinstance(error, Exception) and type(error).__name__ != "PanicException"
        if is_fatal or type(error).__module__.startswith("http"):  # httpx: the connection to the Hub was lost
            raise
        reason = (
            f"holds a damaged file, or a file that the installed version of transformers cannot read "
            f"({type(error).__name__}: {error}); copy the model again, or update transformers."
        )
        # transformers has no class for these two errors.
        if "trust_remote_code" in str(error) or "does not recognize this architecture" in str(error):
            reason = (
                "can only be read by the Python code of its model, and code that comes with a model is not run. If "
                "the model is a variation of your own, name its file: --import FILE."
            )
        raise ValueError(f"{name} {reason}") from error


@contextlib.contextmanager
def _refusing_changes(folder: Path) -> Iterator[None]:
    """Raise an OSError if a file of the model in `folder` changes or vanishes during the block."""
    before = _identify_files(folder)
    try:
        yield
    finally:
        if not before <= _identify_files(folder):
            raise OSError(f"{folder} changed while it was read, perhaps by a training run: repeat the command.")


def _identify_files(folder: Path) -> set[tuple[str, int, int]]:
    """Return name, inode and time of change of each file of the model in `folder`."""
    return {(path.name, path.stat().st_ino, path.stat().st_mtime_ns) for path in _list_files(folder)}


def _list_files(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*") if path.suffix in SUFFIXES and path.is_file()]


def fingerprint_model(folder: Path) -> str:
    """Return a digest of the files of the model in `folder`. Copies of a model have the same digest."""
    digest = hashlib.sha256()
    for name, content in digest_files(folder, _list_files(folder)).items():
        digest.update(name.encode() + bytes.fromhex(content))
    return digest.hexdigest()[:16]
