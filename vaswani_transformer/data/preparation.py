"""Prepare sentence pairs for training: write a folder with a tokenizer and with token ids.

The README beside this file lists the files of the folder. Token ids are int32, one sentence after the other, in the
order of the corpora. Training maps these files to memory. Offsets are int64: the start of each sentence, and the end of
the last sentence.
"""

import copy
import hashlib
import json
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from ..files import blaming, check_replaceable, claim, digest_files, read_object, write_json
from ..runs import DEV_FILE, PREPARATION_FILE, RECIPE_FILE
from .batching import CORPORA_FILE, OFFSET_TYPE, SIDES, TOKEN_TYPE
from .corpus import Pair
from .filtering import filter_pairs, summarise
from .tokenization import train_tokenizer, warn_of_lost_tokens

# Mark of sub-words in the output of subword-nmt or SentencePiece -> a command that joins the sub-words.
SUBWORD_MARKS = {"@@ ": "sed 's/@@ //g'", "\u2581": "spm_decode"}
TREES = "trees"  # the target language of a parser
FORMAT = 6  # The version of the format of the files in the folder.
# The vocabulary is learnt from at most this number of pairs: every k-th pair of all corpora, whatever their weights.
# Learning needs 1.2 KB of memory per different word, which would be gigabytes for the paper's 4.5M pairs.
VOCABULARY_PAIRS = 500_000
# The number of pairs that are in memory at a time.
PAIRS_PER_BLOCK = 25_000


class Corpus(NamedTuple):
    """Training text. Each pair is stored once, and `batching.TokenizedPairs` repeats it `weight` times in an epoch."""

    read: Callable[[], Iterable[Pair]]  # Each call reads the pairs from the start.
    weight: int = 1


def read_all(corpora: Sequence[Corpus]) -> Iterator[Pair]:
    """Read each pair of all corpora once."""
    return chain.from_iterable(corpus.read() for corpus in corpora)


def prepare(
    corpora: Sequence[Corpus],
    read_dev: Callable[[], Iterable[Pair]],
    folder: Path,
    *,
    vocab_size: int,
    subword_model: str = "bpe",
    max_length: int = 256,
    max_length_ratio: float | None = None,
    drop_duplicates: bool = False,
    tokenizer: PreTrainedTokenizerFast | None = None,
    source_language: str = "en",
    target_language: str = "de",
    inputs: dict | None = None,
    describe: Callable[[], dict | None] | None = None,
    recipe: dict | None = None,
    log: Callable[[str], object] = lambda message: None,
) -> dict:
    """Learn a vocabulary, and write the tokenised training set and development set into `folder`.

    The folder appears when it is complete. The same arguments give the same bytes. Memory does not grow with
    the corpus, except with `drop_duplicates`: then it grows by 80 bytes per pair.

    Args:
        corpora: the training set. It is read once to encode it, and before that once more if a vocabulary is learnt.
        read_dev: reads the development set.
        folder: a new or empty folder, or the result of an earlier call with the same arguments.
        vocab_size, subword_model: see `train_tokenizer`.
        max_length: the most tokens of a side. Longer pairs of both sets are dropped.
        max_length_ratio: see `filter_pairs`. This filter applies to training pairs only.
        drop_duplicates: drop a training pair if an equal pair came before it in any corpus.
        tokenizer: the tokenizer to use. By default a vocabulary is learnt.
        inputs: a description of the text as JSON values (see `corpus.describe_source`). From it, a later call
            notices that the text has changed.
        describe: describes the text again at the end. From it, this call notices that the text has changed.
        recipe: the recipe that `vaswani train` takes by default, as JSON values. It replaces an earlier recipe.
        log: a function that gets a line of text at each stage.

    Returns:
        the contents of `preparation.json`: settings, digests, and counts of pairs and tokens. The counts do not depend
        on the weights of the corpora.

    Raises:
        ValueError: if no training pair or no development pair is left, if `folder` has other contents, if it is a
            mount point or the current folder, or if the text changes while it is read.
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
        "max_length_ratio": max_length_ratio,
        "drop_duplicates": drop_duplicates,
        "weights": [corpus.weight for corpus in corpora],
        "inputs": inputs or {},
    }
    folder = folder.resolve()
    check_replaceable(folder)
    if folder.exists() and any(folder.iterdir()):
        claim(
            folder / PREPARATION_FILE,
            settings,
            advice="Give the earlier text and settings, name another folder, or remove this folder to start again.",
            owned=["*"],
        )
        log(f"{folder} is complete: nothing to do")
        return _finish(folder, read_preparation(folder), recipe)
    dev_pairs = list(read_dev())  # The small set is read first, so that its errors show before the long work.
    _warn_of_marks(dev_pairs, "dev")

    def build_filter() -> Callable:
        return partial(filter_pairs, max_length_ratio=max_length_ratio, seen=set() if drop_duplicates else None)

    if tokenizer is None:
        tokenizer = _learn_vocabulary(corpora, build_filter(), log, vocab_size, subword_model)
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.model_max_length = max_length  # This lets transformers warn of longer texts.
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work:
        new = Path(work, "data")
        tokenizer.save_pretrained(new)
        log("tokenising")
        encode = build_encoder(tokenizer)
        dev_texts: list[Pair] = []
        dev = _store([Corpus(lambda: dev_pairs)], new / "dev", encode, max_length, filter_pairs, texts=dev_texts)
        write_json(new / DEV_FILE, dev_texts)
        train = _store(corpora, new / "train", encode, max_length, build_filter())
        files = digest_files(new, new.rglob("*"))
        fingerprint = hashlib.sha256(json.dumps([settings, files], sort_keys=True).encode()).hexdigest()
        preparation = {
            "fingerprint": fingerprint,
            **settings,
            "vocab_size": len(tokenizer),
            "train": train,
            "dev": dev,
            "files": files,
        }
        _finish(new, preparation, recipe)
        if describe is not None and describe() != inputs:
            raise ValueError("the text changed while it was read: repeat the command.")
        new.rename(folder)
    return preparation


def _finish(folder: Path, preparation: dict, recipe: dict | None) -> dict:
    """Write `recipe` and `preparation` into `folder`, the second with a digest of the first. Return `preparation`."""
    if recipe is not None:
        write_json(folder / RECIPE_FILE, {"recipe": recipe})
        preparation["files"] |= digest_files(folder, [folder / RECIPE_FILE])
    write_json(folder / PREPARATION_FILE, preparation)
    return preparation


def _warn_of_marks(pairs: Sequence[Pair], name: str) -> None:
    """Warn if most pairs of the set `name` hold marks of sub-words. A model would learn the marks as text."""
    for mark, remedy in SUBWORD_MARKS.items():
        if sum(mark in f"{source} {target}" for source, target in pairs) > len(pairs) / 2:
            # The development set is checked twice, and a training set in blocks. With this `stacklevel` all warnings
            # have the same place in the code, so Python shows equal warnings once.
            warnings.warn(
                f"most pairs of the set {name} hold {mark!r}, a mark of sub-words, and the model will write it. "
                f"Give plain text, because `prepare` splits words itself: {remedy} joins the sub-words again.",
                stacklevel=1,
            )


def read_preparation(folder: Path) -> dict:
    """Read the `preparation.json` that `prepare` wrote into `folder`.

    Raises:
        FileNotFoundError: if `folder` does not contain prepared data.
        ValueError: if the file is damaged.
    """
    path = folder / PREPARATION_FILE
    if not folder.exists():
        raise FileNotFoundError(f"there is no folder {folder}: name the folder that `vaswani prepare` wrote.")
    if not path.exists():
        raise FileNotFoundError(f"{folder} holds no prepared data: run `vaswani prepare` with --output {folder} first.")
    preparation = read_object(path)
    with blaming(path):
        # A missing entry raises a KeyError, which becomes the ValueError.
        itemgetter(
            "fingerprint",
            "files",
            "source_language",
            "target_language",
            "vocab_size",
            "max_length",
            "max_length_ratio",
        )(preparation)
    return preparation


class Prepared(NamedTuple):
    """A folder of prepared data, its `preparation.json`, and its tokenizer."""

    folder: Path
    description: dict
    tokenizer: PreTrainedTokenizerFast


def read_prepared(folder: Path) -> Prepared:
    """Read what `prepare` wrote into `folder`, except the token ids.

    Raises:
        FileNotFoundError: if `folder` does not contain prepared data.
        ValueError: if a file is damaged.
    """
    description = read_preparation(folder)
    return Prepared(folder, description, PreTrainedTokenizerFast.from_pretrained(folder, trust_remote_code=False))


def _learn_vocabulary(
    corpora: Sequence[Corpus], keep: Callable, log: Callable, vocab_size: int, subword_model: str
) -> PreTrainedTokenizerFast:
    """Learn a vocabulary from pairs that are spread evenly over the text, because parts of the text may differ."""
    sample = []
    stride = 1
    num_pairs = 0
    for pair in read_all(corpora):
        if num_pairs % stride == 0:
            sample.append(pair)
        num_pairs += 1
        if len(sample) > VOCABULARY_PAIRS:
            sample = sample[::2]
            stride *= 2
    log(f"learning up to {vocab_size:,} vocabulary entries from {len(sample):,} of {num_pairs:,} pairs")
    kept = keep(sample, Counter())
    return train_tokenizer(chain.from_iterable(kept), vocab_size=vocab_size, subword_model=subword_model)


def build_encoder(tokenizer: PreTrainedTokenizerFast) -> Callable[[Sequence[str]], list[list[int]]]:
    """Return a function that encodes many sentences as `tokenizer` does, on all cores.

    Raises:
        ValueError: if the tokenizer does not end a sentence with `</s>`.
    """
    encoder = tokenizer.backend_tokenizer
    end_id = tokenizer.eos_token_id
    encoder.encode_special_tokens = tokenizer.split_special_tokens
    # A tokenizer.json may enable truncation and padding. Truncation would cut sentences without a message.
    encoder.no_truncation()
    encoder.no_padding()
    example = encoder.encode("a")
    if example.ids[-1] != end_id:
        raise ValueError(
            f"the tokenizer must end every sentence with its eos_token, {tokenizer.eos_token!r}, but encodes 'a' as "
            f"{example.tokens}. Let `prepare` learn a vocabulary instead."
        )
    warn_of_lost_tokens(tokenizer)
    return lambda texts: [encoding.ids for encoding in encoder.encode_batch_fast(texts)]


def _store(
    corpora: Sequence[Corpus],
    folder: Path,
    encode: Callable,
    max_length: int,
    keep: Callable,
    texts: list[Pair] | None = None,
) -> dict[str, int]:
    """Write the token ids of a set to `folder`.

    Args:
        encode: sentences -> token ids.
        max_length: the most tokens of a side. Longer pairs are dropped.
        keep: `filter_pairs` with its settings.
        texts: a list to which the written pairs are appended, as text.

    Returns:
        counts of pairs and tokens.

    Raises:
        ValueError: if no pair is left.
    """
    folder.mkdir()
    for side in SIDES:
        (folder / f"{side}.offsets").write_bytes(bytes(OFFSET_TYPE.itemsize))  # The first sentence starts at 0.
    counts: Counter[str] = Counter()
    stored = []
    for corpus in corpora:
        num_before = counts["pairs"]
        pairs = keep(tqdm(corpus.read(), desc=folder.name, unit=" pairs", leave=False, disable=None), counts)
        while block := list(islice(pairs, PAIRS_PER_BLOCK)):
            _warn_of_marks(block[:1_000], folder.name)
            # A row is (pair, token ids of the source, token ids of the target).
            rows = zip(block, *map(encode, zip(*block, strict=True)), strict=True)
            rows = [row for row in rows if max(len(row[1]), len(row[2])) <= max_length]
            counts["over max_length"] += len(block) - len(rows)
            counts["pairs"] += len(rows)
            counts["source_tokens"] += _append(folder / SIDES[0], [ids for _, ids, _ in rows])
            counts["target_tokens"] += _append(folder / SIDES[1], [ids for _, _, ids in rows])
            if texts is not None:
                texts += [pair for pair, *_ in rows]
        stored.append((counts["pairs"] - num_before, corpus.weight))
    if not counts["pairs"]:
        raise ValueError(
            f"no pair of the set {folder.name} is left: {summarise(counts)}. Give other text, or change the filters."
        )
    write_json(folder / CORPORA_FILE, stored)
    return dict(counts)


def _append(path: Path, sentences: Sequence[list[int]]) -> int:
    """Append the token ids of `sentences` to the two files of a side; return the number of appended tokens."""
    tokens = np.fromiter(chain.from_iterable(sentences), TOKEN_TYPE)
    with open(path.with_suffix(".tokens"), "ab") as token_file, open(path.with_suffix(".offsets"), "ab") as offset_file:
        ends = np.cumsum(list(map(len, sentences)), dtype=OFFSET_TYPE) + token_file.tell() // TOKEN_TYPE.itemsize
        token_file.write(tokens)
        offset_file.write(ends)
    return len(tokens)
