"""Load a trained model, and score its translations (section 6.1).

Every score carries what is needed to reproduce it: sacreBLEU's signature and the search settings.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import sacrebleu
import torch
from huggingface_hub import hf_hub_download
from safetensors import SafetensorError
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from .data.batching import plan_updates
from .modeling_vaswani import VaswaniForConditionalGeneration
from .translation import translate

MODEL_FOLDER = "model"


def load_translator(
    folder: str | Path, *, dtype: str | None = None
) -> tuple[VaswaniForConditionalGeneration, PreTrainedTokenizerFast]:
    """Model and tokenizer from a model folder, a run folder (its final model) or a Hub id, on the GPU if there is one.

    Raises:
        FileNotFoundError: if the folder holds no model, or lacks a part of one.
        ValueError: if a file of the model is damaged.
    """
    path = Path(folder)
    if path.is_dir():
        path = _find_model(path)
        folder = str(path)
    elif len(path.parts) != 2 or path.is_absolute():  # not of the form owner/name
        raise FileNotFoundError(f"{folder} does not exist; name a model folder, a run folder or a Hub id.")
    options = {} if dtype is None else {"dtype": dtype}
    try:
        model = VaswaniForConditionalGeneration.from_pretrained(folder, **options)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (SafetensorError, json.JSONDecodeError) as error:
        raise ValueError(f"{folder} holds a damaged file ({error}); copy or download the model again.") from error
    if torch.accelerator.is_available():
        model.to(torch.accelerator.current_accelerator())
    return model.eval(), tokenizer


def _find_model(path: Path) -> Path:
    """`path` or its final model, checked to be whole."""
    if not (path / "config.json").exists() and (path / MODEL_FOLDER / "config.json").exists():
        path = path / MODEL_FOLDER
    weights = ("model.safetensors", "model.safetensors.index.json")
    missing = [name for name in ("config.json", "tokenizer.json") if not (path / name).exists()]
    if not any((path / name).exists() for name in weights):
        missing.append(weights[0])
    if missing:
        raise FileNotFoundError(
            f"{path} is not a whole model: {', '.join(missing)} missing. Name a folder written by save_pretrained "
            f"(with its tokenizer), or a run folder whose training has finished."
        )
    return path


def fingerprint_model(name: str | Path) -> str:
    """Tells one trained model from another, wherever it lies, by a digest of its files.

    Args:
        name: as for `load_translator`, which has loaded it.
    """
    path = Path(name)
    # Of a Hub id, the folder of the commit in the cache.
    cached = None if path.is_dir() else hf_hub_download(str(name), "config.json", local_files_only=True)
    folder = _find_model(path) if cached is None else Path(cached).parent
    digest = hashlib.sha256()
    for part in sorted(folder.iterdir()):
        if part.suffix in (".json", ".safetensors"):
            with open(part, "rb") as file:
                digest.update(part.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def score_bleu(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = "13a", lowercase: bool = False
) -> dict[str, float | str]:
    """Corpus BLEU by sacreBLEU, with its signature.

    Args:
        tokenize: "13a" for plain text; "none" for text that is tokenised already, both sides.
        lowercase: compare without case.

    Raises:
        ValueError: if the numbers of sentences differ.
    """
    if len(hypotheses) != len(references):
        raise ValueError(
            f"{len(hypotheses)} translations cannot be scored against {len(references)} references: line i of one "
            f"must translate the source of line i of the other."
        )
    # `force` silences a guess that text with spaces before full stops must not be scored.
    metric = sacrebleu.BLEU(tokenize=tokenize, lowercase=lowercase, force=tokenize == "none")
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return {"bleu": score.score, "signature": str(metric.get_signature())}


def compute_bleu(
    model: VaswaniForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, pairs: Iterable[tuple[str, str]]
) -> float:
    """sacreBLEU (13a, cased) of the model's translations of `pairs`, decoded as the model is set to."""
    sources, references = zip(*pairs, strict=True)
    return float(score_bleu(translate(model, tokenizer, sources), references)["bleu"])


@torch.no_grad()
def compute_perplexity(
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    pairs: Iterable[tuple[str, str]],
    *,
    tokens_per_batch: int = 8_192,
) -> float:
    """exp of the mean of -log P over the sub-words of the targets, `</s>` included, without label smoothing."""
    sources, targets = zip(*pairs, strict=True)
    source_ids, target_ids = tokenizer(list(sources)).input_ids, tokenizer(list(targets)).input_ids
    lengths = [torch.tensor([len(ids) for ids in side]).numpy() for side in (source_ids, target_ids)]
    nll, num_tokens = 0.0, int(lengths[1].sum())
    model.eval()
    for rows in plan_updates(*lengths, tokens_per_batch=max(tokens_per_batch, *map(max, lengths)), seed=0, epoch=0):
        inputs = tokenizer.pad({"input_ids": [source_ids[row] for row in rows]}, return_tensors="pt")
        labels = tokenizer.pad({"input_ids": [target_ids[row] for row in rows]}, return_tensors="pt")
        inputs["labels"] = labels["input_ids"].masked_fill(labels["attention_mask"] == 0, -100)
        nll += float(model(**inputs.to(model.device), num_items_in_batch=1, skip_logits=True).loss)
    return float(torch.tensor(nll / num_tokens, dtype=torch.float64).exp())


def describe_search(model: VaswaniForConditionalGeneration, **generate_kwargs) -> str:
    """The search settings in one line, to stand beside a score."""
    names = (
        "num_beams",
        "length_penalty",
        "length_penalty_type",
        "coverage_penalty",
        "max_length_offset",
        "early_stopping",
    )
    settings = {name: generate_kwargs.get(name, getattr(model.generation_config, name, None)) for name in names}
    return "|".join(f"{name}:{value}" for name, value in settings.items())
