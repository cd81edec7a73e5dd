"""Learning curves of one or several runs, from their logs: loss, perplexity, BLEU, rate, speed."""

import math
from collections.abc import Sequence
from pathlib import Path

from ..figures import require_matplotlib, save_figure
from .log import LOG_FILE, read_log

# Titles; names in the log of training, drawn thin, and of evaluations, drawn with dots; scales.
PANELS = (
    ("loss, nats per token", "loss", None, "linear"),
    ("perplexity per sub-word (thin: training; dots: development set)", "perplexity", "dev_perplexity", "log"),
    ("BLEU of the development set", None, "dev_bleu", "linear"),
    ("learning rate", "lr", None, "linear"),
    ("target tokens per second", "target_tokens_per_second", None, "linear"),
)
THIN, DOTS = {"linewidth": 1, "alpha": 0.7}, {"linewidth": 1.5, "marker": ".", "markersize": 5}


def draw_curves(runs: Sequence[Path], path: Path) -> Path:
    """Draw the logs of the run folders `runs` into the picture `path`, .svg or .png.

    Raises:
        FileNotFoundError: if a run has no log.
        ValueError: if the log of a run is empty or damaged, if `path` is no such picture, or if matplotlib is missing.
    """
    names = [run.resolve().name for run in runs]
    logs = {name if names.count(name) == 1 else str(run): read_log(run) for name, run in zip(names, runs, strict=True)}
    for name, log in logs.items():
        if not log:
            raise ValueError(f"the {LOG_FILE} of {name} is empty; there is nothing to draw yet.")
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 9.5), dpi=120, facecolor="white", layout="constrained")
    *axes, corner = figure.subplots(3, 2, sharex=True).flat
    for (title, training, development, scale), panel in zip(PANELS, axes, strict=True):
        for number, (name, log) in enumerate(logs.items()):
            for key, style in ((training, THIN), (development, DOTS)):
                # A run that diverges logs infinity, an interval without an update None.
                logged = [line for line in log if line.get(key) is not None]
                points = [(line["update"], line[key]) for line in logged if math.isfinite(line[key])]
                if points:
                    panel.plot(*zip(*points, strict=True), color=f"C{number}", label=name, **style)
        panel.set_title(title, fontsize="medium")
        panel.set_xlabel("updates")
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.tick_params(labelbottom=True)  # a shared axis has figures below the last row only, which has a gap
        panel.set_yscale(scale)
        if scale == "linear":
            panel.set_ylim(bottom=max(0, panel.get_ylim()[0]))  # nothing drawn is negative; the margin may be
        panel.grid(alpha=0.3)
        if not panel.lines:
            panel.text(0.5, 0.5, "not in the log", transform=panel.transAxes, ha="center", va="center", color="grey")
    corner.set_axis_off()
    corner.legend(*axes[0].get_legend_handles_labels(), loc="center", frameon=False, fontsize="large")
    return save_figure(figure, path)
