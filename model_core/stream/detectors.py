"""Detectors of changes in many series: the pipeline of streams, without a server."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_core.errors import BadInput, BadState, WarmingUp
from model_core.stream import (
    checks,
    forecasts,
    hindsight,
    parsing,
    season,
    seasons,
    storage,
    warmup,
)
from model_core.stream import settings as options
from model_core.stream.answers import Answer, Answers, Predictive, predictive
from model_core.stream.events import Event
from model_core.stream.local import LocalPipeline, LocalSeries
from model_core.stream.parsing import Label
from model_core.stream.rows import Floats, Observation
from model_core.stream.segmentation import Segment
from model_core.stream.series import Taken
from model_core.stream.state import KnownRegime
from model_core.stream_settings import StreamSettings, default_model
from model_core.summary import Summary
from model_core.upm.base import UnderlyingModel

Model = str | os.PathLike[str] | UnderlyingModel
LEVELS = (0.05, 0.5, 0.95)


class Detectors:
    """Many series of one model, one observation of each at a time.

    They share settings, and step together. A series is known by its index, or by its name.
    """

    def __init__(
        self,
        streams: int | Sequence[str],
        model: Model | None = None,
        *,
        quantiles: Sequence[float] = LEVELS,
        **settings: Any,
    ) -> None:
        """streams: how many, or their names.

        model: the name of a built-in one, the folder of an artifact, or a model of one's
        own; None: `averaged`, of vectors `joint`. quantiles: levels of predictives. settings: those
        of a stream, see `model_core.stream_settings`. A name decides on when its series looks for
        seasons by default. Raises BadInput and BadArtifact.
        """
        names = parsing.names(streams)
        self._names = names
        self._places = parsing.places(names)
        self._asked = model
        self._levels = parsing.levels(quantiles)
        self._settings = options.checked(settings)
        self._given = dict(settings)
        self._chosen = options.chosen(model)
        self._answers = len(names) == 1  # whether answers are retained, for pictures
        self._early: list[list[Observation]] = [[] for _ in names]
        self._pipeline: LocalPipeline | None = None
        self._fields: dict[
            str, list[str | int]
        ] = {}  # of labels (y) and inputs (x): names in order
        self._segments: dict[int, tuple[int, list[Segment]]] = {}
        self._start()

    # --- observations -------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        model = repr(self.model) if self.model else "no model yet"
        return f"Detectors({len(self)} series, {model})"

    def update(
        self,
        y: Iterable[Label],
        x: Sequence[Any] | None = None,
        elapsed: float | None = None,
        streams: Sequence[int | str] | None = None,
        time: datetime | None = None,
    ) -> Answers:
        """Take one observation of each series.

        y: a label for each. x: inputs likewise, for models that take them. elapsed: time since the
        observation before, in steps of the hazard. streams: distinct series that these are of, by
        index or name; None: all. time: when they were made, for events; without an offset UTC.
        What the filter of a series cannot take is not applied, and its answer is None. Raises
        BadInput, and then no series has moved.
        """
        labels = parsing.elements(y)
        rows = [self._at(stream) for stream in (range(len(self)) if streams is None else streams)]
        given = [None] * len(rows) if x is None else parsing.elements(x)
        if len(set(rows)) < len(rows):
            raise BadInput(
                "streams: expected distinct series; update one that is named twice twice"
            )
        nothing = [None] * len(rows)
        times = parsing.moments([time] * len(rows), len(rows))
        seen = self._checked("series", rows, labels, given, [elapsed] * len(rows), nothing, times)
        if self._pipeline is None:
            return Answers(
                [self._wait(row, observation) for row, observation in zip(rows, seen, strict=True)]
            )
        steps = self._pipeline.take(rows, seen)
        return Answers([None if taken is None else self._answer(taken) for taken in steps])

    def update_many(
        self,
        stream: int | str,
        rows: Any,
        x: Any = None,
        elapsed: float | Sequence[float | None] | None = None,
        changepoint: Sequence[float | None] | None = None,
        time: Iterable[datetime | None] | None = None,
    ) -> list[Answer]:
        """Take many observations of one series, one after the other; faster than one by one.

        rows: a list, an array (T,) or (T, d), or a column or frame of pandas or polars. time: when
        they were made, for events, by default a frame's one column of dates or pandas' index of
        dates; it changes no number, as `elapsed` does. Columns of a frame are known by their names
        from the first one on, in whatever order, those of inputs too, and events have these. Raises
        BadInput: of what does not fit before any is taken; where the filter refuses one, those
        before it are, and their answers are the error's `answers`.
        """
        stream = self._at(stream)
        rows = parsing.frame(rows)
        inputs = parsing.frame(x)
        labels = self._by_name("y", rows)
        given = [None] * len(labels) if x is None else self._by_name("x", inputs)
        steps = list(elapsed) if isinstance(elapsed, Iterable) else [elapsed] * len(labels)
        supervision = [None] * len(labels) if changepoint is None else parsing.elements(changepoint)
        times = parsing.moments(rows.times if time is None else time, len(labels))
        at = [stream] * len(labels)
        seen = self._checked("labels", at, labels, given, steps, supervision, times)
        for name, each in (("y", rows), ("x", inputs)):
            if len(each.names) > 1 and labels:
                self._fields.setdefault(name, each.names)
        if self._pipeline is None:
            return [self._wait(stream, observation) for observation in seen]
        answers = list(map(self._answer, self._pipeline.take_series(stream, seen)))
        if len(answers) < len(seen):
            raise BadInput(
                f"y: the filter's step on {labels[len(answers)]!r} was not finite; it was not "
                f"applied, the {len(answers)} before it were",
                answers,
            )
        return answers

    def score(self, stream: int | str, y: Label, x: Any = None) -> float:
        """Anomaly that a label would have if it came next, from 0 to 1; 0 where none is known."""
        stream = self._at(stream)
        anomaly = math.nan
        with self._undone(always=True):
            (seen,) = self._checked("labels", [stream], [y], [x], [None], [None], [math.nan])
            if self._pipeline is not None:
                anomaly = self._pipeline.score(stream, seen)
        return 0.0 if math.isnan(anomaly) else anomaly

    # --- what is known ------------------------------------------------------------------------

    @property
    def model(self) -> str:
        """Name of the model; empty until the first label has decided on it."""
        return "" if self._chosen is None else self._chosen.name

    @property
    def settings(self) -> StreamSettings:
        """Settings, defaults filled in."""
        return self._settings

    def seq(self, stream: int | str) -> int:
        """Number of observations so far."""
        series = self._series(stream)
        return len(self._early[self._at(stream)]) if series is None else series.seq

    def warming_up(self, stream: int | str) -> bool:
        """Whether location and scale are not known yet."""
        series = self._series(stream)
        return series is None or not series.warm

    @property
    def outputs(self) -> Sequence[str | int]:
        """Names of the outputs, as labels had them; empty where these were without."""
        return self._fields.get("y", ())

    def events(self, stream: int | str, *, withdrawn: bool = False) -> list[Event]:
        """Changes, each in its latest state, oldest first, of the last 1,000.

        withdrawn: with those that are.
        """
        series = self._series(stream)
        every = [] if series is None else series.events.values()
        names = self.outputs
        return [event.named(names) for event in every if withdrawn or event.state != "withdrawn"]

    def anomalies(self, stream: int | str) -> list[Event]:
        """Anomaly events, oldest first: the last 1,000."""
        series = self._series(stream)
        every = [] if series is None else series.anomalies.values()
        return [event.named(self.outputs) for event in every]

    def regimes(self, stream: int | str) -> list[KnownRegime]:
        """Regimes that are remembered, by id, with the probability that the series is in each now.

        One is stored with the first observation after the one that confirmed its end.
        """
        series = self._series(stream)
        return [] if series is None or series.slab is None else series.slab.regimes(series.row)

    def segments(self, stream: int | str) -> list[Segment]:
        """Regimes of what is retained (`history` observations).

        They begin at confirmed changes, where the best path of the filter has others, and where
        hindsight finds more: a rerun with location and scale of all that is retained, of the last
        512 without a compiled kernel.
        """
        stream = self._at(stream)
        if self._pipeline is None:
            return []
        seq = self.seq(stream)
        if self._segments.get(stream, (-1, []))[0] != seq:
            self._segments[stream] = seq, hindsight.segments(self._pipeline, stream)
        return list(self._segments[stream][1])

    def predict(
        self,
        stream: int | str,
        x: Any = None,
        elapsed: float = 1.0,
        changepoint: float | None = None,
    ) -> Predictive | None:
        """Predictive distribution of the next label, at an input; None before two labels differ.

        elapsed, changepoint: as of the observation to come, see `update`.
        """
        stream = self._at(stream)
        elapsed = parsing.time(elapsed)
        supervision = parsing.probability(changepoint)
        pipeline = self._pipeline
        if pipeline is None:
            return None
        with self._undone(always=True):
            (given,) = self._inputs([x])
        numbers = pipeline.predict(stream, given, elapsed, supervision)
        return None if numbers is None else predictive(pipeline.model, numbers, self._levels)

    def forecast(self, stream: int | str, horizon: int = 1, seed: int = 0) -> list[Predictive]:
        """Predictive distributions of the next labels; changes nothing.

        Exact where labels of a regime are exchangeable, else of 256 paths that `seed` decides on.
        Raises WarmingUp, and BadInput of models that take inputs.
        """
        pipeline, row, offsets = self._ahead(stream, horizon)
        if pipeline.model.exchangeable:
            steps = forecasts.ahead(pipeline.slab, row, pipeline.coming(), offsets, self._levels)
        else:
            steps, _ = self._drawn(stream, horizon, forecasts.PATHS, seed)
        return [predictive(pipeline.model, step, self._levels) for step in steps.numbers]

    def paths(
        self, stream: int | str, horizon: int, count: int, seed: int = 0
    ) -> NDArray[np.float64]:
        """Draws (count, horizon, d) of the next labels: samples of their joint predictive."""
        return self._drawn(stream, horizon, count, seed)[1]

    def _drawn(
        self, stream: int | str, horizon: int, count: int, seed: int
    ) -> tuple[Summary, Floats]:
        """Summaries of the next labels, and paths of them; raises as `forecast`."""
        pipeline, row, offsets = self._ahead(stream, horizon)
        most = forecasts.MAX_DRAWN // (horizon * pipeline.model.y_dim)
        _check_count("count", count, most, f"paths of {horizon:,} labels")
        coming = pipeline.coming()
        return forecasts.drawn(pipeline.slab, row, coming, offsets, self._levels, count, seed)

    # --- files --------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all there is to one file, from which `load` goes on to the same numbers."""
        storage.write(
            path, self._header(), {} if self._pipeline is None else storage.arrays(self._pipeline)
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: Model | None = None) -> Detectors:
        """What was saved. model: as it was given, where it was a model of one's own or has moved.

        Raises BadState for a file that is damaged, of another format, or of another model.
        """
        header, stored = storage.read(path)
        detectors = storage.restored(path, lambda: cls._of(header, model))
        storage.restored(path, lambda: detectors._resume(header, stored))
        return detectors

    @classmethod
    def _of(cls, header: Mapping[str, Any], model: Model | None) -> Detectors:
        stored = header["model"]
        if model is None and stored["own"] is not None:
            raise BadInput(
                f"model: the file is of a model of one's own, of kind {stored['own']!r}; give it "
                "as `load(path, model=...)`"
            )
        reference = model
        if model is None and stored["named"]:
            reference = stored["reference"] or stored["folder"]
        return cls(
            header["names"],
            reference,
            quantiles=header["quantiles"],
            **header["settings"],
        )

    def _header(self) -> dict[str, Any]:
        pipeline = self._pipeline
        return {
            "names": self._names,
            "model": options.described(self._chosen, self._asked is not None),
            "quantiles": self._levels,
            "settings": storage.plain(self._given),
            "fields": self._fields,
            "early": [[list(seen) for seen in observations] for observations in self._early],
            "shape": None if pipeline is None else [pipeline.model.y_dim, pipeline.model.x_dim],
            "kind": None if pipeline is None else pipeline.model.kind,
            "series": [] if pipeline is None else [series.numbers() for series in pipeline.series],
        }

    def _resume(self, header: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
        stored_digest = header["model"]["digest"]
        reference = header["model"]["reference"]
        if self._asked is None and reference is not None:
            self._chosen = options.chosen(reference)  # the default of the time
        digest = None if self._chosen is None else self._chosen.digest
        if stored_digest is not None and stored_digest != digest:
            raise BadState(
                f"the file is of another artifact than {self.model}: give the folder of the one "
                "that it was saved with as `load(path, model=...)`"
            )
        self._fields = dict(header["fields"])
        self._early = [
            [
                Observation(tuple(y), tuple(x), elapsed, changepoint, time)
                for y, x, elapsed, changepoint, time in observations
            ]
            for observations in header["early"]
        ]
        if header["shape"] is None:
            return
        y_dim, x_dim = header["shape"]
        self._build(y_dim, x_dim)
        assert self._pipeline is not None
        if self._pipeline.model.kind != header["kind"]:
            raise ValueError(
                f"it is of a model of kind {header['kind']!r}, not {self._pipeline.model.kind!r}"
            )
        storage.restore(self._pipeline, header["series"], stored)

    # --- inside -------------------------------------------------------------------------------

    def _start(self) -> None:
        """Build the model at once where nothing has to be waited for."""
        outputs = len(self._settings.location) if self._settings.location else None
        if self._chosen is None and outputs is not None:
            self._chosen = options.chosen(default_model(self._settings.location, outputs))
        if self._chosen is not None:
            x_dim, y_dim = options.dimensions(self._chosen)
            y_dim = outputs if y_dim is None else y_dim
            if None not in (x_dim, y_dim):
                self._build(y_dim or 1, x_dim or 0)

    def _at(self, stream: int | str) -> int:
        return parsing.index(stream, len(self), self._places)

    def _series(self, stream: int | str) -> LocalSeries | None:
        """What runs of a series; None before the first label."""
        row = self._at(stream)
        return None if self._pipeline is None else self._pipeline.series[row]

    @contextmanager
    def _undone(self, always: bool = False) -> Iterator[None]:
        """Undo what the first label and the first input decide on: after an error, or always."""
        before = self._chosen, self._pipeline, self._early, dict(self._fields)
        kept = False
        try:
            yield
            kept = not always
        finally:
            if not kept:
                self._chosen, self._pipeline, self._early, self._fields = before

    def _checked(
        self,
        of: str,
        rows: Sequence[int],
        y: Sequence[Label],
        x: Sequence[Any],
        elapsed: Sequence[Any],
        changepoint: Sequence[Any],
        times: Sequence[float],
    ) -> list[Observation]:
        """Observations to take, one for each of `rows`; the first label decides on the model.

        of: what the rows are, in words. Raises BadInput, and then nothing has changed.
        """
        given = {"y": y, "x": x, "elapsed": elapsed, "changepoint": changepoint}
        for name, values in given.items():
            if len(values) != len(rows):
                raise BadInput(
                    f"{name}: expected one for each of {len(rows)} {of}, got {len(values)}"
                )
        with self._undone():
            inputs = self._inputs(x)
            labels = parsing.each("y", self._label, y)
            if self._pipeline is None:
                self._decide(rows, labels, inputs)
            return list(
                map(
                    Observation,
                    parsing.each("y", self._fitting, labels),
                    inputs,
                    parsing.each("elapsed", parsing.time, elapsed),
                    parsing.each("changepoint", parsing.probability, changepoint),
                    times,
                )
            )

    def _decide(
        self,
        rows: Sequence[int],
        labels: Sequence[tuple[float, ...] | None],
        inputs: Sequence[tuple[float, ...]],
    ) -> None:
        """Choose and build the model by the first label there is, and take what came before."""
        first = next((label for label in labels if label is not None), None)
        waited = [len(self._early[row]) + count for row, count in Counter(rows).items()]
        if first is None and max(waited, default=0) < warmup.LONGEST_WAIT:
            return
        outputs = 1 if first is None else len(first)
        if self._chosen is None:
            self._chosen = options.chosen(default_model(self._settings.location, outputs))
        assert self._chosen is not None
        y_dim = options.dimensions(self._chosen)[1]
        self._build(outputs if y_dim is None else y_dim, len(inputs[0]))
        early = self._early
        self._early = [[] for _ in self._names]
        assert self._pipeline is not None
        blank = (math.nan,) * self._pipeline.model.y_dim
        for row, observations in enumerate(early):
            unlabelled = [seen._replace(y=blank) for seen in observations]
            if len(self._pipeline.take_series(row, unlabelled)) < len(unlabelled):
                raise BadInput(
                    f"model: {self.model} cannot take the observations before the first label: "
                    "its numbers are not finite; use another model"
                )

    def _build(self, y_dim: int, x_dim: int) -> None:
        assert self._chosen is not None
        model = options.build(self._chosen, self._settings, y_dim, x_dim)
        rules = options.rules(model, self._settings)
        phases = list(map(season.phase_of, self._names))
        self._pipeline = LocalPipeline(model, rules, phases, self._levels, answers=self._answers)

    def _wait(self, row: int, seen: Observation) -> Answer:
        """Keep an observation from before the first label."""
        self._early[row].append(seen)
        return self._answer(Taken(len(self._early[row]) - 1))

    def _answer(self, taken: Taken) -> Answer:
        model = None if self._pipeline is None else self._pipeline.model
        return Answer(taken, model, self.model, self._levels, self.outputs)

    def _numbers(self, name: str, value: Any) -> tuple[float, ...]:
        """Numbers of a label (y) or an input (x); those of mappings in the order of the first."""
        if isinstance(value, Mapping):
            value = {parsing.named(field): number for field, number in value.items()}
            fields = self._fields[name] = self._fields.get(name) or list(value)
            value = parsing.by_name(name, value, fields)
        return parsing.numbers(name, value)

    def _by_name(self, name: str, given: parsing.Frame) -> list[Any]:
        """Elements, mappings where names of a frame's columns are others than those known."""
        listed = parsing.elements(given.rows)
        known = self._fields.get(name, ())
        if not given.names or len(known) < 2 or given.names == known:
            return listed
        return [dict(zip(given.names, row, strict=True)) for row in listed]

    def _label(self, y: Label) -> tuple[float, ...] | None:
        """Numbers of a label, nan where missing; None where all are."""
        numbers = self._numbers("y", y)
        return None if all(map(math.isnan, numbers)) else numbers

    def _fitting(self, label: tuple[float, ...] | None) -> tuple[float, ...]:
        """A label as the model takes it, none before there is one; raises BadInput."""
        if self._pipeline is None:
            return ()
        if label is None:
            return (math.nan,) * self._pipeline.model.y_dim
        model = self._pipeline.model
        given = [None if math.isnan(value) else value for value in label]
        checks.check_label(given, model, model.y_dim)
        return label

    def _inputs(self, given: Sequence[Any]) -> list[tuple[float, ...]]:
        """Inputs, all of the length that the model or else the first has; raises BadInput."""
        x_dim = self._x_dim()

        def fitting(value: Any) -> tuple[float, ...]:
            nonlocal x_dim
            numbers = () if value is None else self._numbers("x", value)
            checks.check_input(numbers, x_dim)
            x_dim = len(numbers)
            return numbers

        return parsing.each("x", fitting, given)

    def _x_dim(self) -> int | None:
        """Numbers in an input; None where the first one decides."""
        if self._pipeline is not None:
            return self._pipeline.model.x_dim
        if self._chosen is None:
            return 0  # as the models that are chosen by labels
        x_dim, _ = options.dimensions(self._chosen)
        early = (len(seen.x) for observations in self._early for seen in observations)
        return next(early, None) if x_dim is None else x_dim

    def _ahead(self, stream: int | str, horizon: int) -> tuple[LocalPipeline, int, Floats]:
        """The pipeline, if it can look ahead, a row of its slab, and the seasons to come."""
        series = self._series(stream)
        _check_count("horizon", horizon, forecasts.MAX_HORIZON, "labels")
        if self._pipeline is None or series is None or not series.warm:
            raise WarmingUp(
                f"horizon: still warming up after {self.seq(stream)} observations; a forecast "
                f"needs {self._settings.warmup} labels, or the settings location and scale"
            )
        if self._pipeline.model.x_dim:
            raise BadInput(
                f"horizon: {self.model} predicts labels from inputs; use `predict(x=...)` instead"
            )
        offsets = seasons.ahead(series.season_state, horizon, self._pipeline.model.y_dim)
        return self._pipeline, series.row, offsets

    @property
    def pipeline(self) -> LocalPipeline | None:
        """What runs inside; None before the first label."""
        return self._pipeline


def _check_count(name: str, value: int, most: int, unit: str) -> None:
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not 1 <= value <= most:
        got = f"{value:,}" if whole else repr(value)
        raise BadInput(f"{name}: expected 1 to {most:,} {unit}, got {got}")
