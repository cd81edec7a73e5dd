"""Translate many sentences, and score translations (section 6.1).

Every score carries what is needed to reproduce it: sacreBLEU's signature and the search settings.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import sacrebleu
import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from .data.batching import plan_updates
from .modeling_vaswani import VaswaniForConditionalGeneration

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


@torch.no_grad()
def translate(
    model: VaswaniForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    sentences: Sequence[str],
    *,
    tokens_per_batch: int = 2_000,
    on_batch: Callable[[int], object] = lambda num_sentences: None,
    **generate_kwargs,
) -> list[str]:
    """Translations of `sentences`, in their order.

    Sentences of like length share a batch, longest first, so that memory runs out at once or never. An empty
    sentence stays empty.

    Args:
        tokens_per_batch: padded source tokens of a batch, before beams.
        on_batch: called with the number of sentences each time a batch is done.
        generate_kwargs: for `model.generate`.
    """
    translations = [""] * len(sentences)
    rows = [row for row, sentence in enumerate(sentences) if sentence.strip()]
    on_batch(len(sentences) - len(rows))
    ids = {row: tokenizer(sentences[row], verbose=False).input_ids for row in rows}
    rows.sort(key=lambda row: -len(ids[row]))
    start = 0
    while start < len(rows):
        longest = len(ids[rows[start]])
        batch = rows[start : start + max(1, tokens_per_batch // longest)]
        inputs = tokenizer.pad({"input_ids": [ids[row] for row in batch]}, return_tensors="pt").to(model.device)
        tokens = model.generate(**inputs, **generate_kwargs)
        for row, text in zip(batch, tokenizer.batch_decode(tokens, skip_special_tokens=True), strict=True):
            # One line for one line: a model may learn a line break from training text that holds them.
            translations[row] = text.replace("\n", " ")
        start += len(batch)
        on_batch(len(batch))
    return translations


def count_over_long(tokenizer: PreTrainedTokenizerFast, sentences: Sequence[str]) -> int:
    """How many of `sentences` are longer than any that training has seen."""
    longest = tokenizer.model_max_length
    # A token takes at least one byte: only sentences with that many bytes need counting.
    return sum(
        len(tokenizer(sentence, verbose=False).input_ids) > longest
        for sentence in sentences
        if len(sentence.encode("utf-8", "replace")) >= longest
    )


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
    names = ("num_beams", "length_penalty", "length_penalty_type", "max_length_offset", "early_stopping")
    settings = {name: generate_kwargs.get(name, getattr(model.generation_config, name, None)) for name in names}
    return "|".join(f"{name}:{value}" for name, value in settings.items())
