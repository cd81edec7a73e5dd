"""Learning curves of one or several runs, from their logs: loss, perplexity, BLEU, rate, speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..figures import require_matplotlib, save_figure
from .log import LOG_FILE, read_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Panel:
    """A drawing of values of the log over updates."""

    title: str
    training: str | None = None  # name in the log; drawn thin
    development: str | None = None  # drawn with a dot for each evaluation
    scale: str = "linear"


PANELS = (
    Panel("loss, nats per token", training="loss"),
    Panel("perplexity per sub-word (thin: training; dots: development set)", "perplexity", "dev_perplexity", "log"),
    Panel("BLEU of the development set", development="dev_bleu"),
    Panel("learning rate", training="lr"),
    Panel("target tokens per second", training="target_tokens_per_second"),
)


def draw_curves(runs: Sequence[Path], path: Path) -> Path:
    """Draw the logs of the run folders `runs` into the picture `path`, .svg or .png.

    Raises:
        FileNotFoundError: if a run has no log.
        ValueError: if the log of a run is empty or damaged, if `path` is no such picture, or if matplotlib is missing.
    """
    logs = {_name(run, runs): read_log(run) for run in runs}
    for name, log in logs.items():
        if not log:
            raise ValueError(f"the {LOG_FILE} of {name} is empty; there is nothing to draw yet.")
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 9.5), dpi=120, facecolor="white", layout="constrained")
    *axes, corner = figure.subplots(3, 2, sharex=True).flat
    for panel, panel_axes in zip(PANELS, axes, strict=True):
        _draw_panel(panel_axes, panel, logs)
    corner.set_axis_off()
    corner.legend(*axes[0].get_legend_handles_labels(), loc="center", frameon=False, fontsize="large")
    return save_figure(figure, path)


def _name(run: Path, runs: Sequence[Path]) -> str:
    """The folder's name, or the whole path if another run has the same name."""
    names = [other.resolve().name for other in runs]
    return run.resolve().name if names.count(run.resolve().name) == 1 else str(run)


def _draw_panel(axes: Axes, panel: Panel, logs: dict[str, list[dict]]) -> None:
    has_points = False
    for number, (name, log) in enumerate(logs.items()):
        for key, style in (
            (panel.training, {"linewidth": 1, "alpha": 0.7}),
            (panel.development, {"linewidth": 1.5, "marker": ".", "markersize": 5}),
        ):
            # A run that diverges logs infinity, an interval without an update None.
            logged = [line for line in log if line.get(key) is not None]
            points = [(line["update"], line[key]) for line in logged if math.isfinite(line[key])]
            has_points = has_points or bool(points)
            updates, values = zip(*points, strict=True) if points else ((), ())
            axes.plot(updates, values, color=f"C{number}", label=name if key == panel.training else None, **style)
    axes.set_title(panel.title, fontsize="medium")
    axes.set_xlabel("updates")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.tick_params(labelbottom=True)  # a shared axis has figures below the last row only, which has a gap
    axes.set_yscale(panel.scale)
    if panel.scale == "linear":
        axes.set_ylim(bottom=max(0, axes.get_ylim()[0]))  # nothing drawn is negative; the margin may be
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if not has_points:
        axes.set_yticks([])
        axes.text(0.5, 0.5, "not in the log", transform=axes.transAxes, ha="center", va="center", color="grey")
