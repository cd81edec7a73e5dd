"""Compare our model with transformers' MarianMTModel of equal size: speed and memory of training on the same batches.

    python scripts/benchmark_training.py --quick
    python scripts/benchmark_training.py --size base --dtype bfloat16 --source train.en --target train.de

Both models do the same work for an update: a batch as in section 5.1, forward with dropout and label smoothing,
backward, and one step of fused Adam. Speed is in target tokens per second, without padding. Memory is the peak of the
resident memory of a fresh process, less what the process had before the model was built. So memory includes weights,
gradients, Adam's averages and activations. On a GPU, memory is the peak of what PyTorch allocates. --quick answers in
five minutes on two cores, with few updates of a tiny model.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from benchmark_common import (
    MARIAN,
    OURS,
    SIZES,
    MarianWithLoss,
    Ratio,
    add_model_options,
    build_config,
    describe_machine,
    describe_model,
    format_rows,
    measure_in_child,
    num_trained,
    parse_arguments,
    peak_growth,
    read_pairs,
    report,
    start_parser,
    time_interleaved,
)
from torch import nn

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, train_tokenizer
from vaswani_transformer.data.batching import TokenColumn, TokenizedPairs, plan_updates

Batch = dict[str, torch.Tensor]

QUICK = {"pairs": 1_000, "updates": 4, "repeats": 3}
MAX_LENGTH = 256  # tokens; pairs with a longer side are left out
COLUMNS = {
    "system": "{system}",
    "parameters": "{parameters:,}",
    "target tokens/s": "{target_tokens_per_second:,.0f}",
    "speed, ours / theirs (min to max)": "{ratio}",
    "peak memory, MiB": "{peak_memory_mib:,.0f}",
    "memory, ours / theirs": "{memory_ratio:.2f}",
}


def build_parser() -> argparse.ArgumentParser:
    parser = start_parser(__doc__)
    parser.add_argument("--size", choices=tuple(SIZES), default="tiny", help="size of the models; default: %(default)s")
    add_model_options(parser)
    parser.add_argument("--target", type=Path, help="translations of --source, one per line")
    parser.add_argument("--pairs", type=int, default=5_000, help="sentence pairs to read; default: %(default)s")
    parser.add_argument(
        "--tokens_per_batch",
        type=int,
        default=4_096,
        help="limit of the tokens of an update on each side, with padding; default: %(default)s",
    )
    parser.add_argument("--updates", type=int, default=10, help="updates in a repeat; default: %(default)s")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="precision of the computation; bfloat16 means autocast to bfloat16; default: %(default)s",
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="device of both systems; default: %(default)s"
    )
    return parser


def take_batches(pairs: Sequence[tuple[str, str]], config: VaswaniConfig, args: argparse.Namespace) -> list[Batch]:
    """Return the first `--updates` batches, made as in section 5.1. The vocabulary is learnt from `pairs`."""
    tokenizer = train_tokenizer([side for pair in pairs for side in pair], vocab_size=config.vocab_size)
    sides = (tokenizer(list(side)).input_ids for side in zip(*pairs, strict=True))
    kept = [pair for pair in zip(*sides, strict=True) if max(map(len, pair)) <= MAX_LENGTH]
    columns = [
        TokenColumn(np.concatenate(side), np.cumsum([0, *map(len, side)], dtype=np.int64))
        for side in zip(*kept, strict=True)
    ]
    data = TokenizedPairs(*columns, pad_token_id=config.pad_token_id)
    lengths = (column.lengths for column in columns)
    plan = plan_updates(*lengths, tokens_per_batch=args.tokens_per_batch, seed=0, epoch=0)
    return [data[rows] for rows in plan[: args.updates]]


def build_system(name: str, config: VaswaniConfig) -> nn.Module:
    torch.manual_seed(0)
    return VaswaniForConditionalGeneration(config) if name == OURS else MarianWithLoss(config)


def build_step(model: nn.Module, dtype: str, device: str) -> Callable[[Batch], None]:
    """Return a function that makes one update of `model`: forward, backward and a step of the optimizer."""
    model.to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def step(batch: Batch) -> None:
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
            output = model(**batch)
        (output if isinstance(output, torch.Tensor) else output.loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()

    return step


def measure_memory(name: str, config: VaswaniConfig, batches: list[Batch], args: argparse.Namespace) -> float:
    """Return the MiB that training the system `name` takes. Call it in a fresh process."""
    torch.set_num_threads(args.threads)

    def work() -> None:
        step = build_step(build_system(name, config), args.dtype, args.device)
        for batch in batches:
            step(batch)

    growth = peak_growth(work)
    return growth if args.device == "cpu" else torch.cuda.max_memory_allocated() / 2**20


def compare(config: VaswaniConfig, batches: list[Batch], args: argparse.Namespace) -> list[dict]:
    """Time our model and Marian on `batches`. Return a row of the result for each model."""
    models = {name: build_system(name, config) for name in (OURS, MARIAN)}
    steps = {name: build_step(model, args.dtype, args.device) for name, model in models.items()}
    # The first update sets up the optimizers, so its time is not counted.
    time_interleaved(steps, batches[:1], repeats=1, clock=args.clock)
    seconds = time_interleaved(steps, batches, repeats=args.repeats, clock=args.clock)
    args.threads = torch.get_num_threads()
    memories = {name: measure_in_child(measure_memory, name, config, batches, args) for name in models}
    num_targets = sum(int((batch["labels"] >= 0).sum()) for batch in batches)
    return [
        {
            "system": name,
            "parameters": num_trained(model),
            "target_tokens_per_second": num_targets / statistics.median(seconds[name]),
            "peak_memory_mib": memories[name],
            "ratio": Ratio.of(seconds[OURS], seconds[name]),
            "memory_ratio": memories[OURS] / memories[name],
            "seconds": seconds[name],
        }
        for name, model in models.items()
    ]


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_arguments(build_parser(), argv, **QUICK)
    if (args.source is None) != (args.target is None):
        raise SystemExit("Only one of --source and --target was given: give both, or neither for the phrasebook.")
    config = build_config(args.size, vocab_size=args.vocab_size)
    pairs = read_pairs(args.source, args.target, count=args.pairs)
    batches = take_batches(pairs, config, args)
    rows = compare(config, batches, args)
    about = {
        "text": f"{len(pairs):,} pairs of {args.source.name if args.source else 'the phrasebook'}",
        "model": describe_model(config),
        "batches": f"{len(batches)} updates of at most {args.tokens_per_batch:,} padded tokens on each side",
        "measured": f"{args.repeats} repeats, the systems took turns at each update, {args.clock} time, {args.device}; "
        f"ratios are medians",
    }
    title = f"Training, {args.size}, {args.dtype}"
    report(title, describe_machine() | about, format_rows(rows, COLUMNS), rows, args.output)


if __name__ == "__main__":
    main()
