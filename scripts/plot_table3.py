"""Draw how the perplexity of the development set fell in the rows of Table 3, each group of rows beside base.

python scripts/plot_table3.py scripts/benchmarks/results/table3_reduced --output curves.svg
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from print_table3 import Row, read_rows

from vaswani_transformer.figures import require_matplotlib, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Title of a panel, and how the names of its rows begin; base is in all of them.
PANELS = {
    "heads (A), size of keys (B)": ("A", "B"),
    "size (C, big)": ("C", "big"),
    "dropout, label smoothing (D)": ("D",),
    "learned positions (E), base with other seeds": ("E", "base_seed"),
}
HIGHEST = 1.2  # times the worst of the rows' best perplexities; above it all rows look alike


def draw(rows: Sequence[Row], path: Path) -> Path:
    """Draw the rows into the picture `path`, .svg or .png.

    Raises:
        ValueError: if `path` is no such picture, or if matplotlib is missing.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), dpi=100, facecolor="white", layout="constrained")
    best = [min(perplexity for *_, perplexity in row.curve) for row in rows]
    for axes, (title, names) in zip(figure.subplots(2, 2, sharex=True, sharey=True).flat, PANELS.items(), strict=True):
        for row in rows:
            if row.name == "base" or row.name.startswith(names):
                _draw_row(axes, row)
        axes.set(title=title, xlabel="updates", ylim=(0.95 * min(best), HIGHEST * max(best)))
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(frameon=False)
    figure.supylabel("perplexity of the development set, per sub-word (dot: the least)")
    return save_figure(figure, path)


def _draw_row(axes: Axes, row: Row) -> None:
    updates, _, perplexities = zip(*row.curve, strict=True)
    best = perplexities.index(min(perplexities))
    color = {"color": "grey"} if row.name == "base" else {}
    axes.plot(updates, perplexities, marker="o", markevery=[best], label=row.name, **color)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds a folder for each row")
    parser.add_argument("--output", type=Path, required=True, help=".svg or .png")
    args = parser.parse_args()
    try:
        print(draw(read_rows(args.folder), args.output))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
