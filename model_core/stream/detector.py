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
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from model_core.errors import BadInput
from model_core.stream.answers import Answer, Predictive
from model_core.stream.detectors import LEVELS, Detectors, Model
from model_core.stream.events import Event
from model_core.stream.parsing import Label
from model_core.stream.rows import Floats, Layout
from model_core.stream.segmentation import Segment
from model_core.stream.state import KnownRegime
from model_core.stream_settings import StreamSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    ) -> Answer:
        """Take the next observation; returns its answer.

        y: a number, a list or mapping of them, or None or nan where the label is missing. x: input,
        for models that take one. elapsed: time since the observation before, in steps of the
        hazard. changepoint: probability, where it is known, that the regime changed just before.
        Raises BadInput, and then nothing has changed.
        """
        (self._last,) = self._all.update_many(0, [y], [x], [elapsed], [changepoint])
        return self._last

    def update_many(
        self, rows: Any, x: Any = None, elapsed: float | Sequence[float] | None = None
    ) -> list[Answer]:
        """Take many observations, one after the other; see `Detectors.update_many`."""
        try:
            answers = self._all.update_many(0, rows, x, elapsed)
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

    def retained(self) -> tuple[Layout, Floats] | None:
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
        """Changes, each in its latest state, oldest first: the last 1,000."""
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
        """Regimes of what is retained, in hindsight; see `Detectors.segments`."""
        return self._all.segments(0)

    def predict(self, x: Any = None, elapsed: float = 1.0) -> Predictive | None:
        """Predictive distribution of the next label; see `Detectors.predict`."""
        return self._all.predict(0, x, elapsed)

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
        """Picture of the last observations retained: labels, predictive band, evidence, changes.

        Needs matplotlib; BadInput says so where it is missing.
        """
        from model_core.stream import picture

        return picture.draw(self, last)

    def _repr_html_(self) -> str:
        from model_core.stream import picture

        return picture.html(self)

    def __repr__(self) -> str:
        model = repr(self.model) if self.model else "no model yet"
        return f"Detector({model}, seq={self.seq})"
