"""A drawn chart as SVG and PNG, and the look that all charts share.

Colours are safe for the colour-blind (Okabe & Ito); a method looks the same in every chart.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray

Floats = NDArray[np.float64]
P = ParamSpec("P")

INK = "#1f2933"
QUIET = "#5f6b7a"
CURRENT = "#d55e00"  # data of the current task
EARLIER = "#009e73"  # data of earlier tasks
CHANGE = "#c8102e"  # true switches
CHOSEN = "#0072b2"  # selected times
SEGMENTS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#5f6b7a")
BELIEF = "Blues"
VALUE = "viridis"
DPI = 200
LEGEND_LETTERS = 150  # of keys and names in a row of the legend, 10 inches wide
KEY_LETTERS = 7  # of a key without its name
STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": QUIET,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "errorbar.capsize": 3,
    "grid.color": "#e4e7eb",
    "grid.linewidth": 0.6,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
    "svg.hashsalt": "moca",
    "xtick.color": QUIET,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.color": QUIET,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 8,
}


class Look(NamedTuple):
    """Look of a method: colour, marker and line style each identify it."""

    colour: str
    marker: str
    line: str


METHODS = {
    "MOCA": Look("#0072b2", "o", "-"),
    "oracle": Look("#1f2933", "D", "--"),
    "SW5": Look("#e69f00", "s", "-"),
    "SW10": Look("#d55e00", "^", "-"),
    "SW50": Look("#cc79a7", "v", "-"),
    "TOE": Look("#009e73", "X", ":"),
    "COE": Look("#56b4e9", "P", ":"),
}
OTHERS = (Look("#7f5539", "o", "--"), Look("#5f6b7a", "s", "--"), Look("#6a3d9a", "D", ":"))
MOCA = METHODS["MOCA"].colour


def look(method: str) -> Look:
    """Look of a method, the same in every figure; methods not in the paper share `OTHERS`."""
    return METHODS.get(method) or OTHERS[zlib.crc32(method.encode()) % len(OTHERS)]


def ordered(methods: Iterable[str]) -> list[str]:
    """In the order of the paper; others after them, in their own order."""
    known = list(METHODS)
    return sorted(methods, key=lambda name: known.index(name) if name in METHODS else len(known))


class Chart(NamedTuple):
    """A drawn figure. description: its alternative text."""

    title: str
    description: str
    figure: Figure

    def svg(self) -> bytes:
        """The figure as an SVG document."""
        written = io.BytesIO()
        with mpl.rc_context(STYLE):
            self.figure.savefig(written, format="svg", metadata={"Date": None}, dpi=DPI)
        return written.getvalue()

    def save(self, stem: Path) -> list[Path]:
        """Write `stem.svg` and `stem.png`; returns the files."""
        stem.parent.mkdir(parents=True, exist_ok=True)
        vector = stem.with_name(stem.name + ".svg")
        picture = stem.with_name(stem.name + ".png")
        vector.write_bytes(self.svg())
        about = {"Title": self.title, "Description": self.description}
        self.figure.savefig(picture, metadata=about, dpi=DPI)
        return [vector, picture]


def styled(draw: Callable[P, Chart]) -> Callable[P, Chart]:
    """Draw in the look of all charts."""

    @wraps(draw)
    def run(*args: P.args, **kwargs: P.kwargs) -> Chart:
        with mpl.rc_context(STYLE):
            return draw(*args, **kwargs)

    return run


def canvas(width: float, height: float) -> Figure:
    """An empty figure; inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def row(width: float, height: float, count: int) -> tuple[Figure, list[Axes]]:
    """A figure of panels side by side; inches."""
    figure = canvas(width, height)
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def finished(figure: Figure, title: str, description: str) -> Chart:
    """Add the title, and below all panels one legend of all named artists."""
    figure.suptitle(literal(title), fontsize=11, x=0.02, ha="left", color=INK)
    keys: dict[str, Any] = {}
    for axes in figure.axes:
        for key, name in zip(*axes.get_legend_handles_labels(), strict=True):
            keys.setdefault(name, key)
    if keys:
        widest = KEY_LETTERS + max(map(len, keys))
        fitting = int(figure.get_figwidth() / 10 * LEGEND_LETTERS / widest)
        legend = figure.legend(
            list(keys.values()),
            [literal(name) for name in keys],
            loc="outside lower center",
            ncols=max(1, min(fitting, len(keys))),
        )
        for handle in legend.legend_handles:
            if isinstance(handle, PathCollection):
                handle.set_alpha(1.0)  # that of the first point may be faint
    return Chart(title, description, figure)


def colour_bar(axes: Axes, coloured: Any, label: str) -> None:
    """A colour bar beside the panel."""
    assert isinstance(axes.figure, Figure)
    bar = axes.figure.colorbar(coloured, ax=axes, pad=0.01, aspect=25, format="{x:g}")
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)
    bar.ax.grid(False)
    bar.outline.set_visible(False)


def reach(mean: Floats, low: Floats, high: Floats) -> Floats:
    """Lengths (2, n) of error bars: a mean may lie outside of its bootstrap interval."""
    return np.maximum([mean - low, high - mean], 0)


def literal(text: str) -> str:
    """Text that matplotlib does not read as mathematics."""
    return text.replace("$", r"\$")
