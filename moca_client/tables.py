"""Answers, history and changes as columns, as lines of CSV, and in words."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from moca_client.responses import (
    Answer,
    Event,
    EventMembers,
    Hindsight,
    KnownRegime,
    Recorded,
    Season,
    Segment,
    StreamChange,
)

_SCORES = ("changed_probability", "evidence", "anomaly")
_DETAILS = ("log_score", "changepoint_probability", "recent_change_probability")
_NESTED = {"before", "after", "explanation"}
# Columns of a change.
_STATE = [n for n in EventMembers.__struct_fields__ if n not in {*_NESTED, "excluded", "returned"}]
_CHANGE = ("stream", "model", *_STATE, "suspected_time", "confirmed_time")
_EVENT = [name for name in Event.__struct_fields__ if name not in _NESTED]
# One for each output, where there are several.
_VECTORS = ("size", "before_mean", "before_sd", "after_mean", "after_sd")
CERTAIN = 1e9  # evidence from which on digits say nothing
Columns = dict[str, list[Any]]


def columns_of(rows: Sequence[Any], kind: type, full: bool | None = None) -> Columns:
    """Lay out answers, a history's observations, changes or events, which are of one kind.

    full: as of `answer_columns`.
    """
    if issubclass(kind, Answer):
        return _members(rows, ("seq", "time")) | answer_columns(rows, full)
    if issubclass(kind, Recorded):
        return _recorded_columns(rows)
    if issubclass(kind, StreamChange):
        columns = _change_columns(rows)
    else:
        columns = _members(rows, _EVENT) | _side_columns(rows)
    spread: Columns = {}
    for name, values in columns.items():
        spread |= _spread(name, values) if name in _VECTORS else {name: values}
    return spread


def answer_columns(answers: Sequence[Answer], full: bool | None = None) -> Columns:
    """Lay out what was answered, without what was posted.

    full: whether answers have details; None: whether any of these has.
    """
    if full is None:
        full = any(map(_is_full, answers))
    columns = _predictive_columns(answers, full) | _members(answers, _SCORES)
    events = [answer.event for answer in answers]
    for name in ("id", "state", "start"):
        columns[f"event_{name}"] = _member(events, name)
    columns["season"] = [
        None if a.season is None else " ".join(map(str, a.season.periods)) for a in answers
    ]
    columns |= _regime_columns(answers)
    columns["warming_up"] = [answer.warming_up for answer in answers]
    if not full:
        return columns
    columns |= _members(answers, _DETAILS)
    run_lengths = [answer.run_length for answer in answers]
    for name in ("map", "mean", "hypotheses", "pruned_mass"):
        title = name if name in {"hypotheses", "pruned_mass"} else f"run_length_{name}"
        columns[title] = _member(run_lengths, name)
    return columns


def _is_full(answer: Answer | Recorded) -> bool:
    """Whether an answer has details; in the warm-up it may have none of them."""
    if answer.log_score is not None or answer.run_length is not None:
        return True
    return answer.predictive is not None and answer.predictive.variance is not None


def _recorded_columns(rows: Sequence[Recorded]) -> Columns:
    columns = _members(rows, ("seq", "time"))
    if any(row.x for row in rows):
        columns |= _spread("x", [row.x for row in rows])
    columns |= _spread("y", [row.y for row in rows])
    full = any(map(_is_full, rows))
    columns |= _predictive_columns(rows, full) | _members(rows, _SCORES)
    if full:
        columns |= _members(rows, _DETAILS)
        columns["run_length_map"] = _member([row.run_length for row in rows], "map")
    return columns | _regime_columns(rows)


def _regime_columns(answers: Sequence[Answer | Recorded]) -> Columns:
    """Lay out known regimes; no columns where there are none."""
    regimes = [answer.regime for answer in answers]
    if not any(regimes):
        return {}
    names = {"regime": "name", "regime_probability": "probability"}
    if any(regime is not None and regime.id is not None for regime in regimes):
        names["regime_id"] = "id"
    return {column: _member(regimes, name) for column, name in names.items()}


def _predictive_columns(answers: Sequence[Answer | Recorded], full: bool = True) -> Columns:
    """Lay out predictive distributions; those of several dimensions get numbered columns.

    full: with variances. Those of many streams may be of classes, of numbers and of vectors: each
    has its own cells.
    """
    predictives = [answer.predictive for answer in answers]
    present = [p for p in predictives if p is not None]
    dimensions = max((len(p.mean or []) for p in present), default=0)
    classes = max((len(p.probabilities or []) for p in present), default=0)
    levels = dict.fromkeys(chain.from_iterable(p.quantiles or () for p in present))
    means = [None if p is None else p.mean for p in predictives]
    variances = [None if p is None else p.variance for p in predictives]
    quantiles = [{} if p is None else p.quantiles or {} for p in predictives]
    columns: Columns = {}
    for place in range(dimensions):
        suffix = str(place + 1) if dimensions > 1 else ""
        columns["mean" + suffix] = _at(means, place)
        if full:
            columns["variance" + suffix] = _at(_at(variances, place), place)
        for level in levels:
            name = f"quantile_{level}{'_' + suffix if suffix else ''}"
            columns[name] = _at([own.get(level) for own in quantiles], place)
    if classes:
        probabilities = [None if p is None else p.probabilities for p in predictives]
        columns |= {f"probability{place}": _at(probabilities, place) for place in range(classes)}
    return columns


def _at(vectors: Sequence[Sequence[Any] | None], place: int) -> list[Any]:
    """One number of each vector; None where it has none there."""
    return [None if v is None or place >= len(v) else v[place] for v in vectors]


def _members(rows: Sequence[Any], names: Iterable[str]) -> Columns:
    return {name: [getattr(row, name) for row in rows] for name in names}


def _member(rows: Sequence[Any], name: str) -> list[Any]:
    """A member of each; None where there is none."""
    return [None if row is None else getattr(row, name) for row in rows]


def _spread(name: str, values: Sequence[Any]) -> Columns:
    """Return numbers as one column, vectors as one for each dimension."""
    lists = [v if isinstance(v, list) else [] if v is None else [v] for v in values]
    width = max((len(values) for values in lists), default=1)
    return {
        name if width <= 1 else f"{name}{k + 1}": [v[k] if k < len(v) else None for v in lists]
        for k in range(max(width, 1))
    }


# --- changes of all streams ----------------------------------------------------


def _change_columns(changes: Sequence[StreamChange]) -> Columns:
    """Lay out changes; columns of _VECTORS have lists where there are several outputs."""
    columns = _members(changes, _CHANGE)
    columns["kind"] = _member([change.explanation for change in changes], "kind")
    columns |= _side_columns(changes)
    columns["link"] = [change.link for change in changes]
    columns["tags"] = [_json(dict(sorted(change.tags.items()))) for change in changes]
    return columns


def _side_columns(changes: Sequence[EventMembers]) -> Columns:
    """Lay out the regimes on both sides of changes."""
    columns: Columns = {}
    for side in ("before", "after"):
        regimes = [getattr(change, side) for change in changes]
        columns |= {f"{side}_{name}": _member(regimes, name) for name in ("mean", "sd", "count")}
    return columns


def change_lines(changes: Sequence[StreamChange]) -> str:
    """Return changes as CSV with a line of headings; lists as JSON."""
    columns = _change_columns(changes)
    for name in _VECTORS:
        columns[name] = [_json(v) if isinstance(v, list) else v for v in columns[name]]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def magnitude(change: Any) -> float:
    """Size of a change as its sentence has it, up or down, in standard deviations; -1: it has none.

    Of a mean it is that of the explanation, else the event's, of the output that moved most.
    """
    explained = change.explanation
    size = explained.size if explained is not None and explained.kind == "mean" else None
    sizes = change.size if size is None else size
    every = sizes if isinstance(sizes, list) else [sizes]
    return max((abs(size) for size in every if size is not None), default=-1.0)


# --- in words --------------------------------------------------------------------------------


def describe_segmentation(segmentation: Sequence[Segment], hindsight: Hindsight | None) -> str:
    """Return a line with the regimes by seq, and how far they are known in hindsight."""
    regimes = ", ".join(f"{segment.start}-{segment.end - 1}" for segment in segmentation)
    line = f"best segmentation, by seq: {regimes or 'not known yet'}"
    if not regimes or hindsight is None:
        return line
    reach = "online"
    if hindsight.first is not None and hindsight.seq is not None:
        reach = f"in hindsight for {hindsight.first}-{hindsight.seq - 1}"
    later = {"pending": "; hindsight is being computed", "unavailable": "; no hindsight now"}
    return f"{line} ({reach}{later.get(hindsight.status, '')})"


def describe_evidence(evidence: float | None) -> str:
    """Return how rarely evidence gets as high by chance, in observations: `1 in 12,000`."""
    if evidence is None:
        return ""
    rarely = max(1.0, float(f"{evidence:.2g}"))
    return f"1 in {rarely:,.0f}" if rarely < CERTAIN else "1 in a billion+"


def describe_start(change: Event | StreamChange) -> str:
    """Return the start of a change and its interval, as positions: `39 (37-40)`."""
    if change.earliest is None or change.earliest == change.latest:
        return str(change.start)
    return f"{change.start} ({change.earliest}-{change.latest})"


def describe_season(season: Season) -> str:
    """Return how often the season of a stream recurs."""
    return f"every {' and '.join(map(str, season.periods))} observations"


def describe_regime(regime: KnownRegime) -> str:
    """Return the name of a typical regime, or the id of a remembered one, and its probability."""
    name = regime.name
    if regime.id is not None:
        name = f"regime {regime.id}" if name is None else f"{name}, regime {regime.id}"
    return f"{name} ({regime.probability:.2f})"
