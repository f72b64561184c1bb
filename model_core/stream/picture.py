"""Pictures of a detector: a figure by matplotlib, and a table with a sparkline for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from model_core.errors import BadInput
from model_core.stream.answers import Predictive
from model_core.stream.events import Event
from model_core.stream.rows import EVIDENCE, Floats, Layout
from model_core.stream_settings import DEFAULTS, StreamSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1f2933"
BAND = "#9ec5e8"
MIDDLE = "#1f6fb2"
CHANGE = "#c8102e"
PANELS = 6  # outputs shown, at most
BEYOND = 100  # times the evidence that confirms a change: the highest shown
# Labels of a sparkline, and its size in pixels.
POINTS = 240
WIDE = 320.0
HIGH = 48.0


class Pictured(Protocol):
    """The part of a `Detector` that is shown."""

    @property
    def name(self) -> str:
        """Name of the series."""

    @property
    def model(self) -> str:
        """Name of the model; empty before the first label."""

    @property
    def settings(self) -> StreamSettings:
        """Settings of the series."""

    @property
    def seq(self) -> int:
        """Observations so far."""

    @property
    def warming_up(self) -> bool:
        """Whether location and scale are not known yet."""

    @property
    def events(self) -> list[Event]:
        """Changes and anomalies."""

    def retained(self) -> tuple[Layout, Floats] | None:
        """Rows that are retained, and the places in them."""

    def predict(self) -> Predictive | None:
        """Forecast of the next label."""


def draw(detector: Pictured, last: int | None = None) -> Figure:
    """Labels with the predictive mean and band, evidence of a change, and confirmed changes.

    last: number of observations, all that are retained by default. Raises BadInput where matplotlib
    is missing, or nothing is retained.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BadInput("plot: needs matplotlib; install it by `pip install matplotlib`") from error
    kept = detector.retained()
    rows = None if kept is None else kept[1][-(last or len(kept[1])) :]
    if kept is None or rows is None or not len(rows):
        raise BadInput("plot: nothing is retained; update first, with a `history` above 0")
    places = kept[0]
    outputs = min(kept[0].model.y_dim, PANELS)
    first = detector.seq - len(rows)
    at = np.arange(first, detector.seq)
    figure = Figure(figsize=(10, 1.5 + 2.0 * outputs), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    heights = [2.0] * outputs + [1.0]
    panels = figure.subplots(outputs + 1, 1, sharex=True, height_ratios=heights, squeeze=False)[
        :, 0
    ]
    answers = rows[:, places.answer].reshape(len(rows), 3, -1)
    for i in range(outputs):
        label = rows[:, places.y][:, i]
        answer = answers[:, :, i]
        panels[i].fill_between(at, answer[:, 1], answer[:, 2], color=BAND, alpha=0.5, lw=0)
        panels[i].plot(at, answer[:, 0], color=MIDDLE, lw=1.2)
        panels[i].plot(at, label, ".", color=INK, ms=3)
        panels[i].set_ylim(*_limits(label))
    _draw_evidence(panels[-1], at, rows[:, EVIDENCE], detector.settings.false_alarm_every)
    panels[0].set_title(detector.name or detector.model, loc="left")
    starts = [start for start in confirmed(detector) if start > first]
    for panel in panels:
        for start in starts:
            panel.axvline(start - 0.5, color=CHANGE, lw=1.1, ls=(0, (5, 2)))
        panel.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_evidence(panel: Axes, at: Any, evidence: Floats, threshold: float | None) -> None:
    """Evidence of a change, and where it confirms one: None where time does."""
    top = BEYOND * (threshold or DEFAULTS.threshold)
    panel.set_yscale("log")
    shown = np.clip(evidence, 1.0, top)
    panel.fill_between(at, 1.0, shown, color=CHANGE, alpha=0.25, lw=0, step="mid")
    if threshold is not None:
        panel.axhline(threshold, color=INK, lw=0.8, ls=(0, (4, 3)))
    panel.set(ylim=(1.0, top), ylabel="evidence: 1 in", xlabel="observation")


def confirmed(detector: Pictured) -> list[int]:
    """Starts of confirmed changes."""
    return sorted(event.start for event in detector.events if event.state == "confirmed")


def _limits(label: Floats) -> tuple[float, float]:
    """Keep the data in view: the band of a first hypothesis can be a hundred times as wide."""
    seen = label[np.isfinite(label)]
    low, high = (float(seen.min()), float(seen.max())) if len(seen) else (0.0, 1.0)
    room = 0.4 * ((high - low) or abs(high) or 1.0)
    return low - room, high + room


def html(detector: Pictured) -> str:
    """A small table: model, observations, last change, what is expected next; and a sparkline."""
    kept = detector.retained()
    changes = confirmed(detector)
    inputs = kept is not None and kept[0].model.x_dim > 0
    expected = None if inputs else detector.predict()
    state = "warming up" if detector.warming_up else f"{len(changes)} changes confirmed"
    table = {
        "model": detector.model or "chosen by the first label",
        "observations": f"{detector.seq} ({state})",
        "last change": f"at {changes[-1]}" if changes else "none",
        "next label": "by its input: predict(x)" if inputs else "not known yet",
    }
    if expected is not None and expected.probabilities is not None:
        table["next label"] = "probabilities " + _shown(expected.probabilities)
    elif expected is not None:
        table["next label"] = f"{_shown(expected.mean)} ± {_shown(expected.sd)}"
    cells = "".join(
        f"<tr><th style='text-align:left'>{name}</th><td>{escape(value)}</td></tr>"
        for name, value in table.items()
    )
    return f"<table>{cells}</table>{_sparkline(detector, changes)}"


def _shown(value: Any) -> str:
    return ", ".join(f"{number:.4g}" for number in (value if isinstance(value, list) else [value]))


def _sparkline(detector: Pictured, changes: list[int]) -> str:
    """The first output of the last labels, with lines at confirmed changes."""
    kept = detector.retained()
    if kept is None:
        return ""
    y = kept[1][-POINTS:, kept[0].y.start]
    finite = np.flatnonzero(np.isfinite(y))
    if len(finite) < 2:
        return ""
    step = WIDE / max(len(y) - 1, 1)
    first = detector.seq - len(y)
    span = float(np.ptp(y[finite])) or 1.0
    heights = HIGH - 2 - (y[finite] - y[finite].min()) / span * (HIGH - 4)
    points = " ".join(
        f"{i * step:.1f},{height:.1f}" for i, height in zip(finite, heights, strict=True)
    )
    lines = "".join(
        f"<path d='M{(start - first - 0.5) * step:.1f} 0V{HIGH:g}' stroke='{CHANGE}'/>"
        for start in changes
        if start > first
    )
    return (
        f"<svg width='{WIDE:g}' height='{HIGH:g}' role='img' aria-label='last labels'>"
        f"<polyline points='{points}' fill='none' stroke='{MIDDLE}'/>{lines}</svg>"
    )
