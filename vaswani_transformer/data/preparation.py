"""From sentence pairs to a folder that training reads: a tokenizer, and token ids in memory-mapped Arrow.

data/
    fingerprint.json            what all the rest is made from; written first
    tokenizer.json, tokenizer_config.json
    train/part-00000.arrow ...  columns input_ids and labels, </s> included, in the order of the corpora; a part is of
                                one corpus, and names its weight
    dev/part-00000.arrow        the same
    dev.json                    the development pairs as text, for BLEU during training
    preparation.json            settings, counts of all pairs that were read, SHA-256 of every file; written last
    recipe.json                 the recipe that `vaswani train` takes by default; by the command, after all this
    lock                        names the process that writes here

Every file is written beside its place, synced and renamed, so a file that is there is whole. A preparation that was
killed and is started again keeps the vocabulary and the parts that are there, reads and filters the text again, and
ends with the same files and counts as one that was never stopped.
"""

import contextlib
import copy
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path

from accelerate import PartialState
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ..files import blaming, digest_files, find_changes, lock_folder, read_object, write_json, write_whole
from .batching import PART_NAMES, WEIGHT
from .corpus import Pair
from .encoding import BlockEncoder
from .filtering import DigestSet, FilterCounts, PairFilter, filter_pairs
from .parts import SCHEMA, Block, PartWriter, count_parts, write_parts
from .tokenization import train_tokenizer

FORMAT = 4  # of the folder's files
KEEP_ALL = PairFilter()
FINGERPRINT_FILE = "fingerprint.json"
TOKENIZER_FILE = "tokenizer.json"
PREPARATION_FILE = "preparation.json"
DEV_FILE = "dev.json"
OWN_FILES = (FINGERPRINT_FILE, TOKENIZER_FILE, "tokenizer_config.json", DEV_FILE)  # of which digests are taken


@dataclass(frozen=True)
class Corpus:
    """Training text, and how often an epoch holds each of its pairs.

    A pair is filtered, tokenised and stored once; `batching.TokenizedPairs` lists the parts of a corpus `weight` times.
    So a repetition costs 16 bytes of memory per pair, for its lengths and its place in two plans of an epoch, no room
    on the disk, and no rule in the plan. Weights are whole numbers because every epoch holds the same pairs; 1 and 1.5
    are 2 and 3.

    Attributes:
        read: each call reads the pairs from the start.
        weight: at least 1.
    """

    read: Callable[[], Iterable[Pair]]
    weight: int = 1


def read_all(corpora: Sequence[Corpus]) -> Iterator[Pair]:
    """The pairs of all corpora, each once; every corpus is opened at once."""
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
    vocabulary_pairs: int = 500_000,
    pairs_per_part: int = 100_000,
    workers: int = 1,
    processes: PartialState | None = None,
    log: Callable[[str], object] = lambda message: None,
    on_pairs: Callable[[int], object] = lambda num_pairs: None,
) -> dict:
    """Learn the vocabulary and tokenise both sets into `folder`; go on where an earlier call was stopped.

    Memory does not grow with the corpus, except by the digests that `drop_duplicates` remembers (`DigestSet`). The
    same arguments give the same bytes, by any number of workers, processes and cores, and after any number of stops;
    a preparation may go on with other numbers than it was begun with.

    Args:
        corpora: of the training set; read three times by the first of `processes`, once by each other.
        read_dev: each call reads the pairs from the start.
        max_length: longest side of a pair in tokens; longer pairs of both sets are dropped and counted.
        pair_filter: for training pairs; duplicates are looked for in all corpora together, before weights count.
            Empty and endless pairs are dropped from both sets.
        tokenizer: use this one instead of learning with `vocab_size`, `subword_model` and `vocabulary_pairs`.
        inputs: identifies the text, as JSON (`corpus.describe_source`). Without it a corpus that changes between two
            calls goes unnoticed.
        vocabulary_pairs: learn from every k-th pair, k as small as this limit allows. Learning takes 1.2 KB of
            memory per different word: without a limit, gigabytes for the paper's 4.5M pairs. Weights do not count
            here, so that runs of different weights have one vocabulary and can be compared by perplexity.
        pairs_per_part: kept training pairs in a file, the most that a kill loses of each worker's work.
        workers: processes that tokenise, of one thread each; 1 is this process itself, with a thread for each core.
        processes: of `accelerate launch`, on machines that share `folder`: the first learns the vocabulary, then each
            reads and filters all of the text and writes every n-th part. This process alone if not given.
        log, on_pairs: get a line at each stage, and the number of pairs of each part that is done or given to a worker.

    Returns:
        the contents of `preparation.json`. What was read, kept and dropped is counted once; `pairs` and tokens are
        those of an epoch, weights included.

    Raises:
        ValueError: if a weight is below 1; if no training or no development pair is left; if `folder` was begun with
            other arguments; if another process writes there; and as the readers do.
        FileNotFoundError: if one of `processes` does not see the folder.
        OSError: as `parts.write_parts`.
    """
    weights = [corpus.weight for corpus in corpora]
    sizes = {"vocabulary_pairs": vocabulary_pairs, "pairs_per_part": pairs_per_part, "workers": workers}
    sizes["weight"] = min(weights)
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    learning = {"vocab_size": vocab_size, "subword_model": subword_model, "vocabulary_pairs": vocabulary_pairs}
    settings = {
        "format": FORMAT,
        "source_language": source_language,
        "target_language": target_language,
        "vocabulary": learning if tokenizer is None else {"given": _sha256(tokenizer.backend_tokenizer.to_str())},
        "max_length": max_length,
        "filter": asdict(pair_filter),
        "pairs_per_part": pairs_per_part,
        "weights": weights,
        "inputs": dict(inputs or {}),
    }
    is_main = processes is None or processes.is_main_process
    share = (0, 1) if processes is None else (processes.process_index, processes.num_processes)
    meet = (lambda: None) if processes is None else processes.wait_for_everyone
    if is_main:
        folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder) if is_main else contextlib.nullcontext():
        if is_main:
            _claim(folder, settings)
        meet()
        if not (folder / FINGERPRINT_FILE).exists():
            raise FileNotFoundError(
                f"{folder}, which the first process has made, cannot be seen by all. Processes on several machines "
                f"need an output folder that they share."
            )
        if (folder / PREPARATION_FILE).exists():
            log(f"{folder} is complete: nothing to do")
            return read_preparation(folder)

        # A missing file, and faults of the few development pairs, show before the long work.
        read_all(corpora)
        dev_counts = FilterCounts()
        dev_pairs = list(filter_pairs(read_dev(), KEEP_ALL, dev_counts))
        if not dev_pairs:
            raise ValueError(f"no development pair is left: {dev_counts.summary()}.")
        if is_main and not (folder / TOKENIZER_FILE).exists():
            if tokenizer is None:
                tokenizer = _learn_vocabulary(corpora, pair_filter, **learning, log=log)
            _save_tokenizer(tokenizer, folder, max_length=max_length)
        if is_main:
            _claim(folder, {"tokenizer": _sha256((folder / TOKENIZER_FILE).read_text(encoding="utf-8"))})
        meet()
        claimed = _claim(folder, settings)  # by the other processes: is their text that of the first?
        # From the folder even if it was learnt just now, so that a second start works with the same one.
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        writer = PartWriter(BlockEncoder(tokenizer), max_length=max_length)

        num_parts = len(list((folder / "train").glob(PART_NAMES)))
        log("tokenising" + (f", {num_parts} parts are there already" if num_parts else ""))
        dev_texts = [
            pair for pair, fits in zip(dev_pairs, writer.encode(dev_pairs)[1].to_pylist(), strict=True) if fits
        ]
        if not dev_texts:
            raise ValueError(f"no development pair is left: {dev_counts.summary()}, {len(dev_pairs)} too long.")
        cut = partial(_cut, folder=folder, pairs_per_part=pairs_per_part, on_pairs=on_pairs)
        read: list[tuple[FilterCounts, dict[Path, int]]] = []
        write_parts(_cut_corpora(corpora, pair_filter, read, cut=partial(cut, share=share)), writer, workers=workers)
        meet()
        if is_main:
            train = _count_corpora(corpora, read)
            if not train["pairs"]:
                reasons = f"{FilterCounts.of(train).summary()}, {train['over_max_length']} too long"
                raise ValueError(f"no training pair is left: {reasons}.")
            dev_sizes: dict[Path, int] = {}
            write_parts(cut(dev_pairs, dev_sizes, name="dev"), writer, workers=1)
            write_json(folder / DEV_FILE, dev_texts)
            summary = {
                "fingerprint": _sha256(json.dumps(claimed, sort_keys=True)),
                **claimed,
                "vocab_size": len(tokenizer),
                "train": train,
                "dev": asdict(dev_counts) | count_parts(dev_sizes, weight=1),
                "files": digest_files(
                    folder, [*(folder / name for name in OWN_FILES), *folder.glob(f"*/{PART_NAMES}")]
                ),
            }
            write_json(folder / PREPARATION_FILE, summary)
        meet()
        return read_preparation(folder)


def read_preparation(folder: Path) -> dict:
    """Read the `preparation.json` that `prepare` wrote into `folder`.

    Raises:
        FileNotFoundError: if `folder` is no prepared data.
        ValueError: if the file is damaged.
    """
    path = folder / PREPARATION_FILE
    if not path.exists():  # it is written last
        raise FileNotFoundError(f"{folder} holds no prepared data; run `vaswani prepare` with --output {folder} first.")
    preparation = read_object(path)
    with blaming(path):
        itemgetter("fingerprint", "source_language", "target_language", "vocab_size")(preparation)
        for name in ("train", "dev"):
            itemgetter("pairs", "source_tokens", "target_tokens", "over_max_length")(preparation[name])
        preparation["files"] = dict(preparation["files"])
    return preparation


def _claim(folder: Path, values: Mapping[str, object]) -> dict:
    """Record in `folder` what it is made from; returns all that was recorded.

    Raises:
        ValueError: if the folder was begun with other `values`.
    """
    path = folder / FINGERPRINT_FILE
    is_begun = (folder / TOKENIZER_FILE).exists()  # before that there is nothing to lose
    if is_begun and not path.exists():
        raise ValueError(
            f"{folder} has a {TOKENIZER_FILE} but no {FINGERPRINT_FILE} that tells what it was made from: it is no "
            f"prepared data, or another version of this package wrote it. Choose another folder, or remove this one."
        )
    recorded = read_object(path) if is_begun else {}
    values = json.loads(json.dumps(values))
    given_again = {name: value for name, value in values.items() if name in recorded}
    if changes := list(find_changes(recorded, recorded | given_again)):
        raise ValueError(
            f"{folder} was begun with other data or settings: {'; '.join(changes)}. Give what it was begun "
            f"with to go on, choose another folder, or remove this one to start again."
        )
    if not values.keys() <= recorded.keys():
        recorded |= values
        write_json(path, recorded)
    return recorded


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _learn_vocabulary(
    corpora: Sequence[Corpus],
    pair_filter: PairFilter,
    *,
    vocab_size: int,
    subword_model: str,
    vocabulary_pairs: int,
    log: Callable[[str], object],
) -> PreTrainedTokenizerFast:
    """Learn from pairs spread evenly over the text, whose parts may differ in kind."""
    num_pairs = sum(1 for _ in read_all(corpora))
    stride = max(1, -(-num_pairs // vocabulary_pairs))
    log(f"learning a vocabulary of {vocab_size:,} from {-(-num_pairs // stride):,} of {num_pairs:,} pairs")
    kept = filter_pairs(islice(read_all(corpora), 0, None, stride), pair_filter, FilterCounts())
    return train_tokenizer((side for pair in kept for side in pair), vocab_size=vocab_size, subword_model=subword_model)


def _save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path, *, max_length: int) -> None:
    """Write the tokenizer's files into `folder`, `tokenizer.json` last: where that is, they all are."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.model_max_length = max_length  # transformers warns of longer inputs
    with tempfile.TemporaryDirectory() as temporary:
        try:
            tokenizer.save_pretrained(temporary)
        except Exception as error:  # what the library raises where a disk is full has no class of its own
            raise OSError(f"{temporary}/{TOKENIZER_FILE} could not be written: {error}") from error
        for path in sorted(Path(temporary).iterdir(), key=lambda path: (path.name == TOKENIZER_FILE, path.name)):
            with write_whole(folder / path.name) as file:
                file.write(path.read_bytes())


def _cut_corpora(
    corpora: Sequence[Corpus],
    pair_filter: PairFilter,
    read: list[tuple[FilterCounts, dict[Path, int]]],
    *,
    cut: Callable[..., Iterator[Block]],
) -> Iterator[Block]:
    """Filter the training set and yield the blocks to write; `read` gets the counts and sizes of each corpus."""
    seen, first_part = DigestSet(), 0
    for corpus in corpora:
        counts, sizes = FilterCounts(), {}
        read.append((counts, sizes))
        pairs = filter_pairs(corpus.read(), pair_filter, counts, seen=seen)
        yield from cut(pairs, sizes, name="train", weight=corpus.weight, first_part=first_part)
        first_part += len(sizes)


def _count_corpora(
    corpora: Sequence[Corpus], read: Sequence[tuple[FilterCounts, dict[Path, int]]]
) -> dict[str, object]:
    """Counts of the training set, and in `corpora` those of each corpus."""
    counts_of_corpora = [
        asdict(counts) | count_parts(sizes, weight=corpus.weight)
        for corpus, (counts, sizes) in zip(corpora, read, strict=True)
    ]
    totals = {name: sum(one[name] for one in counts_of_corpora) for name in counts_of_corpora[0]}
    return totals | {"corpora": counts_of_corpora}


def _cut(
    pairs: Iterable[Pair],
    sizes: dict[Path, int],
    *,
    folder: Path,
    name: str,
    pairs_per_part: int,
    on_pairs: Callable[[int], object],
    weight: int = 1,
    first_part: int = 0,
    share: tuple[int, int] = (0, 1),
) -> Iterator[Block]:
    """Cut `pairs` of the set `name` into parts; yields those that `folder` lacks and that this process is to write.

    Args:
        sizes: gets the number of pairs of every part.
        first_part: number of the first of them.
        share: number of this process, and how many there are.
    """
    (folder / name).mkdir(exist_ok=True)
    schema = SCHEMA.with_metadata({WEIGHT: str(weight)})
    remaining, (own, num_processes) = iter(pairs), share
    while block := list(islice(remaining, pairs_per_part)):
        number = first_part + len(sizes)
        path = folder / name / PART_NAMES.replace("*", f"{number:05d}")
        sizes[path] = len(block)
        if number % num_processes == own and not path.exists():
            yield path, block, schema
        on_pairs(len(block))
