"""Speed and memory of training, beside other packages' models of equal size on the same batches.

    python scripts/benchmark_training.py --quick
    python scripts/benchmark_training.py --size tiny --source train.en --target train.de
    python scripts/benchmark_training.py --size base --peers marian,torch,x-transformers,opennmt-py,joeynmt
    python scripts/benchmark_training.py --growth --pairs 30000 --source train.en --target train.de
    python scripts/benchmark_training.py --fill --pairs 300000 --source train.en --target train.de

All systems do the same work: batches of section 5.1, dropout, label smoothing, forward, backward, one step of the
same fused Adam; `benchmark_peers` describes the peers. Speed counts target tokens without padding. Memory is
how far the resident memory of a fresh process grows over what it was before the model was built, at its peak:
weights, gradients, Adam's averages, activations.

--growth shows what grows with the work: speed at sentences of 10, 30 and 100 tokens, and speed and memory at 10 times
the corpus and 10 times the updates. --fill shows how much of the batches is padding and how evenly processes share
them. --quick answers in five minutes on two cores: few updates of a tiny model. Peers are installed beside this package
with

    pip install x-transformers OpenNMT-py joeynmt importlib_metadata torch==2.13.0

where pip takes OpenNMT-py 3.0.4: later ones ask for torch < 2.3.
"""

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from benchmark_common import (
    CLOCKS,
    OURS,
    SIZES,
    Ratio,
    add_model_options,
    add_report_options,
    add_timing_options,
    build_config,
    describe_machine,
    describe_model,
    format_rows,
    load_pairs,
    measure_in_child,
    names_among,
    num_trained,
    parse_quickly,
    peak_growth,
    prepare_pairs,
    read_pairs,
    report,
    time_interleaved,
)
from benchmark_peers import PEERS, describe_peers, find_peers
from torch import nn

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.data.batching import IGNORE_INDEX, TokenizedPairs, UpdateStream, plan_updates, split_update

Batch = dict[str, torch.Tensor]
Step = Callable[[Batch], None]

QUICK = {"pairs": 1_000, "updates": 4, "repeats": 3}
GROWTH = 10
SENTENCE_LENGTHS = (10, 30, 100)
FILL_TOKENS = (25_000, 4_096)
FILL_PARTS = (1, 4, 8)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=tuple(SIZES), default="tiny", help="default: %(default)s")
    add_model_options(parser)
    add_timing_options(parser)
    add_report_options(parser)
    parser.add_argument("--target", type=Path, help="translations of --source, one per line")
    parser.add_argument("--pairs", type=int, default=5_000, help="sentence pairs to read; default: %(default)s")
    parser.add_argument(
        "--tokens_per_batch",
        type=int,
        default=4_096,
        help="padded source tokens of an update, and as many target tokens; default: %(default)s",
    )
    parser.add_argument("--updates", type=int, default=10, help="updates in a repeat; default: %(default)s")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="bfloat16 is autocast; default: %(default)s"
    )
    parser.add_argument(
        "--peers",
        type=names_among(PEERS, "peer"),
        default=["marian"],
        help=f"any of {','.join(PEERS)}; what is not installed is named and left out; default: marian",
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--growth", action="store_true", help="what grows with the work")
    mode.add_argument("--fill", action="store_true", help="padding of the batches, and balance between processes")
    return parser


# One system


def build_system(name: str, config: VaswaniConfig) -> nn.Module:
    return VaswaniForConditionalGeneration(config) if name == OURS else PEERS[name](config)


def build_step(model: nn.Module, dtype: str) -> Step:
    """Return a function that makes one update of `model`, from forward to optimizer."""
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def step(batch: Batch) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure_memory(
    name: str, config: VaswaniConfig, arrays: list[dict[str, np.ndarray]], dtype: str, threads: int
) -> float:
    """Return the MiB that training `name` takes; runs in a process of its own."""
    torch.set_num_threads(threads)
    batches = [{key: torch.from_numpy(array) for key, array in batch.items()} for batch in arrays]

    def work() -> None:
        step = build_step(build_system(name, config), dtype)
        for batch in batches:
            step(batch)

    return peak_growth(work)


# Beside the peers


def take_batches(pairs: TokenizedPairs, args: argparse.Namespace) -> list[Batch]:
    """Return the batches of the first `--updates` updates."""
    plan = plan_updates(
        pairs.sources.lengths, pairs.targets.lengths, tokens_per_batch=args.tokens_per_batch, seed=0, epoch=0
    )
    return [pairs[rows] for rows in plan[: args.updates]]


def count_targets(batches: Sequence[Batch]) -> int:
    """Return the number of target tokens without padding."""
    return sum(int((batch["labels"] != IGNORE_INDEX).sum()) for batch in batches)


def compare(peers: Sequence[str], config: VaswaniConfig, batches: list[Batch], args: argparse.Namespace) -> list[dict]:
    """Time our model and the peers on `batches`; return a row of the result for each."""
    models = {name: build_system(name, config) for name in (OURS, *peers)}
    steps = {name: build_step(model, args.dtype) for name, model in models.items()}
    time_interleaved(steps, batches[:1], repeats=1, clock=args.clock)  # the first update also sets up the optimizers
    seconds = time_interleaved(steps, batches, repeats=args.repeats, clock=args.clock)
    arrays = [{key: tensor.numpy() for key, tensor in batch.items()} for batch in batches]
    memories = {
        name: measure_in_child(measure_memory, name, config, arrays, args.dtype, torch.get_num_threads())
        for name in models
    }
    return [
        {
            "system": name if name == OURS else PEERS[name].label,
            "parameters": num_trained(model),
            "target_tokens_per_second": count_targets(batches) / statistics.median(seconds[name]),
            "peak_memory_mib": memories[name],
            "ratio": Ratio.of(seconds[OURS], seconds[name]),
            "memory_ratio": memories[OURS] / memories[name],
            "seconds": seconds[name],
        }
        for name, model in models.items()
    ]


COMPARISON = {
    "parameters": "{parameters:,}",
    "target tokens/s": "{target_tokens_per_second:,.0f}",
    "ours faster (min to max)": "{ratio}",
    "peak memory, MiB": "{peak_memory_mib:,.0f}",
    "ours / this": "{memory_ratio:.2f}",
}


def report_comparison(
    pairs: TokenizedPairs, peers: list[str], config: VaswaniConfig, args: argparse.Namespace, about: dict[str, str]
) -> None:
    batches = take_batches(pairs, args)
    rows = compare(peers, config, batches, args)
    target_tokens, padded = count_targets(batches), sum(batch["labels"].numel() for batch in batches)
    about["batches"] = (
        f"{len(batches)} updates of at most {args.tokens_per_batch:,} padded tokens a side, {target_tokens:,} target "
        f"tokens in all ({target_tokens / padded:.0%} of the padded)"
    )
    table = format_rows(rows, {"system": "{system}", **COMPARISON})
    report(f"Training, {args.size}, {args.dtype}", describe_machine() | about, table, rows, args)


# What grows with the work


def cut_batches(pairs: TokenizedPairs, length: int, args: argparse.Namespace) -> list[Batch]:
    """Return `--updates` full batches of sentences of `length` tokens, cut from the text joined to one piece."""
    num_sentences = args.tokens_per_batch // length
    shape = (args.updates, num_sentences, length)
    sources, targets = (
        torch.from_numpy(np.resize(np.concatenate([column[row] for row in range(len(pairs))]), shape)).long()
        for column in (pairs.sources, pairs.targets)
    )
    return [
        {"input_ids": source, "attention_mask": torch.ones_like(source), "labels": target}
        for source, target in zip(sources, targets, strict=True)
    ]


def copy_corpus(folder: Path, copy: Path) -> None:
    """Write prepared data with every training pair `GROWTH` times."""
    (copy / "train").mkdir(parents=True)
    parts = sorted((folder / "train").glob("part-*.arrow")) * GROWTH
    for number, part in enumerate(parts):
        shutil.copy(part, copy / "train" / f"part-{number:05d}.arrow")


class Run:
    """Training of our model from a corpus on disk, with its seconds of planning, reading and training."""

    def __init__(self, folder: Path, config: VaswaniConfig, args: argparse.Namespace):
        self.folder, self.config, self.args = folder, config, args
        self.now = CLOCKS[args.clock]
        self.reading = self.training = self.target_tokens = 0

    def plan(self) -> None:
        """Map the corpus and plan its first epoch."""
        started = self.now()
        pairs = load_pairs(self.folder)
        self.stream = iter(UpdateStream(pairs, tokens_per_batch=self.args.tokens_per_batch, seed=0))
        next(self.stream)
        self.num_pairs, self.planning = len(pairs), self.now() - started

    def train(self, updates: int) -> None:
        """Run the next updates of the plan."""
        step = build_step(build_system(OURS, self.config), self.args.dtype)
        step(next(self.stream).micro_batches[0])  # also sets up the optimizer
        for _ in range(updates):
            started = self.now()
            update = next(self.stream)
            read = self.now()
            step(update.micro_batches[0])
            self.reading, self.training = self.reading + read - started, self.training + self.now() - read
            self.target_tokens += update.target_tokens


def measure_run(folder: Path, updates: int, config: VaswaniConfig, args: argparse.Namespace, threads: int) -> dict:
    """Return a row of the result; runs in a process of its own."""
    torch.set_num_threads(threads)
    run = Run(folder, config, args)
    planning_mib, training_mib = peak_growth(run.plan), peak_growth(lambda: run.train(updates))
    seconds = run.reading + run.training
    return {
        "pairs": run.num_pairs,
        "updates": updates,
        "planning_seconds": run.planning,
        "planning_mib": planning_mib,
        "target_tokens_per_second": run.target_tokens / seconds,
        "reading_share": run.reading / seconds,
        "training_mib": training_mib,
    }


def report_growth(
    pairs: TokenizedPairs,
    folder: Path,
    peers: list[str],
    config: VaswaniConfig,
    args: argparse.Namespace,
    about: dict[str, str],
) -> None:
    lengths = []
    for length in SENTENCE_LENGTHS:
        batches = cut_batches(pairs, length, args)
        lengths += [{"sentence_length": length, **row} for row in compare(peers, config, batches, args)]
    large = folder / "large"
    copy_corpus(folder, large)
    runs = [
        measure_in_child(measure_run, corpus, updates, config, args, torch.get_num_threads())
        for corpus, updates in ((folder, args.updates), (large, args.updates), (folder, GROWTH * args.updates))
    ]
    about["batches"] = (
        f"at most {args.tokens_per_batch:,} padded tokens a side; {args.updates} updates of each sentence length, no "
        f"padding; the large corpus is the small one {GROWTH} times over"
    )
    length_table = format_rows(lengths, {"system": "{system}", "sentence length": "{sentence_length}", **COMPARISON})
    run_columns = {
        "pairs": "{pairs:,}",
        "updates": "{updates:,}",
        "planning, s": "{planning_seconds:.3f}",
        "planning, MiB": "{planning_mib:,.1f}",
        "target tokens/s": "{target_tokens_per_second:,.0f}",
        "reading": "{reading_share:.2%}",
        "training, MiB": "{training_mib:,.0f}",
    }
    run_table = format_rows(runs, run_columns)
    table = f"{length_table}\n\nOur model from a corpus on disk; reading is its part of the time:\n\n{run_table}"
    report(f"Growth, {args.size}, {args.dtype}", describe_machine() | about, table, lengths + runs, args)


# Padding and balance


def measure_fill(pairs: TokenizedPairs, tokens_per_batch: int, num_parts: int) -> dict:
    """Measure one epoch, each update cut into `num_parts` micro-batches, source and target tokens together.

    An update waits for its slowest part, so that part's padded tokens over the mean are the cost of imbalance.
    """
    sources, targets = pairs.sources.lengths.astype(np.int64), pairs.targets.lengths.astype(np.int64)
    plan = plan_updates(sources, targets, tokens_per_batch=tokens_per_batch, seed=0, epoch=0)
    padded = np.zeros((len(plan), num_parts), dtype=np.int64)
    for update, rows in enumerate(plan):
        for part, part_rows in enumerate(split_update(rows, sources, targets, num_parts=num_parts)):
            if len(part_rows):
                padded[update, part] = len(part_rows) * (sources[part_rows].max() + targets[part_rows].max())
    slowest, mean = padded.max(axis=1), padded.mean(axis=1)
    return {
        "tokens_per_batch": tokens_per_batch,
        "parts": num_parts,
        "updates": len(plan),
        "fill": float((sources.sum() + targets.sum()) / padded.sum()),
        "worst_update": float((slowest / mean).max()),
        "epoch": float(slowest.sum() / mean.sum()),
    }


def report_fill(pairs: TokenizedPairs, args: argparse.Namespace, about: dict[str, str]) -> None:
    rows = [measure_fill(pairs, tokens, parts) for tokens in FILL_TOKENS for parts in FILL_PARTS]
    columns = {
        "tokens per batch": "{tokens_per_batch:,}",
        "parts": "{parts}",
        "updates": "{updates:,}",
        "fill": "{fill:.2%}",
        "slowest / mean, epoch": "{epoch:.4f}",
        "worst update": "{worst_update:.4f}",
    }
    report("Fill, one epoch", describe_machine() | about, format_rows(rows, columns), rows, args)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_quickly(build_parser(), argv, **QUICK)
    if (args.source is None) != (args.target is None):
        raise SystemExit("--source and --target go together: give both, or neither for the phrasebook.")
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    config = build_config(args.size, vocab_size=args.vocab_size)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = read_pairs(args.source, args.target, count=args.pairs)
        pairs = prepare_pairs(text, folder, vocab_size=config.vocab_size)
        about = {
            "text": f"{len(pairs):,} pairs of {args.source.name if args.source else 'the phrasebook'}, vocabulary "
            f"{config.vocab_size:,}"
        }
        if args.fill:
            report_fill(pairs, args, about)
            return 0
        peers, missing = find_peers(args.peers, VaswaniForConditionalGeneration(config))
        about |= {
            "model": describe_model(config),
            "peers": describe_peers(peers),
            "skipped": "; ".join(f"{peer}: {reason}" for peer, reason in missing.items()) or "none",
            "measured": f"{args.repeats} repeats, in turns update by update, {args.clock} time; ratios are medians",
        }
        if args.growth:
            report_growth(pairs, folder, peers, config, args, about)
        else:
            report_comparison(pairs, peers, config, args, about)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
