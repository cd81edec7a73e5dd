"""Table 1, measured: how time and memory of a layer grow with the length n of the sentence, by the kind of the layer.

    python scripts/benchmark_table1.py --plot table1.svg
    python scripts/benchmark_table1.py --lengths 512 1024 2048 4096 8192 --width 64 --window 64 --threads 1

Self-attention, self-attention restricted to a window of r, a recurrent layer (LSTM) and a convolution of k positions,
all of width d, each forward and backward over one sentence. Self-attention is there twice: as equation 1 is written,
with its n x n weights in memory, and by PyTorch's fused kernel, which never has all of them at once. Both attentions
include their four projections, n d^2, which the table's formulas leave out.

Memory is how far the resident memory of a fresh process grows over what it was before the step, at its peak. The
exponents are slopes between the two longest sentences: t grows as n^e.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from benchmark_common import (
    add_report_options,
    add_timing_options,
    describe_machine,
    format_rows,
    format_table,
    measure_in_child,
    peak_growth,
    report,
    time_interleaved,
)
from torch import nn

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.attention.drawing import save_figure
from vaswani_transformer.model.attention_window_vaswani import build_blocks, window_reach
from vaswani_transformer.model.layers_vaswani import MultiHeadAttention

Forward = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Sizes:
    """d, h, r and k."""

    width: int
    heads: int
    window: int
    kernel_size: int


def build_attention(sizes: Sizes, kernel: str) -> Forward:
    config = VaswaniConfig(d_model=sizes.width, num_heads=sizes.heads)
    config._attn_implementation = kernel
    attention = MultiHeadAttention(config, 0)
    return lambda x: attention(x)[0]


def build_restricted_attention(sizes: Sizes) -> Forward:
    attention = MultiHeadAttention(VaswaniConfig(d_model=sizes.width, num_heads=sizes.heads), 0)
    reach = window_reach(sizes.window, is_causal=False)

    def forward(x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        blocks = build_blocks(*reach, num_queries=length, num_keys=length, visible=None, device=x.device)
        return attention(x, attention_mask=blocks)[0]

    return forward


def build_recurrent(sizes: Sizes) -> Forward:
    lstm = nn.LSTM(sizes.width, sizes.width, batch_first=True)
    return lambda x: lstm(x)[0]


def build_convolution(sizes: Sizes) -> Forward:
    convolution = nn.Conv1d(sizes.width, sizes.width, sizes.kernel_size, padding="same")
    return lambda x: convolution(x.transpose(1, 2)).transpose(1, 2)


@dataclass(frozen=True)
class Layer:
    """A row of table 1: the paper's formulas, and the layer itself."""

    complexity: str
    sequential: str
    path: str
    build: Callable[[Sizes], Forward]


LAYERS = {
    "self-attention": Layer("n^2 d", "1", "1", lambda sizes: build_attention(sizes, "eager")),
    "self-attention, fused": Layer("n^2 d", "1", "1", lambda sizes: build_attention(sizes, "sdpa")),
    "recurrent": Layer("n d^2", "n", "n", build_recurrent),
    "convolutional": Layer("k n d^2", "1", "log_k n", build_convolution),
    "self-attention, restricted": Layer("r n d", "1", "n / r", build_restricted_attention),
}


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        default=[512, 1024, 2048, 4096, 8192],
        help="n, ascending; default: 512 to 8192",
    )
    parser.add_argument("--width", type=int, default=64, help="d; default: %(default)s")
    parser.add_argument("--heads", type=int, default=1, help="h; default: %(default)s")
    parser.add_argument("--window", type=int, default=64, help="r; default: %(default)s")
    parser.add_argument("--kernel_size", type=int, default=3, help="k; default: %(default)s")
    parser.add_argument("--plot", type=Path, help="draw the growth into this picture, .svg or .png")
    add_timing_options(parser)
    add_report_options(parser)
    return parser


# The measuring


def build_step(name: str, sizes: Sizes) -> Callable[[dict], None]:
    """Return forward and backward of a layer over `batch["x"]` (1, n, d), with the gradients of weights and input."""
    torch.manual_seed(0)
    forward = LAYERS[name].build(sizes)
    return lambda batch: forward(batch["x"]).sum().backward()


def random_batch(length: int, sizes: Sizes) -> dict:
    return {"x": torch.randn(1, length, sizes.width, requires_grad=True)}


def measure_seconds(lengths: Sequence[int], sizes: Sizes, *, repeats: int, clock: str) -> dict[str, list[float]]:
    """Return the seconds of a step of each layer, one number per length: the median of `repeats`."""
    steps = {name: build_step(name, sizes) for name in LAYERS}
    seconds: dict[str, list[float]] = {name: [] for name in LAYERS}
    for length in lengths:
        batch = random_batch(length, sizes)
        for step in steps.values():
            step(batch)
        for name, turns in time_interleaved(steps, [batch], repeats=repeats, clock=clock).items():
            seconds[name].append(statistics.median(turns))
    return seconds


def measure_memory(name: str, length: int, sizes: Sizes) -> float:
    """Return the MiB that a step takes at its peak."""
    step, batch = build_step(name, sizes), random_batch(length, sizes)
    step(random_batch(16, sizes))  # what a library loads at its first call does not belong to the layer
    return peak_growth(lambda: step(batch))


def growth(lengths: Sequence[int], values: Sequence[float]) -> float:
    """Return the exponent e of n^e between the two longest sentences; NaN if nothing was measured."""
    if min(values[-2:]) <= 0:
        return math.nan
    return math.log(values[-1] / values[-2]) / math.log(lengths[-1] / lengths[-2])


# The report


def format_result(rows: Sequence[dict], lengths: Sequence[int]) -> str:
    formulas = {
        "": "{layer}",
        "complexity per layer": "O({complexity})",
        "sequential operations": "O({sequential})",
        "maximum path length": "O({path})",
        "time": "n^{time_exponent:.2f}",
        "memory": "n^{memory_exponent:.2f}",
    }
    tables = [format_rows([row | vars(LAYERS[row["layer"]]) for row in rows], formulas)]
    for title, key, unit in (("time, ms", "seconds", 1000), ("memory, MiB", "peak_mib", 1)):
        cells = [[row["layer"], *(f"{unit * value:,.1f}" for value in row[key])] for row in rows]
        tables.append(format_table([title, *(f"n = {length:,}" for length in lengths)], cells))
    return "\n\n".join(tables)


def draw_growth(rows: Sequence[dict], lengths: Sequence[int], path: Path) -> Path:
    """Draw time and memory over n, both axes logarithmic, so that n^e is a line of slope e."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), dpi=120, facecolor="white", layout="constrained")
    panels = (
        ("time of a step, seconds", "seconds", "time_exponent"),
        ("peak memory, MiB", "peak_mib", "memory_exponent"),
    )
    for axes, (title, key, exponent) in zip(figure.subplots(1, 2), panels, strict=True):
        for row in rows:
            axes.plot(lengths, row[key], marker=".", label=f"{row['layer']}: n^{row[exponent]:.2f}")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel("n, length of the sentence")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize="small")
    return save_figure(figure, path)


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser()
    args = parser.parse_args(argv)
    lengths = args.lengths
    if len(lengths) < 2 or sorted(set(lengths)) != lengths or lengths[0] < 1:
        parser.error(f"--lengths must be two or more that ascend, got {' '.join(map(str, lengths))}")
    if args.plot is not None and args.plot.suffix not in (".svg", ".png"):  # known before all is measured
        parser.error(f"--plot draws .svg or .png, got {args.plot.name}")
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    sizes = Sizes(args.width, args.heads, args.window, args.kernel_size)
    seconds = measure_seconds(lengths, sizes, repeats=args.repeats, clock=args.clock)
    rows = []
    for name in LAYERS:
        memory = [measure_in_child(measure_memory, name, length, sizes) for length in lengths]
        exponents = {"time_exponent": growth(lengths, seconds[name]), "memory_exponent": growth(lengths, memory)}
        rows.append({"layer": name, "lengths": lengths, "seconds": seconds[name], "peak_mib": memory, **exponents})
    description = describe_machine() | {
        "layers": f"d {sizes.width}, h {sizes.heads}, r {sizes.window}, k {sizes.kernel_size}, float32, "
        f"forward and backward over one sentence",
        "time": f"{args.clock}, median of {args.repeats} turns",
    }
    report("Table 1, growth with the length", description, format_result(rows, lengths), rows, args)
    if args.plot is not None:
        print(draw_growth(rows, lengths, args.plot))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
