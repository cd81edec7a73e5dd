"""From sentence pairs to a folder that training reads: a tokenizer, and token ids that are memory-mapped.

The README beside this file lists what lies in the folder. Ids are int32, one sentence after the other, in the order of
the corpora; offsets are int64: where each sentence begins, and the end of the last.
"""

import contextlib
import copy
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, compress, islice
from operator import itemgetter
from pathlib import Path

import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerFast

from ..files import blaming, claim, digest_file, digest_files, lock_folder, read_object, write_json
from .batching import CORPORA_FILE, OFFSET_TYPE, SIDES, TOKEN_TYPE
from .corpus import Pair
from .encoding import BlockEncoder
from .filtering import REASONS, PairFilter, filter_pairs, summarise
from .tokenization import train_tokenizer

FORMAT = 5  # of the folder's files
KEEP_ALL = PairFilter()
PREPARATION_FILE = "preparation.json"
DEV_FILE = "dev.json"
NEW_FOLDER, CACHE_FOLDER = "data", "cache"  # in the working folder: what becomes the folder, and Hub datasets
# At most so many pairs are learnt from, every k-th of all, whatever the weights. Learning takes 1.2 KB of memory per
# different word: gigabytes for the paper's 4.5M pairs.
VOCABULARY_PAIRS = 500_000
# What `prepare` counts beside pairs that were kept and dropped; all but the first with the weight of the corpus.
AMOUNTS = ("over_max_length", "pairs", "source_tokens", "target_tokens")
PAIRS_PER_BLOCK = 50_000  # in memory at a time: of fewer, more words are encoded again


@dataclass(frozen=True)
class Corpus:
    """Training text; a pair is stored once, and `batching.TokenizedPairs` lists it `weight` times in an epoch."""

    read: Callable[[], Iterable[Pair]]  # each call reads the pairs from the start
    weight: int = 1


def read_all(corpora: Sequence[Corpus]) -> Iterator[Pair]:
    """Read the pairs of all corpora, each once; every corpus is opened at once."""
    return chain.from_iterable([corpus.read() for corpus in corpora])


def prepare(
    corpora: Sequence[Corpus],
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
    inputs: Mapping[str, object] | None = None,
    log: Callable[[str], object] = lambda message: None,
    on_pairs: Callable[[int], object] = lambda num_pairs: None,
) -> dict:
    """Learn the vocabulary and tokenise both sets into `folder`, which is there when it is whole.

    The same arguments give the same bytes. Memory grows with the corpus only for `drop_duplicates`, 80 bytes per pair.

    Args:
        corpora, read_dev: the training set, read three times, and what reads the development set.
        folder: new or empty, or what the same arguments have made before.
        max_length: longest side of a pair in tokens; longer pairs of both sets are dropped.
        pair_filter: for training pairs of all corpora together; development pairs are dropped if empty or endless.
        tokenizer: use this one instead of learning with `vocab_size` and `subword_model`.
        inputs: identifies the text, as JSON (`corpus.describe_source`), so that a change of it is noticed.
        log, on_pairs: get a line at each stage, and the number of pairs of each block that is done.

    Returns:
        the contents of `preparation.json`: `pairs` and tokens with the weights of the corpora, other counts without.

    Raises:
        ValueError: if no training or no development pair is left; if `folder` holds anything else or is locked.
    """
    vocabulary = {"vocab_size": vocab_size, "subword_model": subword_model, "vocabulary_pairs": VOCABULARY_PAIRS}
    if tokenizer is not None:
        vocabulary = {"given": hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()}
    settings = {
        "format": FORMAT,
        "source_language": source_language,
        "target_language": target_language,
        "vocabulary": vocabulary,
        "max_length": max_length,
        "filter": asdict(pair_filter),
        "weights": [corpus.weight for corpus in corpora],
        "inputs": dict(inputs or {}),
    }
    folder = folder.resolve()
    if folder.is_mount() or folder == Path.cwd():
        raise ValueError(f"{folder} cannot be replaced at the end: name a folder that is not there yet.")
    with _lock_work(folder) as new:
        if folder.exists() and any(folder.iterdir()):
            advice = "Give the same again, name another folder, or remove this one to start again."
            claim(folder / PREPARATION_FILE, settings, advice=advice, owned=["*"])
            log(f"{folder} is complete: nothing to do")
            return read_preparation(folder)
        # A missing file, and faults of the few development pairs, show before the long work.
        read_all(corpora)
        dev_read = list(read_dev())
        if tokenizer is None:
            tokenizer = _learn_vocabulary(corpora, pair_filter, log, vocab_size, subword_model)
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.model_max_length = max_length  # of which transformers warns, too
        tokenizer.save_pretrained(new)
        settings["tokenizer"] = digest_file(new / "tokenizer.json")
        encoder = BlockEncoder(tokenizer)
        log("tokenising")
        dev = _store([Corpus(lambda: dev_read)], new / "dev", encoder, KEEP_ALL)
        dev_pairs = list(filter_pairs(dev_read, KEEP_ALL, Counter()))
        write_json(new / DEV_FILE, list(compress(dev_pairs, encoder.encode_pairs(dev_pairs)[1])))
        train = _store(corpora, new / "train", encoder, pair_filter, on_pairs)
        fingerprint = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        summary = {"fingerprint": fingerprint, **settings, "vocab_size": len(tokenizer), "train": train, "dev": dev}
        summary["files"] = digest_files(new, new.rglob("*"))
        write_json(new / PREPARATION_FILE, summary)
        new.rename(folder)
    return summary


def work_folder(folder: Path) -> Path:
    """Return the folder beside `folder` in which `prepare` works, and which it removes at the end."""
    folder = folder.resolve()
    return folder.with_name(f".{folder.name}.preparing")


@contextlib.contextmanager
def _lock_work(folder: Path) -> Iterator[Path]:
    """Make and lock the working folder of `folder`; yields an empty folder in it."""
    work = work_folder(folder)
    work.mkdir(parents=True, exist_ok=True)
    with lock_folder(work):
        try:
            for name in (NEW_FOLDER, CACHE_FOLDER):  # of a preparation that was killed
                shutil.rmtree(work / name, ignore_errors=True)
            (work / NEW_FOLDER).mkdir()
            yield work / NEW_FOLDER
        finally:
            shutil.rmtree(work, ignore_errors=True)


def read_preparation(folder: Path) -> dict:
    """Read the `preparation.json` that `prepare` wrote into `folder`.

    Raises:
        FileNotFoundError: if `folder` is no prepared data.
        ValueError: if the file is damaged.
    """
    path = folder / PREPARATION_FILE
    if not path.exists():
        raise FileNotFoundError(f"{folder} holds no prepared data; run `vaswani prepare` with --output {folder} first.")
    preparation = read_object(path)
    with blaming(path):
        itemgetter("fingerprint", "source_language", "target_language", "vocab_size", "files")(preparation)
    return preparation


def _learn_vocabulary(
    corpora: Sequence[Corpus], pair_filter: PairFilter, log: Callable, vocab_size: int, subword_model: str
) -> PreTrainedTokenizerFast:
    """Learn from pairs spread evenly over the text, whose parts may differ in kind."""
    num_pairs = sum(1 for _ in read_all(corpora))
    stride = max(1, -(-num_pairs // VOCABULARY_PAIRS))
    log(f"learning a vocabulary of {vocab_size:,} from {-(-num_pairs // stride):,} of {num_pairs:,} pairs")
    kept = filter_pairs(islice(read_all(corpora), 0, None, stride), pair_filter, Counter())
    return train_tokenizer(chain.from_iterable(kept), vocab_size=vocab_size, subword_model=subword_model)


def _store(
    corpora: Sequence[Corpus],
    folder: Path,
    encoder: BlockEncoder,
    pair_filter: PairFilter,
    on_pairs: Callable[[int], object] = lambda num_pairs: None,
) -> dict:
    """Filter a set, write its token ids to `folder`, and return its counts; `corpora` are those of each corpus."""
    folder.mkdir()
    seen: set[int] = set()
    stored, counts_of_corpora = [], []
    for corpus in corpora:
        counts = Counter(dict.fromkeys(("read", "kept", *REASONS, *AMOUNTS), 0))
        pairs = filter_pairs(corpus.read(), pair_filter, counts, seen=seen)
        while block := list(islice(pairs, PAIRS_PER_BLOCK)):
            columns, fits = encoder.encode_pairs(block)
            num_tokens = [_append(folder / side, column) for side, column in zip(SIDES, columns, strict=True)]
            amounts = (len(block) - sum(fits), sum(fits), *num_tokens)
            counts.update(dict(zip(AMOUNTS, amounts, strict=True)))
            on_pairs(len(block))
        stored.append((counts["pairs"], corpus.weight))
        for name in AMOUNTS[1:]:
            counts[name] *= corpus.weight
        counts_of_corpora.append(counts)
    totals = {name: sum(counts[name] for counts in counts_of_corpora) for name in counts_of_corpora[0]}
    if not totals["pairs"]:
        reasons = f"{summarise(totals)}, {totals['over_max_length']} too long"
        raise ValueError(f"no pair of the set {folder.name} is left: {reasons}.")
    write_json(folder / CORPORA_FILE, stored)
    return {**totals, "corpora": counts_of_corpora}


def _append(path: Path, column: pa.ListArray) -> int:
    """Append sentences to the files of a side, which are begun if they are not there; returns their tokens."""
    tokens = np.asarray(column.flatten()).astype(TOKEN_TYPE)
    offsets = np.cumsum([0, *column.value_lengths().to_pylist()], dtype=OFFSET_TYPE)
    with open(path.with_suffix(".tokens"), "ab") as token_file, open(path.with_suffix(".offsets"), "ab") as offset_file:
        offsets += token_file.tell() // tokens.itemsize
        token_file.write(tokens.tobytes())
        offset_file.write((offsets[1:] if offset_file.tell() else offsets).tobytes())
    return len(tokens)
