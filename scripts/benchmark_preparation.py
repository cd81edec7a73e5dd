"""Speed, memory and disk space of `vaswani prepare` at two sizes of the corpus, to see what grows with it.

    python scripts/benchmark_preparation.py --pairs 5000000 --source a.en b.en --target a.de b.de

Pairs are made of real ones: two of them joined, and a number of their own, so that no pair repeats and each
has a new word, which is more new words than real text has. They are written to files first. Memory is
the resident memory of the preparing process and of its workers together, at its peak.
"""

import argparse
import contextlib
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import count, islice
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
from benchmark_common import describe_machine, format_table, read_pairs, report

from vaswani_transformer.data.corpus import Pair, read_parallel_files
from vaswani_transformer.data.filtering import PairFilter
from vaswani_transformer.data.preparation import Corpus, prepare

PHRASEBOOK_PAIRS = 20_000
DEV_PAIRS = 1_000
PAIR_FILTER = PairFilter(max_length_ratio=9.0, drop_duplicates=True, drop_identical=True)
SECONDS_BETWEEN_LOOKS = 0.1  # at the memory
STAGES = ("reading", "learning", "tokenising")  # the first word of what `prepare` logs, except the first


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100_000, help="of the larger corpus; default: %(default)s")
    parser.add_argument("--source", type=Path, nargs="+", help="real sentences; default: the built-in phrasebook")
    parser.add_argument("--target", type=Path, nargs="+", help="their translations, in as many files")
    parser.add_argument("--vocab_size", type=int, default=37_000, help="default: %(default)s")
    parser.add_argument("--workers", type=int, default=1, help="of `vaswani prepare`; default: %(default)s")
    parser.add_argument("--folder", type=Path, help="where to write, and remove later; default: the system's")
    parser.add_argument("--output", type=Path, help="write the result to this file, as JSON")
    return parser


def read_real_pairs(args: argparse.Namespace) -> list[Pair]:
    """Return all pairs of `--source` and `--target`."""
    if (args.source is None) != (args.target is None) or (args.source and len(args.source) != len(args.target)):
        raise SystemExit("--source and --target go together, with as many files each.")
    if args.source is None:
        return read_pairs(None, None, count=PHRASEBOOK_PAIRS)
    files = zip(args.source, args.target, strict=True)
    return [pair for source, target in files for pair in read_parallel_files(source, target)]


def vary(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """Yield pairs without end and without repetition."""
    rng = random.Random(0)
    for number in count():
        (source, target), (next_source, next_target) = rng.choice(pairs), rng.choice(pairs)
        yield f"{source} {next_source} {number}", f"{target} {next_target} {number}"


def write_pairs(pairs: Iterator[Pair], source_path: Path, target_path: Path) -> None:
    """Write line-aligned text files."""
    options = {"mode": "w", "encoding": "utf-8", "newline": "\n"}
    with open(source_path, **options) as sources, open(target_path, **options) as targets:
        for source, target in pairs:
            sources.write(f"{source}\n")
            targets.write(f"{target}\n")


def measure(files: tuple[Path, Path], folder: Path, vocab_size: int, workers: int) -> dict:
    """Prepare `files` in a fresh process and watch it."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe()
    process = context.Process(target=prepare_files, args=(files, folder, vocab_size, workers, sender))
    process.start()
    sender.close()  # so that the end of the process is the end of the pipe
    watched = psutil.Process(process.pid)
    stage, started, cpu_before = STAGES[0], time.perf_counter(), 0.0
    peaks, seconds, cpu_seconds = dict.fromkeys(STAGES, 0), {}, {}
    while stage != "done":
        peaks[stage] = max(peaks[stage], resident_bytes(watched))
        if receiver.poll(SECONDS_BETWEEN_LOOKS):
            next_stage, cpu, summary = receiver.recv()
            seconds[stage], cpu_seconds[stage] = time.perf_counter() - started, cpu - cpu_before
            stage, started, cpu_before = next_stage, time.perf_counter(), cpu
    receiver.close()
    process.join()
    train = summary["train"]
    return {
        "pairs": train["pairs"],
        "tokens": train["source_tokens"] + train["target_tokens"],
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "peak_mib": {name: peak / 2**20 for name, peak in peaks.items()},
        "disk_mib": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20,
    }


def prepare_files(files: tuple[Path, Path], folder: Path, vocab_size: int, workers: int, sender: Connection) -> None:
    """Prepare in the measured process; send each beginning of a stage, and the CPU seconds until then."""
    summary = prepare(
        [Corpus(lambda: read_parallel_files(*files))],
        lambda: islice(read_parallel_files(*files), DEV_PAIRS),
        folder,
        vocab_size=vocab_size,
        pair_filter=PAIR_FILTER,
        workers=workers,
        log=lambda message: sender.send((message.split()[0], cpu_seconds(), None)),
    )
    sender.send(("done", cpu_seconds(), summary))
    sender.poll(None)  # until the other end is closed: a short stage may end before its memory is looked at


def cpu_seconds() -> float:
    """Return the processor time of this process and of all its children that have ended."""
    return sum(os.times()[:4])


def resident_bytes(process: psutil.Process) -> int:
    """Return the resident memory of a process and all its descendants."""
    total = 0
    for member in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended in between
            total += member.memory_info().rss
    return total


def format_rows(rows: Sequence[dict]) -> str:
    header = ["", *(f"{row['pairs']:,} pairs" for row in rows)]
    lines = [["tokens", *(f"{row['tokens']:,}" for row in rows)]]
    for stage in STAGES:
        lines.append([f"{stage}, seconds", *(f"{row['seconds'][stage]:.0f}" for row in rows)])
        lines.append([f"{stage}, CPU seconds", *(f"{row['cpu_seconds'][stage]:.0f}" for row in rows)])
        lines.append([f"{stage}, peak memory in MiB", *(f"{row['peak_mib'][stage]:,.0f}" for row in rows)])
    lines += [
        ["pairs/s, all stages", *(f"{row['pairs'] / sum(row['seconds'].values()):,.0f}" for row in rows)],
        ["tokens/s, tokenising", *(f"{row['tokens'] / row['seconds']['tokenising']:,.0f}" for row in rows)],
        ["tokens/CPU s, tokenising", *(f"{row['tokens'] / row['cpu_seconds']['tokenising']:,.0f}" for row in rows)],
        ["disk in MiB", *(f"{row['disk_mib']:,.0f}" for row in rows)],
    ]
    return format_table(header, lines)


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    real_pairs = read_real_pairs(args)
    rows = []
    for num_pairs in (args.pairs // 10, args.pairs):
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            files = Path(folder, "train.source"), Path(folder, "train.target")
            write_pairs(islice(vary(real_pairs), num_pairs), *files)
            rows.append(measure(files, Path(folder, "data"), args.vocab_size, args.workers))
    description = describe_machine() | {
        "text": f"{len(real_pairs):,} real pairs, varied; vocabulary {args.vocab_size:,}; {PAIR_FILTER}",
        "workers": args.workers,
    }
    report("Preparation, vaswani prepare", description, format_rows(rows), rows, args.output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
