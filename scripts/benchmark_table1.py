"""Measure table 1: how time and memory of each kind of layer grow with the length n of the sentence.

    python scripts/benchmark_table1.py
    python scripts/benchmark_table1.py --lengths 512 1024 2048 4096 8192 --width 64 --window 64 --threads 1

The layers are self-attention, self-attention restricted to a window of r, a recurrent layer (LSTM) and a convolution of
k positions. All have width d, and each runs forward and backward over one sentence. Self-attention is measured twice:
as equation 1 is written, with its n x n weights in memory, and with PyTorch's fused kernel, which never holds all these
weights. All attention layers include their four projections, whose cost of n d^2 the formulas of the table leave out.

Memory is the peak growth of the resident memory of a fresh process during a step, which is forward and backward over
one sentence. The first table gives the growth of time and memory as n^e, where e is computed from the two longest
sentences: log(ratio of the values) / log(ratio of the lengths). The other two tables give the values.
"""

import math
import statistics
from argparse import Namespace
from collections.abc import Callable, Sequence

import torch
from benchmark_common import (
    describe_machine,
    format_table,
    measure_in_child,
    parse_arguments,
    peak_growth,
    report,
    start_parser,
    time_interleaved,
)
from torch import nn

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.kernels.window import WINDOW
from vaswani_transformer.model.layers_vaswani import MultiHeadAttention

Forward = Callable[[torch.Tensor], torch.Tensor]
# In this file, `sizes` holds the arguments of the program: width (d), heads (h), window (r) and kernel_size (k).


def build_attention(sizes: Namespace, kernel: str, window: int | None = None) -> Forward:
    config = VaswaniConfig(d_model=sizes.width, num_heads=sizes.heads)
    config._attn_implementation = kernel
    attention = MultiHeadAttention(config, 0, window=window)
    return lambda x: attention(x)[0]


def build_recurrent(sizes: Namespace) -> Forward:
    lstm = nn.LSTM(sizes.width, sizes.width, batch_first=True)
    return lambda x: lstm(x)[0]


def build_convolution(sizes: Namespace) -> Forward:
    convolution = nn.Conv1d(sizes.width, sizes.width, sizes.kernel_size, padding="same")
    return lambda x: convolution(x.transpose(1, 2)).transpose(1, 2)


# The rows of table 1: complexity per layer, sequential operations and maximum path length as in the paper, and a
# function that builds the layer.
LAYERS: dict[str, tuple[str, str, str, Callable[[Namespace], Forward]]] = {
    "self-attention": ("n^2 d", "1", "1", lambda sizes: build_attention(sizes, "eager")),
    "self-attention, fused": ("n^2 d", "1", "1", lambda sizes: build_attention(sizes, "sdpa")),
    "recurrent": ("n d^2", "n", "n", build_recurrent),
    "convolutional": ("k n d^2", "1", "log_k n", build_convolution),
    "self-attention, restricted": ("r n d", "1", "n / r", lambda sizes: build_attention(sizes, WINDOW, sizes.window)),
}


def build_step(name: str, sizes: Namespace) -> Callable[[dict], None]:
    """Return a function that runs a layer forward and backward over `batch["x"]` (1, n, d).

    It computes the gradients of the weights and of the input.
    """
    torch.manual_seed(0)
    forward = LAYERS[name][-1](sizes)
    return lambda batch: forward(batch["x"]).sum().backward()


def random_batch(length: int, sizes: Namespace) -> dict:
    return {"x": torch.randn(1, length, sizes.width, requires_grad=True)}


def measure_seconds(lengths: Sequence[int], sizes: Namespace, *, repeats: int, clock: str) -> dict[str, list[float]]:
    """Return the seconds that a step of each layer takes: for each length, the median over `repeats` repeats."""
    steps = {name: build_step(name, sizes) for name in LAYERS}
    seconds = {name: [] for name in LAYERS}
    for length in lengths:
        batch = random_batch(length, sizes)
        for step in steps.values():
            step(batch)
        for name, turns in time_interleaved(steps, [batch], repeats=repeats, clock=clock).items():
            seconds[name].append(statistics.median(turns))
    return seconds


def measure_memory(name: str, length: int, sizes: Namespace) -> float:
    """Return the MiB that a step of the layer `name` takes at its peak."""
    step = build_step(name, sizes)
    batch = random_batch(length, sizes)
    step(random_batch(16, sizes))  # the first call loads libraries, whose memory is not to be counted
    return peak_growth(lambda: step(batch))


def growth(lengths: Sequence[int], values: Sequence[float]) -> float:
    """Return the exponent e of n^e between the two longest sentences, or NaN if one of their values is not positive."""
    if min(values[-2:]) <= 0:
        return math.nan
    return math.log(values[-1] / values[-2]) / math.log(lengths[-1] / lengths[-2])


def format_result(rows: Sequence[dict], lengths: Sequence[int]) -> str:
    header = ["", "complexity per layer", "sequential operations", "maximum path length", "time", "memory"]
    cells = [
        [
            row["layer"],
            *(f"O({formula})" for formula in LAYERS[row["layer"]][:3]),
            *(f"n^{growth(lengths, row[key]):.2f}" for key in ("seconds", "peak_mib")),
        ]
        for row in rows
    ]
    tables = [format_table(header, cells)]
    for title, key, unit in (("time, ms", "seconds", 1000), ("memory, MiB", "peak_mib", 1)):
        cells = [[row["layer"], *(f"{unit * value:,.1f}" for value in row[key])] for row in rows]
        tables.append(format_table([title, *(f"n = {length:,}" for length in lengths)], cells))
    return "\n\n".join(tables)


def main(argv: Sequence[str] | None = None) -> None:
    parser = start_parser(__doc__)
    lengths = [512, 1024, 2048, 4096, 8192]
    parser.add_argument("--lengths", type=int, nargs="+", default=lengths, help="n, ascending; default: 512 to 8192")
    parser.add_argument("--width", type=int, default=64, help="d; default: %(default)s")
    parser.add_argument("--heads", type=int, default=1, help="h; default: %(default)s")
    parser.add_argument("--window", type=int, default=64, help="r; default: %(default)s")
    parser.add_argument("--kernel_size", type=int, default=3, help="k; default: %(default)s")
    args = parse_arguments(parser, argv, lengths=[512, 1024], repeats=2)
    seconds = measure_seconds(args.lengths, args, repeats=args.repeats, clock=args.clock)
    rows = []
    for name in LAYERS:
        memory = [measure_in_child(measure_memory, name, length, args) for length in args.lengths]
        rows.append({"layer": name, "lengths": args.lengths, "seconds": seconds[name], "peak_mib": memory})
    description = describe_machine() | {
        "layers": f"d {args.width}, h {args.heads}, r {args.window}, k {args.kernel_size}, float32, "
        f"forward and backward over one sentence",
        "time": f"{args.clock}, median of {args.repeats} turns",
    }
    report("Table 1, growth with the length", description, format_result(rows, args.lengths), rows, args.output)


if __name__ == "__main__":
    main()
