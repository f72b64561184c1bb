"""Answers of a replay, kept compactly, and written as CSV and Parquet."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from moca_client.responses import (
    Answer,
    Changepoints,
    Event,
    Hindsight,
    Recorded,
    Season,
    Segment,
    TypicalRegime,
)
from moca_client.tables.series import Series


class BeliefRow(NamedTuple):
    """The run-length belief after one observation; far smaller than two lists of numbers."""

    run_length: array[int]
    probability: array[float]


def describe_segmentation(answer: Changepoints | Replayed) -> str:
    """Return a line with the regimes by seq, and how far they are known in hindsight."""
    regimes = ", ".join(f"{segment.start}-{segment.end - 1}" for segment in answer.segmentation)
    line = f"best segmentation, by seq: {regimes or 'not known yet'}"
    hindsight = answer.hindsight
    if not regimes or hindsight is None:
        return line
    reach = "online"
    if hindsight.first is not None and hindsight.seq is not None:
        reach = f"in hindsight for {hindsight.first}-{hindsight.seq - 1}"
    later = {"pending": "; hindsight is being computed", "unavailable": "; no hindsight now"}
    return f"{line} ({reach}{later.get(hindsight.status, '')})"


def describe_season(season: Season) -> str:
    """Return how often the season of a stream recurs."""
    return f"every {' and '.join(map(str, season.periods))} observations"


@dataclass
class Replayed:
    """A series and everything the service said about it."""

    stream: str
    series: Series
    answers: list[Answer] = field(default_factory=list)
    beliefs: list[BeliefRow | None] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    segmentation: list[Segment] = field(default_factory=list)
    hindsight: Hindsight | None = None  # how far the segmentation is one in hindsight

    def add(self, answers: Sequence[Answer]) -> None:
        """Keep the next answers; their beliefs go into arrays."""
        for answer in answers:
            row = None
            if answer.run_length is not None and answer.run_length.belief is not None:
                belief = answer.run_length.belief
                row = BeliefRow(array("i", belief.run_length), array("f", belief.probability))
                answer.run_length.belief = None
            self.beliefs.append(row)
            self.answers.append(answer)

    @property
    def model(self) -> str:
        """Return the model that gave the last answer."""
        return self.answers[-1].model if self.answers else ""

    @property
    def first_seq(self) -> int:
        """`seq` of the first row of the file; not 0 when the stream had observations before."""
        return self.answers[0].seq if self.answers else 0

    def row(self, seq: int) -> int | None:
        """Row of the file that became observation `seq`, if any did."""
        row = seq - self.first_seq
        return row if 0 <= row < len(self.answers) else None

    def when(self, seq: int) -> str:
        """How people read the time of observation `seq`."""
        row = self.row(seq)
        axis = self.series.axis
        return str(seq) if row is None or axis is None else axis.label[row]


def to_columns(replayed: Replayed) -> dict[str, list[Any]]:
    """Lay the answers out as columns; a label with several dimensions gets numbered columns."""
    series = replayed.series
    answers = replayed.answers
    rows = len(answers)
    columns: dict[str, list[Any]] = {"seq": [answer.seq for answer in answers]}
    if series.axis is not None:
        columns[series.axis.name] = (series.axis.rfc3339 or series.axis.value)[:rows]
    for place, name in enumerate(series.x_names):
        columns[name] = [x[place] for x in (series.x or [])[:rows]]
    for place, name in enumerate(series.y_names):
        columns[name] = [None if y is None else y[place] for y in series.y[:rows]]
    columns.update(answer_columns(answers))
    return columns


def answer_columns(answers: Sequence[Answer]) -> dict[str, list[Any]]:
    """Lay out what was answered, without what was posted, as columns."""
    columns = predictive_columns(answers)
    for name in ("log_score", "changed_probability", "changepoint_probability"):
        columns[name] = [getattr(answer, name) for answer in answers]
    for name in ("recent_change_probability", "anomaly"):
        columns[name] = [getattr(answer, name) for answer in answers]
    for name in ("map", "mean", "hypotheses", "pruned_mass"):
        title = name if name in {"hypotheses", "pruned_mass"} else f"run_length_{name}"
        columns[title] = [
            None if a.run_length is None else getattr(a.run_length, name) for a in answers
        ]
    for name in ("id", "state", "start"):
        columns[f"event_{name}"] = [
            None if a.event is None else getattr(a.event, name) for a in answers
        ]
    columns["season"] = [
        None if a.season is None else " ".join(map(str, a.season.periods)) for a in answers
    ]
    columns |= regime_columns(answers)
    columns["warming_up"] = [answer.warming_up for answer in answers]
    return columns


def regime_columns(answers: Sequence[Answer | Recorded]) -> dict[str, list[Any]]:
    """Lay out typical regimes; no columns where there are none."""
    regimes = [answer.regime for answer in answers]
    if not any(regimes):
        return {}
    names = {"regime": "name", "regime_probability": "probability"}
    return {
        column: [None if regime is None else getattr(regime, name) for regime in regimes]
        for column, name in names.items()
    }


def describe_regime(regime: TypicalRegime) -> str:
    """Return the name of a typical regime and its probability."""
    return f"{regime.name} ({regime.probability:.2f})"


def predictive_columns(answers: Sequence[Answer | Recorded]) -> dict[str, list[Any]]:
    """Lay out predictive distributions; one of several dimensions gets numbered columns."""
    predictives = [answer.predictive for answer in answers]
    one = next((p for p in predictives if p is not None), None)
    if one is None:
        return {}
    if one.probabilities is not None:
        return {
            f"probability{place}": [
                _at(None if p is None else p.probabilities, place) for p in predictives
            ]
            for place in range(len(one.probabilities))
        }
    dimensions = len(one.mean or [])
    columns: dict[str, list[Any]] = {}
    for place in range(dimensions):
        suffix = str(place + 1) if dimensions > 1 else ""
        columns["mean" + suffix] = [_at(None if p is None else p.mean, place) for p in predictives]
        columns["variance" + suffix] = [
            _at(_at(None if p is None else p.variance, place), place) for p in predictives
        ]
        for level in one.quantiles or {}:
            columns[f"quantile_{level}{'_' + suffix if suffix else ''}"] = [
                _at(None if p is None else (p.quantiles or {}).get(level), place)
                for p in predictives
            ]
    return columns


def _at(values: Sequence[Any] | None, place: int) -> Any:
    return None if values is None or place >= len(values) else values[place]


def write_answers(replayed: Replayed, files: Sequence[Path]) -> None:
    """Write the answers to each file, as its suffix says.

    Parquet also holds each row's run-length belief and, for several dimensions, the whole
    covariance; a CSV cell cannot hold a list.
    """
    columns = to_columns(replayed)
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix.lower() == ".csv":
            _write_csv(columns, file)
        else:
            import pyarrow as pa
            from pyarrow import parquet

            parquet.write_table(pa.table({**columns, **_lists(replayed)}), file)


def import_writer() -> None:
    """Import what Parquet files are written by, and what that imports with its first array."""
    import pyarrow as pa
    from pyarrow import parquet  # noqa: F401

    pa.array([])


def _write_csv(columns: dict[str, list[Any]], file: Path) -> None:
    with file.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(columns)
        for row in zip(*columns.values(), strict=True):
            writer.writerow([str(v).lower() if isinstance(v, bool) else v for v in row])


def _lists(replayed: Replayed) -> dict[str, list[Any]]:
    lists: dict[str, list[Any]] = {}
    if any(belief is not None for belief in replayed.beliefs):
        for name in BeliefRow._fields:
            lists[f"belief_{name}"] = [
                None if belief is None else getattr(belief, name).tolist()
                for belief in replayed.beliefs
            ]
    predictives = [answer.predictive for answer in replayed.answers]
    if any(p is not None and p.mean is not None and len(p.mean) > 1 for p in predictives):
        lists["covariance"] = [None if p is None else p.variance for p in predictives]
    return lists
