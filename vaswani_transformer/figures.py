"""Write figures of matplotlib to files; `training.curves` and `attention.drawing` draw them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def require_matplotlib() -> None:
    """Raise a ValueError with the command that installs matplotlib, if it is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ValueError('Drawing needs matplotlib: pip install "vaswani-transformer[plots]"') from error


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure as .svg or .png, by the suffix of `path`; the same figure always gives the same bytes.

    Text in an SVG stays text in a font of the reader's machine: it can be searched, and any script is shown.
    """
    path = Path(path)
    if path.suffix not in (".svg", ".png"):
        raise ValueError(f"a figure is saved as .svg or .png; got {path.name!r}.")
    import matplotlib

    path.parent.mkdir(parents=True, exist_ok=True)
    # By default matplotlib names the parts of an SVG by random numbers and dates it.
    with matplotlib.rc_context({"svg.hashsalt": "vaswani", "svg.fonttype": "none"}), warnings.catch_warnings():
        if path.suffix == ".svg":
            warnings.filterwarnings("ignore", message="Glyph")  # the reader's fonts draw it
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path
