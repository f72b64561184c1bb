"""Detectors of changes: the pipeline of a stream, without a server.

from model_core import Detector

detector = Detector()
for y in labels:
    answer = detector.update(y)
    if detector.drift_detected:
        print(answer.event)
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from model_core import filter as moca
from model_core import horizon as ahead
from model_core import labels, season, warmup
from model_core.detection import hindsight, parsing, storage
from model_core.detection import settings as options
from model_core.detection.answers import (
    Answer,
    Answers,
    Predictive,
    of_draws,
    of_mixture,
)
from model_core.detection.parsing import Label
from model_core.detection.pipeline import NOTHING, Pipeline, Refused
from model_core.detection.rows import Observation
from model_core.detection.series import Taken
from model_core.detection.settings import Settings
from model_core.errors import BadInput, CorruptState, WarmingUp
from model_core.events import Event
from model_core.segmentation import Segment
from model_core.upm.base import UnderlyingModel

Model = str | os.PathLike[str] | UnderlyingModel
LEVELS = (0.05, 0.5, 0.95)
PATHS = 256  # drawn where labels feed back; a median's level has a standard error of 0.03


class Detectors:
    """Many series of one model, one observation of each at a time.

    They share settings, and step together. Series are known by their index.
    """

    def __init__(
        self,
        streams: int | Sequence[str],
        model: Model | None = None,
        *,
        quantiles: Sequence[float] = LEVELS,
        kernels: bool = True,
        **settings: Any,
    ) -> None:
        """streams: how many, or their names.

        model: of built-in ones NAME or NAME@VERSION, the folder of an artifact, or a model of one's
        own; None: `averaged`, of vectors `joint`. quantiles: levels of predictives. kernels:
        whether to use compiled kernels, where numba is installed. settings: those of a stream, see
        `Settings`. A name decides on when its series looks for seasons by default. Raises
        BadInput and BadArtifact.
        """
        names = [""] * streams if isinstance(streams, int) else list(map(str, streams))
        if not names:
            raise BadInput("streams: expected at least one, got none")
        self._names, self._kernels = names, kernels
        self._levels = parsing.levels(quantiles)
        self._settings = options.checked(settings)
        self._given = dict(settings)
        self._chosen = options.chosen(model)
        self._answers = len(names) == 1  # whether answers are retained, for pictures
        self._early: list[list[Observation]] = [[] for _ in names]
        self._pipeline: Pipeline | None = None
        self._fields: list[str] | None = None  # of labels that are mappings
        self._segments: dict[int, tuple[int, list[Segment]]] = {}
        self._start()

    # --- observations -------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._names)

    def update(
        self,
        y: Iterable[Label],
        x: Sequence[Any] | None = None,
        elapsed: float | None = None,
        streams: Sequence[int] | None = None,
    ) -> Answers:
        """Take one observation of each series.

        y: a label for each. x: inputs likewise, for models that take them. elapsed: time since the
        observation before, in steps of the hazard. streams: indices of distinct series that these
        are of; None: all. What the filter of a series cannot take is not applied, and its answer is
        None. Raises BadInput, and then no series has moved.
        """
        found, rows = parsing.elements(y), list(range(len(self)) if streams is None else streams)
        given = [None] * len(rows) if x is None else parsing.elements(x)
        if not len(found) == len(given) == len(rows):
            raise BadInput(f"y: expected {len(rows)} labels, got {len(found)}; x: {len(given)}")
        if len(set(rows)) < len(rows):
            raise BadInput(
                "streams: expected distinct indices; update one that is named twice twice"
            )
        self._decide(found, given)
        seen = [self._observation(*each, elapsed) for each in zip(found, given, strict=True)]
        if self._pipeline is None:
            return Answers([self._wait(*each) for each in zip(rows, seen, strict=True)])
        taken = self._pipeline.observe(rows, seen)
        return Answers([None if each is None else self._answer(each) for each in taken])

    def update_many(
        self,
        stream: int,
        rows: Any,
        x: Any = None,
        elapsed: float | Sequence[float] | None = None,
        changepoint: Sequence[float] | None = None,
    ) -> list[Answer]:
        """Take many observations of one series, one after the other; faster than one by one.

        rows: a list, an array (T,) or (T, d), or a column or frame of pandas or polars. Raises
        BadInput: of what does not fit before any is taken; where the filter refuses one, those
        before it are.
        """
        found = parsing.elements(rows)
        given = [None] * len(found) if x is None else parsing.elements(x)
        steps = list(elapsed) if isinstance(elapsed, Iterable) else [elapsed] * len(found)
        told = [None] * len(found) if changepoint is None else list(changepoint)
        if not len(found) == len(given) == len(steps) == len(told):
            raise BadInput(f"x, elapsed: expected one for each of {len(found)} labels")
        self._decide(found, given)
        pairs = zip(found, given, steps, told, strict=True)
        seen = [self._observation(*each) for each in pairs]
        if self._pipeline is None:
            return [self._wait(stream, each) for each in seen]
        answers: list[Answer] = []
        try:
            for taken in self._pipeline.observe_series(stream, seen):
                answers.append(self._answer(taken))
        except Refused as refusal:
            raise BadInput(
                f"y: the filter's step on {found[len(answers)]!r} was not finite; it was not "
                f"applied, the {len(answers)} before it were"
            ) from refusal
        return answers

    def score(self, stream: int, y: Label, x: Any = None) -> float:
        """Anomaly that a label would have if it came next, from 0 to 1; 0 where none is known."""
        self._decide([y], [x])
        seen = self._observation(y, x, None)
        found = math.nan if self._pipeline is None else self._pipeline.score(stream, seen)
        return 0.0 if math.isnan(found) else found

    # --- what is known ------------------------------------------------------------------------

    @property
    def model(self) -> str:
        """Name of the model; empty until the first label has decided on it."""
        return "" if self._chosen is None else self._chosen.name

    @property
    def settings(self) -> Settings:
        """Settings, defaults filled in."""
        return self._settings

    def seq(self, stream: int) -> int:
        """Number of observations so far."""
        if self._pipeline is None:
            return len(self._early[stream])
        return self._pipeline.series[stream].seq

    def warming_up(self, stream: int) -> bool:
        """Whether location and scale are not known yet."""
        return self._pipeline is None or not self._pipeline.series[stream].warm

    def events(self, stream: int) -> list[Event]:
        """Changes, each in its latest state, oldest first: the last 1,000."""
        return [] if self._pipeline is None else list(self._pipeline.series[stream].events.values())

    def anomalies(self, stream: int) -> list[Event]:
        """Anomaly events, oldest first: the last 1,000."""
        if self._pipeline is None:
            return []
        return list(self._pipeline.series[stream].anomalies.values())

    def segments(self, stream: int) -> list[Segment]:
        """Regimes of what is retained (`history` observations), in hindsight.

        Location and scale are then those of all of it. Without a compiled kernel only the last 512
        are segmented anew, and what is before them is as it was known online.
        """
        if self._pipeline is None:
            return []
        seq = self.seq(stream)
        if self._segments.get(stream, (-1, []))[0] != seq:
            self._segments[stream] = seq, hindsight.segments(self._pipeline, stream)
        return list(self._segments[stream][1])

    def predict(self, stream: int, x: Any = None, elapsed: float = 1.0) -> Predictive | None:
        """Predictive distribution of the next label, at an input; None before two labels differ."""
        if self._pipeline is None:
            return None
        pipeline, given = self._pipeline, parsing.input_(x)
        self._check_input(given)
        offset = pipeline.offsets_ahead(stream, 1)
        if self.warming_up(stream):
            mixture = pipeline.predicted(stream, given)
        else:
            state, prior = pipeline.filters.state(stream), pipeline.filters.prior(stream)
            inputs = pipeline.coming(stream, 1, given, elapsed)
            grown, _ = moca.grow(state, prior, inputs)
            mixture = moca.predict(pipeline.model, grown, prior, inputs).mixture
        if mixture is None:
            return None
        mixture = mixture.shifted(torch.from_numpy(offset)) if offset.any() else mixture
        return of_mixture(pipeline.model, mixture, self._levels)

    def forecast(self, stream: int, horizon: int = 1, seed: int = 0) -> list[Predictive]:
        """Predictive distributions of the next labels; changes nothing.

        Exact where labels of a regime are exchangeable, else of 256 paths that `seed` decides on.
        Raises WarmingUp, and BadInput of models that take inputs.
        """
        pipeline = self._ahead(stream, horizon)
        if not pipeline.model.exchangeable:
            drawn = self.paths(stream, horizon, PATHS, seed)
            at = torch.from_numpy(drawn)
            return [of_draws(pipeline.model, at[:, i], self._levels) for i in range(horizon)]
        offsets = pipeline.offsets_ahead(stream, horizon)
        state, prior = pipeline.filters.state(stream), pipeline.filters.prior(stream)
        coming = pipeline.coming(stream)
        found = []
        for i, each in enumerate(ahead.mixtures(pipeline.model, state, prior, coming, horizon)):
            moved = each.shifted(torch.from_numpy(offsets[i : i + 1])) if offsets.any() else each
            found.append(of_mixture(pipeline.model, moved, self._levels))
        return found

    def paths(self, stream: int, horizon: int, count: int, seed: int = 0) -> NDArray[np.float64]:
        """Draws (count, horizon, d) of the next labels: samples of their joint predictive."""
        pipeline = self._ahead(stream, horizon)
        state, prior = pipeline.filters.state(stream), pipeline.filters.prior(stream)
        rows = ahead.repeated(state, prior, count)
        coming = pipeline.coming(stream, count)
        generator = torch.Generator().manual_seed(seed)
        drawn = ahead.paths(pipeline.model, *rows, coming, horizon, generator).numpy()
        return np.asarray(drawn + pipeline.offsets_ahead(stream, horizon)[:, None])

    # --- files --------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all there is to one file, from which `load` goes on to the same numbers."""
        storage.write(
            path, self._header(), {} if self._pipeline is None else storage.arrays(self._pipeline)
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: Model | None = None) -> Detectors:
        """What was saved. model: as it was given, where it was a model of one's own or has moved.

        Raises CorruptState for a file that is damaged, of a later version, or of another model.
        """
        header, stored = storage.read(path)
        found = storage.restored(path, lambda: cls._of(header, model))
        storage.restored(path, lambda: found._resume(header, stored))
        return found

    @classmethod
    def _of(cls, header: Mapping[str, Any], model: Model | None) -> Detectors:
        stored = header["model"]
        if model is None and stored["own"] is not None:
            raise BadInput(
                f"model: the file is of a model of one's own, of kind {stored['own']!r}; give it "
                "as `load(path, model=...)`"
            )
        known = model or stored["reference"] or stored["folder"]
        return cls(
            header["names"],
            known,
            quantiles=header["quantiles"],
            kernels=header["kernels"],
            **header["settings"],
        )

    def _header(self) -> dict[str, Any]:
        choice, pipeline = self._chosen, self._pipeline
        own = choice is not None and choice.reference is None and choice.folder is None
        return {
            "names": self._names,
            "model": {
                "reference": None if choice is None else choice.reference,
                "folder": None if choice is None else choice.folder,
                "own": choice.model.kind if own and choice and choice.model else None,
                "digest": options.digest(choice),
            },
            "quantiles": self._levels,
            "kernels": self._kernels,
            "settings": storage.plain(self._given),
            "fields": self._fields,
            "early": [[list(seen) for seen in each] for each in self._early],
            "shape": None if pipeline is None else [pipeline.model.y_dim, pipeline.model.x_dim],
            "kind": None if pipeline is None else pipeline.model.kind,
            "series": [] if pipeline is None else [each.numbers() for each in pipeline.series],
        }

    def _resume(self, header: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
        stored_digest = header["model"]["digest"]
        if stored_digest is not None and stored_digest != options.digest(self._chosen):
            raise CorruptState(
                f"the file is of another artifact than {self.model}: give the folder of the one "
                "that it was saved with as `load(path, model=...)`"
            )
        self._fields = header["fields"]
        self._early = [
            [Observation(tuple(y), tuple(x), *rest) for y, x, *rest in each]
            for each in header["early"]
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
            self._chosen = options.chosen(options.default(self._settings, outputs))
        if self._chosen is not None:
            x_dim, y_dim = options.dimensions(self._chosen)
            y_dim = outputs if y_dim is None else y_dim
            if None not in (x_dim, y_dim):
                self._build(y_dim or 1, x_dim or 0)

    def _decide(self, found: Sequence[Label], given: Sequence[Any]) -> None:
        """Choose and build the model by the first label and input there is."""
        if self._pipeline is not None:
            return
        known = [self._label(each) for each in found]
        first = next((each for each in known if each is not None), None)
        waited = max(map(len, self._early)) + len(found) >= warmup.LONGEST_WAIT
        if first is None and not waited:
            return
        outputs = 1 if first is None else len(first)
        if self._chosen is None:
            self._chosen = options.chosen(options.default(self._settings, outputs))
        assert self._chosen is not None
        x_dim, y_dim = options.dimensions(self._chosen)
        if x_dim is None:
            x_dim = next((len(each) for each in map(parsing.input_, given) if each), 0)
            if not x_dim:
                raise BadInput(f"x: model {self._chosen.name} takes an input, got none")
        self._build(outputs if y_dim is None else y_dim, x_dim)
        early, self._early = self._early, [[] for _ in self._names]
        assert self._pipeline is not None
        blank = (math.nan,) * self._pipeline.model.y_dim
        for row, each in enumerate(early):
            for _ in self._pipeline.observe_series(row, [seen._replace(y=blank) for seen in each]):
                pass

    def _build(self, y_dim: int, x_dim: int) -> None:
        assert self._chosen is not None
        model = options.build(self._chosen, self._settings, y_dim, x_dim)
        rules = options.rules(self._chosen, model, self._settings)
        phases = list(map(season.phase_of, self._names))
        self._pipeline = Pipeline(
            model, rules, phases, self._levels, self._kernels, answers=self._answers
        )

    def _wait(self, row: int, seen: Observation) -> Answer:
        """Keep an observation from before the first label."""
        self._early[row].append(seen)
        return self._answer(Taken(len(self._early[row]) - 1, None, NOTHING, math.nan, math.nan))

    def _answer(self, taken: Taken) -> Answer:
        model = None if self._pipeline is None else self._pipeline.model
        return Answer(taken, model, self.model, self._levels)

    def _label(self, y: Label) -> tuple[float, ...] | None:
        """Numbers of a label, nan where missing; None where all are."""
        if isinstance(y, Mapping):
            self._fields = self._fields or list(y)
            unknown = set(y) - set(self._fields)
            if unknown:
                raise BadInput(
                    f"y: expected the names {self._fields}, got {sorted(unknown)} as well"
                )
            y = [y.get(each) for each in self._fields]
        found = parsing.numbers("y", y)
        return None if all(map(math.isnan, found)) else found

    def _observation(
        self, y: Label, x: Any, elapsed: float | None, changepoint: float | None = None
    ) -> Observation:
        """An observation, checked; raises BadInput."""
        found, given = self._label(y), parsing.input_(x)
        if elapsed is not None and not 0 < elapsed < math.inf:
            raise BadInput(f"elapsed: expected a number above 0, got {elapsed!r}")
        if changepoint is not None and not 0 <= changepoint <= 1:
            raise BadInput(f"changepoint: expected a probability, got {changepoint!r}")
        told = math.nan if changepoint is None else float(changepoint)
        if self._pipeline is None:
            return Observation((), given, elapsed or 1.0, told)
        model = self._pipeline.model
        self._check_input(given)
        if found is None:
            found = (math.nan,) * model.y_dim
        else:
            parsing.check_label(found, model)
        return Observation(found, given, elapsed or 1.0, told)

    def _check_input(self, given: tuple[float, ...]) -> None:
        assert self._pipeline is not None
        x_dim = self._pipeline.model.x_dim
        if len(given) != x_dim:
            raise BadInput(f"x: expected {x_dim} numbers, as {self.model} takes, got {len(given)}")
        if any(not abs(each) <= labels.LARGEST for each in given):
            raise BadInput(f"x: expected numbers up to {labels.LARGEST:g}, got {list(given)}")

    def _ahead(self, stream: int, horizon: int) -> Pipeline:
        """The pipeline, if it can look ahead."""
        if horizon < 1:
            raise BadInput(f"horizon: expected 1 or more, got {horizon}")
        if self._pipeline is None or self.warming_up(stream):
            raise WarmingUp(
                f"horizon: still warming up after {self.seq(stream)} observations; a forecast "
                f"needs {self._settings.warmup} labels, or the settings location and scale"
            )
        if self._pipeline.model.x_dim:
            raise BadInput(
                f"horizon: {self.model} predicts labels from inputs; use `predict(x=...)` instead"
            )
        return self._pipeline

    @property
    def pipeline(self) -> Pipeline | None:
        """What runs inside; None before the first label."""
        return self._pipeline
