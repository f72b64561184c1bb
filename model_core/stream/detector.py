"""A detector of changes in one series: the pipeline of a stream, without a server.

from model_core import Detector

detector = Detector()
for y in labels:
    answer = detector.update(y)
    if detector.drift_detected:
        print(answer.event)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from model_core.errors import BadInput
from model_core.pictures import drawn_outputs
from model_core.stream.answers import Answer, Predictive
from model_core.stream.detectors import LEVELS, Detectors, Model
from model_core.stream.events import Event
from model_core.stream.parsing import Label
from model_core.stream.rows import EVIDENCE, Floats, RowLayout
from model_core.stream.segmentation import Segment
from model_core.stream.state import KnownRegime
from model_core.stream_settings import DEFAULTS, StreamSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1f2933"
BAND = "#9ec5e8"
MIDDLE = "#1f6fb2"
CHANGE = "#c8102e"
BEYOND = 100  # times the evidence that confirms a change: the highest shown
# Labels of a sparkline, and its size in pixels.
POINTS = 240
WIDE = 320.0
HIGH = 48.0


class Detector:
    """Changes, anomalies and forecasts of one series, one observation at a time.

    The numbers are those of a stream of the service with the same settings. It has the protocol of
    river's drift detectors (`update`, `drift_detected`, `warning_detected`, `clone`) and anomaly
    detectors (`learn_one`, `score_one`). Memory is bounded: by `max_hypotheses`, and `history`
    observations that are retained.
    """

    def __init__(
        self,
        model: Model | None = None,
        *,
        name: str = "",
        quantiles: Sequence[float] = LEVELS,
        **settings: Any,
    ) -> None:
        """See `Detectors`; name: of the series, in its picture and as that of a stream."""
        self._given = {"model": model, "name": name, "quantiles": quantiles, **settings}
        self._all = Detectors([name], model, quantiles=quantiles, **settings)
        self._last: Answer | None = None

    def update(
        self,
        y: Label,
        x: Any = None,
        elapsed: float | None = None,
        changepoint: float | None = None,
        time: datetime | None = None,
    ) -> Answer:
        """Take the next observation; returns its answer.

        y: a number, a list or mapping of them, or None or nan where the label is missing. x: input,
        for models that take one. elapsed: time since the observation before, in steps of the
        hazard. changepoint: probability, where it is known, that the regime changed just before.
        time: when it was made, for events; without an offset UTC. Raises BadInput, and then nothing
        has changed.
        """
        (self._last,) = self._all.update_many(0, [y], [x], [elapsed], [changepoint], [time])
        return self._last

    def update_many(
        self,
        rows: Any,
        x: Any = None,
        elapsed: float | Sequence[float] | None = None,
        time: Iterable[datetime | None] | None = None,
    ) -> list[Answer]:
        """Take many observations, one after the other; see `Detectors.update_many`."""
        try:
            answers = self._all.update_many(0, rows, x, elapsed, time=time)
        except BadInput as error:
            self._last = error.answers[-1] if error.answers else self._last
            raise
        self._last = answers[-1] if answers else self._last
        return answers

    @property
    def drift_detected(self) -> bool:
        """Whether the last observation confirmed a change."""
        return self._last is not None and self._last.drift_detected

    @property
    def warning_detected(self) -> bool:
        """Whether a change is suspected now, and not confirmed yet."""
        pipeline = self._all.pipeline
        return pipeline is not None and pipeline.series[0].track.event is not None

    def learn_one(self, x: Label) -> None:
        """Take the next observation, as river's anomaly detectors do."""
        self.update(x)

    def score_one(self, x: Label) -> float:
        """How unusual an observation would be if it came next, from 0 to 1; changes nothing."""
        return self._all.score(0, x)

    def clone(
        self, new_params: Mapping[str, Any] | None = None, include_attributes: bool = False
    ) -> Detector:
        """A new detector with the same settings, but for `new_params`, that has seen nothing."""
        if include_attributes:
            raise BadInput(
                "include_attributes: a clone has seen nothing; use save and load instead"
            )
        return type(self)(**{**self._given, **(new_params or {})})

    def retained(self) -> tuple[RowLayout, Floats] | None:
        """Rows of the observations that are retained, and the places in them; None: none yet."""
        pipeline = self._all.pipeline
        return None if pipeline is None else (pipeline.layout, pipeline.series[0].retained.rows)

    @property
    def name(self) -> str:
        """Name of the series."""
        return str(self._given["name"])

    @property
    def last(self) -> Answer | None:
        """Answer to the last observation; None before the first, and after `load`."""
        return self._last

    @property
    def model(self) -> str:
        """Name of the model; empty until the first label has decided on it."""
        return self._all.model

    @property
    def settings(self) -> StreamSettings:
        """Settings, defaults filled in."""
        return self._all.settings

    @property
    def seq(self) -> int:
        """Number of observations so far."""
        return self._all.seq(0)

    @property
    def warming_up(self) -> bool:
        """Whether location and scale are not known yet."""
        return self._all.warming_up(0)

    @property
    def events(self) -> list[Event]:
        """Changes that are not withdrawn, each in its latest state, oldest first.

        Of the last 1,000. Those that are withdrawn are in the answers, and in `Detectors.events`.
        """
        return self._all.events(0)

    @property
    def anomalies(self) -> list[Event]:
        """Anomaly events, oldest first: the last 1,000."""
        return self._all.anomalies(0)

    @property
    def regimes(self) -> list[KnownRegime]:
        """Regimes that are remembered; see `Detectors.regimes`."""
        return self._all.regimes(0)

    def segments(self) -> list[Segment]:
        """Regimes of what is retained; see `Detectors.segments`."""
        return self._all.segments(0)

    def predict(
        self, x: Any = None, elapsed: float = 1.0, changepoint: float | None = None
    ) -> Predictive | None:
        """Predictive distribution of the next label; see `Detectors.predict`."""
        return self._all.predict(0, x, elapsed, changepoint)

    def forecast(self, horizon: int = 1, seed: int = 0) -> list[Predictive]:
        """Predictive distributions of the next labels; see `Detectors.forecast`."""
        return self._all.forecast(0, horizon, seed)

    def paths(self, horizon: int, count: int, seed: int = 0) -> NDArray[np.float64]:
        """Draws (count, horizon, d) of the next labels; see `Detectors.paths`."""
        return self._all.paths(0, horizon, count, seed)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all there is to one file, from which `load` goes on to the same numbers."""
        self._all.save(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: Model | None = None) -> Detector:
        """What was saved; see `Detectors.load`."""
        detectors = Detectors.load(path, model)
        if len(detectors) != 1:
            raise BadInput(
                f"{os.fspath(path)}: expected one series, got {len(detectors)}; use Detectors"
            )
        made = cls.__new__(cls)
        made._given = {
            "model": detectors._asked,
            "name": detectors._names[0],
            "quantiles": detectors._levels,
            **detectors._given,
        }
        made._all = detectors
        made._last = None
        return made

    def plot(self, last: int | None = None) -> Figure:
        """Labels with the predictive mean and band, evidence of a change, and confirmed changes.

        Of more than six outputs those that changed last, and of the others the first. last: number
        of observations, all that are retained by default. Raises BadInput where matplotlib is
        missing, or nothing is retained.
        """
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError as error:
            raise BadInput(
                "plot: needs matplotlib; install it by `pip install matplotlib`"
            ) from error
        places, rows = self._retained(last)
        changed = [event for event in reversed(self.events) if event.state == "confirmed"]
        explained = [event.explanation for event in changed if event.explanation is not None]
        shown = drawn_outputs(places.model.y_dim, [one.output for one in explained])
        outputs = len(shown)
        first = self.seq - len(rows)
        at = np.arange(first, self.seq)
        figure = Figure(figsize=(10, 1.5 + 2.0 * outputs), dpi=100, layout="constrained")
        FigureCanvasAgg(figure)
        heights = [2.0] * outputs + [1.0]
        panels = figure.subplots(outputs + 1, 1, sharex=True, height_ratios=heights, squeeze=False)[
            :, 0
        ]
        answers = rows[:, places.answer].reshape(len(rows), 3, -1)
        names = self._all.outputs or self._numbered(places.model.y_dim)
        for panel, i in zip(panels, shown, strict=False):
            label = rows[:, places.y][:, i]
            answer = answers[:, :, i]
            panel.fill_between(at, answer[:, 1], answer[:, 2], color=BAND, alpha=0.5, lw=0)
            panel.plot(at, answer[:, 0], color=MIDDLE, lw=1.2)
            panel.plot(at, label, ".", color=INK, ms=3)
            panel.set_ylim(*_limits(label))
            panel.set_ylabel(str(names[i]))
        _draw_evidence(panels[-1], at, rows[:, EVIDENCE], self.settings.false_alarm_every)
        title = self.name or self.model
        if outputs < places.model.y_dim:
            title += f": {outputs} of {places.model.y_dim} outputs, those that changed last first"
        panels[0].set_title(title, loc="left")
        starts = [start for start in self._confirmed() if start > first]
        for panel in panels:
            for start in starts:
                panel.axvline(start - 0.5, color=CHANGE, lw=1.1, ls=(0, (5, 2)))
            panel.spines[["top", "right"]].set_visible(False)
        return figure

    def _retained(self, last: int | None) -> tuple[RowLayout, Floats]:
        """The last rows that are retained, and what is where in them; raises BadInput for none."""
        if last is not None and last < 1:
            raise BadInput(f"last: expected at least 1 observation, got {last}")
        kept = self.retained()
        if kept is None or not len(kept[1]):
            raise BadInput("plot: nothing is retained; update first, with a `history` above 0")
        return kept[0], kept[1][-(last or len(kept[1])) :]

    @staticmethod
    def _numbered(outputs: int) -> list[str]:
        """Names of outputs without; one alone has none."""
        return [""] if outputs == 1 else [f"output {i + 1}" for i in range(outputs)]

    def _confirmed(self) -> list[int]:
        """Starts of confirmed changes."""
        return sorted(event.start for event in self.events if event.state == "confirmed")

    def _repr_html_(self) -> str:
        """A small table: model, observations, last change, what is expected next; a sparkline."""
        kept = self.retained()
        changes = self._confirmed()
        inputs = kept is not None and kept[0].model.x_dim > 0
        expected = None if inputs else self.predict()
        count = "1 change" if len(changes) == 1 else f"{len(changes)} changes"
        state = "warming up" if self.warming_up else f"{count} confirmed"
        table = {
            "model": self.model or "chosen by the first label",
            "observations": f"{self.seq} ({state})",
            "last change": f"at {changes[-1]}" if changes else "none",
            "next label": "by its input: predict(x)" if inputs else "not known yet",
        }
        if expected is not None and expected.probabilities is not None:
            table["next label"] = "probabilities " + _shown(expected.probabilities)
        elif expected is not None:
            point = (expected.quantiles or {})[0.5]
            table["next label"] = f"{_shown(point)}, sd {_shown(expected.sd)}"
        cells = "".join(
            f"<tr><th style='text-align:left'>{name}</th><td>{escape(value)}</td></tr>"
            for name, value in table.items()
        )
        return f"<table>{cells}</table>{_sparkline(kept, self.seq, changes)}"

    def __repr__(self) -> str:
        model = repr(self.model) if self.model else "no model yet"
        return f"Detector({model}, seq={self.seq})"


def _draw_evidence(panel: Axes, at: Any, evidence: Floats, threshold: float | None) -> None:
    """Evidence of a change, and where it confirms one: None where time does."""
    top = BEYOND * (threshold or DEFAULTS.threshold)
    panel.set_yscale("log")
    shown = np.clip(evidence, 1.0, top)
    panel.fill_between(at, 1.0, shown, color=CHANGE, alpha=0.25, lw=0, step="mid")
    if threshold is not None:
        panel.axhline(threshold, color=INK, lw=0.8, ls=(0, (4, 3)))
    panel.set(ylim=(1.0, top), ylabel="evidence: 1 in", xlabel="observation")


def _limits(label: Floats) -> tuple[float, float]:
    """Keep the data in view: the band of a first hypothesis can be a hundred times as wide."""
    seen = label[np.isfinite(label)]
    low, high = (float(seen.min()), float(seen.max())) if len(seen) else (0.0, 1.0)
    room = 0.4 * ((high - low) or abs(high) or 1.0)
    return low - room, high + room


def _shown(value: Any) -> str:
    return ", ".join(f"{number:.4g}" for number in (value if isinstance(value, list) else [value]))


def _sparkline(kept: tuple[RowLayout, Floats] | None, seq: int, changes: list[int]) -> str:
    """The first output of the last labels, with lines at confirmed changes."""
    if kept is None:
        return ""
    y = kept[1][-POINTS:, kept[0].y.start]
    finite = np.flatnonzero(np.isfinite(y))
    if len(finite) < 2:
        return ""
    step = WIDE / max(len(y) - 1, 1)
    first = seq - len(y)
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
