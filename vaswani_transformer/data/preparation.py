"""From sentence pairs to a folder that training reads: a tokenizer, and token ids in memory-mapped Arrow.

data/
    tokenizer.json, tokenizer_config.json
    train.arrow, dev.arrow      columns input_ids and labels, </s> included
    dev.json                    the development pairs as text, for BLEU during training
    preparation.json            settings, and what became of every pair that was read
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from datasets import Features, Sequence, Value
from datasets.arrow_writer import ArrowWriter
from transformers import PreTrainedTokenizerFast

from ..tokenization_vaswani import train_tokenizer
from .corpus import FilterCounts, Pair, PairFilter, filter_pairs

FEATURES = Features({"input_ids": Sequence(Value("int32")), "labels": Sequence(Value("int32"))})
PAIRS_PER_BATCH = 1_000
KEEP_ALL = PairFilter()
PREPARATION_FILE = "preparation.json"


def prepare(
    read_train: Callable[[], Iterable[Pair]],
    read_dev: Callable[[], Iterable[Pair]],
    folder: Path,
    *,
    vocab_size: int,
    subword_model: str = "bpe",
    max_length: int = 256,
    pair_filter: PairFilter = KEEP_ALL,
    tokenizer: PreTrainedTokenizerFast | None = None,
    source_language: str = "en",
    target_language: str = "de",
) -> dict:
    """Learn the vocabulary and tokenise both sets into `folder`. Memory does not grow with the corpus.

    Args:
        read_train, read_dev: each call reads the pairs from the start; training pairs are read twice.
        max_length: longest side of a training pair in tokens; longer pairs are dropped and counted.
        pair_filter: which training pairs to keep, lengths in words.
        tokenizer: use this one instead of learning.

    Returns:
        what `preparation.json` holds.

    Raises:
        ValueError: if no training or no development pair is left, and as the readers do.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer is None:
        kept = filter_pairs(read_train(), pair_filter, FilterCounts())
        tokenizer = train_tokenizer(
            (side for pair in kept for side in pair), vocab_size=vocab_size, subword_model=subword_model
        )
    # Longer inputs than training has seen draw transformers' warning.
    tokenizer.model_max_length = max_length
    tokenizer.save_pretrained(folder)
    counts = FilterCounts()
    train = _write_tokens(
        filter_pairs(read_train(), pair_filter, counts),
        tokenizer,
        folder / "train.arrow",
        max_length=max_length,
    )
    dev_counts = FilterCounts()
    dev_pairs = list(filter_pairs(read_dev(), KEEP_ALL, dev_counts))
    dev = _write_tokens(dev_pairs, tokenizer, folder / "dev.arrow", max_length=None)
    for name, tally, written in (("training", counts, train), ("development", dev_counts, dev)):
        if not written["pairs"]:
            raise ValueError(f"no {name} pair is left: {tally.summary()}, {written['over_max_length']} too long.")
    (folder / "dev.json").write_text(json.dumps(dev_pairs, ensure_ascii=False), encoding="utf-8")
    summary = {
        "source_language": source_language,
        "target_language": target_language,
        "vocab_size": len(tokenizer),
        "subword_model": subword_model,
        "max_length": max_length,
        "filter": asdict(pair_filter),
        "train": asdict(counts) | train,
        "dev": asdict(dev_counts) | dev,
    }
    (folder / PREPARATION_FILE).write_text(json.dumps(summary, indent=2), encoding="utf-8")
    return summary


def _write_tokens(
    pairs: Iterable[Pair], tokenizer: PreTrainedTokenizerFast, path: Path, *, max_length: int | None
) -> dict[str, int]:
    """Tokenise `pairs` into an Arrow file; returns how many pairs and tokens it holds."""
    counts = {"pairs": 0, "over_max_length": 0, "source_tokens": 0, "target_tokens": 0}
    with ArrowWriter(path=str(path), features=FEATURES) as writer:
        for sources, targets in _in_batches(pairs):
            for source, target in zip(tokenizer(sources).input_ids, tokenizer(targets).input_ids, strict=True):
                if max_length is not None and max(len(source), len(target)) > max_length:
                    counts["over_max_length"] += 1
                    continue
                writer.write({"input_ids": source, "labels": target})
                counts["pairs"] += 1
                counts["source_tokens"] += len(source)
                counts["target_tokens"] += len(target)
        if counts["pairs"]:  # the writer cannot close a file it wrote nothing to
            writer.finalize()
    return counts


def _in_batches(pairs: Iterable[Pair]) -> Iterator[tuple[list[str], list[str]]]:
    remaining = iter(pairs)
    while batch := list(islice(remaining, PAIRS_PER_BATCH)):
        sources, targets = zip(*batch, strict=True)
        yield list(sources), list(targets)
