"""Render committed state as answers: summaries of streams, events, records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from math import isfinite, isnan
from operator import attrgetter, itemgetter
from statistics import median
from struct import unpack
from typing import Any, NamedTuple, cast, overload
from urllib.parse import quote

import msgspec
import numpy as np

from moca_client import responses
from moca_client.responses import ABSENT
from moca_client.stream_settings import StreamSettings
from moca_client.tables import magnitude
from model_core import incidents
from model_core.stream.segmentation import best, confirmed, lasting, regimes
from service import wire
from service.wire.commands import DETAILS, LOWER, MEDIAN, UPPER, Layout
from service.wire.event_entries import Raised
from service.wire.incidents import Entered, FoundChange, FoundIncident

EARLIEST_S = -62_135_500_000.0  # years 1 to 9999
LATEST_S = 253_402_200_000.0
_encode = msgspec.json.Encoder().encode


def _members(names: Sequence[str]) -> Callable[[object], dict[str, Any]]:
    """Return a function that reads the members of these names, which are rendered as they are."""
    values = attrgetter(*names)
    return lambda stored: dict(zip(names, values(stored), strict=True))


_RENDERED = {"start_time", "start_arrived", "before", "after", "explanation", "returned"}
_of_event = _members([name for name in responses.Event.__struct_fields__ if name not in _RENDERED])
_of_change = _members(responses.EventMembers.__struct_fields__)
_of_glance = _members(responses.StreamMembers.__struct_fields__)


@overload
def event(stored: wire.Event) -> responses.Event: ...
@overload
def event(stored: wire.Event | None) -> responses.Event | None: ...
def event(stored: wire.Event | None) -> responses.Event | None:
    """Return an event with every field, including defaults."""
    if stored is None:
        return None
    return responses.Event(
        **_of_event(stored),
        start_time=stored.start_time if stored.start_ms is None else instant(stored.start_ms),
        start_arrived=stored.start_ms is not None,
        before=stored.before and responses.RegimeStatistics(*stored.before),
        after=stored.after and responses.RegimeStatistics(*stored.after),
        explanation=stored.explanation and responses.Explanation(*stored.explanation),
        returned=regime(stored.returned),
    )


def settings(stored: wire.StreamSettings) -> StreamSettings:
    """Return a stream's settings, with every field."""
    return cast(StreamSettings, stored._asdict())


def change(stored: wire.SettingsChange) -> responses.Change:
    """Return a change of settings."""
    return responses.Change(
        stored.seq, instant(stored.time_ms), cast(StreamSettings, stored.settings)
    )


def of_classes(probabilities: list[float]) -> responses.Predictive:
    """Return the predictive distribution of a class."""
    return responses.Predictive(ABSENT, ABSENT, ABSENT, probabilities)


def of_numbers(mean: Any, variance: Any, quantiles: Any) -> responses.Predictive:
    """Return the predictive distribution of numbers; a variance that does not exist is null."""
    return responses.Predictive(mean, variance, quantiles, ABSENT)


def _predictive(stored: wire.Record | wire.StoredAnswer, full: bool) -> responses.Predictive | None:
    """Return the predictive distribution of an answer; full: with its variance."""
    if stored.probabilities is not None:
        return of_classes(stored.probabilities)
    if stored.mean is None:
        return None
    return of_numbers(stored.mean, stored.variance if full else ABSENT, stored.quantiles)


def record(stored: wire.Record, full: bool) -> responses.Recorded:
    """Return an observation as it was posted, with its compact answer; full: with details."""
    excluded = stored.excluded
    supervision = stored.changepoint if excluded is None else excluded.changepoint
    belief: list[responses.RunLengthProbability] | None = None
    if stored.belief_override is not None:
        belief = [{"run_length": r, "probability": p} for r, p in stored.belief_override]
    recorded = responses.Recorded(
        seq=stored.seq,
        y=stored.posted,
        x=stored.x,
        time=stored.time,
        elapsed=stored.elapsed,
        supervision=None if supervision is None else responses.RecordedSupervision(supervision),
        belief=belief,
        predictive=_predictive(stored, full),
        changed_probability=stored.changed_probability,
        evidence=stored.evidence,
        anomaly=stored.anomaly,
        regime=regime(stored.regime),
        excluded=None if excluded is None else responses.RecordedExclusion(excluded.window),
    )
    if full:
        recorded.hazard = cast(Any, stored.hazard)  # the same in JSON
        recorded.outlier_rate = stored.outlier_rate
        recorded.log_score = stored.log_score
        recorded.changepoint_probability = stored.changepoint_probability
        recorded.recent_change_probability = stored.recent_change_probability
        recorded.run_length = _most_probable(stored.map_run_length)
    return recorded


def answers(
    command: wire.Observe, outcome: wire.Outcome, kind: type[responses.Answer] = responses.Answer
) -> list[responses.Answer]:
    """Return the answers to a command's observations, in order, as far as they were applied."""
    found: list[responses.Answer] = []
    for part in () if outcome.answers is None else outcome.answers.parts:
        found += _answers_of(command, outcome, part, len(found), kind)
    return found


def texts(
    command: wire.Observe, outcome: wire.Outcome, kind: type[responses.Answer] = responses.Answer
) -> list[bytes]:
    """Return the JSON of each of the same answers."""
    stored = outcome.answers
    found: list[bytes] = []
    for part in () if stored is None else stored.parts:
        assert stored is not None
        if not isinstance(part, wire.QuietAnswers):
            found += map(_encode, _answers_of(command, outcome, part, len(found), kind))
        elif len(command.observations) == 1 and not stored.full:  # most answers are alone
            found.append(_text_of(command, outcome.duplicate, stored.model, part, kind))
        else:
            found += _columns_of(command, outcome, part, len(found)).texts(kind)
    return found


def _text_of(
    command: wire.Observe,
    duplicate: bool,
    model: str,
    part: wire.QuietAnswers,
    kind: type[responses.Answer],
) -> bytes:
    """Return the JSON of the answer, without details, to the one observation of a command."""
    time = command.observations[0].time
    periods = _periods(part.season)
    form, pick = _form(kind, model, False, part.layout, duplicate, time is not None, periods)
    words: list[bytes] = _encode(unpack(f"<{len(part.rows) // 8}d", part.rows))[1:-1].split(b",")
    said = b"" if time is None else _encode(time)
    words += (command.stream.encode(), b"%d" % part.first, said)
    return form % pick(words)


def _answers_of(
    command: wire.Observe,
    outcome: wire.Outcome,
    part: wire.QuietAnswers | wire.StoredAnswer,
    first: int,
    kind: type[responses.Answer],
) -> list[responses.Answer]:
    """Return answers to observations of a command from place `first` on."""
    stored = outcome.answers
    assert stored is not None
    if isinstance(part, wire.QuietAnswers):
        columns = _columns_of(command, outcome, part, first)
        return [columns.answer(kind, i) for i in range(len(columns.seqs))]
    own = part.run_length
    belief = None if part.belief is None else responses.BeliefColumns(*part.belief)
    answer = kind(
        stream=command.stream,
        seq=part.seq,
        model=stored.model,
        predictive=_predictive(part, stored.full),
        log_score=part.log_score,
        changed_probability=part.changed_probability,
        evidence=part.evidence,
        changepoint_probability=part.changepoint_probability,
        recent_change_probability=part.recent_change_probability,
        anomaly=part.anomaly,
        run_length=own
        and responses.RunLengthSummary(
            own.map, own.mean, None, own.hypotheses, own.pruned_mass, belief
        ),
        event=event(part.event),
        warming_up=part.warming_up,
        duplicate=outcome.duplicate,
        components=part.components,
        time=part.time,
        provisional=part.provisional,
        season=season(part.season),
        regime=regime(part.regime),
        new_probability=part.new_probability,
        return_evidence=part.return_evidence,
    )
    return [answer]


def _columns_of(
    command: wire.Observe, outcome: wire.Outcome, part: wire.QuietAnswers, first: int
) -> QuietColumns:
    stored = outcome.answers
    assert stored is not None
    count = len(part.rows) // part.layout.row_bytes(stored.full)
    return QuietColumns(
        stored.model,
        stored.full,
        part.layout,
        [command.stream] * count,
        range(part.first, part.first + count),
        wire.times_of(command.observations)[first : first + count],
        [part.season] * count,
        part.rows,
        outcome.duplicate,
        part.beliefs,
    )


class QuietColumns(NamedTuple):
    """Answers to quiet observations, by columns.

    rows: numbers of each; full: with details. beliefs: run lengths and their probabilities of each.
    """

    model: str
    full: bool
    layout: Layout
    streams: Sequence[str]
    seqs: Sequence[int]
    times: Sequence[str | None]
    seasons: Sequence[wire.SeasonPeriods | None]
    rows: bytes
    duplicate: bool = False
    beliefs: Sequence[tuple[list[int], list[float]]] | None = None  # with details

    def texts(self, kind: type[responses.Answer]) -> list[bytes]:
        """Return the JSON of each, in a quarter of the time of making and encoding answers."""
        count = len(self.seqs)
        layout = self.layout
        width = layout.full if self.full else layout.summary
        numbers = unpack(f"<{len(self.rows) // 8}d", self.rows)
        words: list[bytes] = _encode(numbers)[1:-1].split(b",")
        columns: list[Sequence[Any]] = [words[at::width] for at in range(width)]
        missing: list[int] = []  # answers without members that all others have
        if self.full:
            table = layout.decoded(self.rows, True)
            covariance = table[:, layout.summary : -len(DETAILS)]
            lacking = ~np.isfinite(covariance).all(1) | np.isnan(table[:, -len(DETAILS)])
            missing = lacking.nonzero()[0].tolist()
            for at in _WHOLE:
                columns[at] = [b"%d" % number for number in table[:, at].tolist()]
        columns.append(list(map(str.encode, self.streams)))
        columns.append(_encode(list(self.seqs))[1:-1].split(b","))
        columns.append([time and _encode(time) for time in self.times])
        believed = self.beliefs is not None
        columns.append([_encode(responses.BeliefColumns(*own)) for own in self.beliefs or ()])
        texts = [b""] * count
        for chosen, (timed, periods) in self._alike():
            form, pick = _form(
                kind, self.model, self.full, layout, self.duplicate, timed, periods, believed
            )
            own = pick(columns)
            if len(chosen) == count:  # nearly always
                texts = list(map(form.__mod__, zip(*own, strict=True)))
                continue
            some = [[column[i] for i in chosen] for column in own]
            for i, values in zip(chosen, zip(*some, strict=True), strict=True):
                texts[i] = form % values
        for i in missing:
            texts[i] = _encode(self.answer(kind, i))
        return texts

    def answer(self, kind: type[responses.Answer], i: int) -> responses.Answer:
        """Return one of the answers."""
        layout = self.layout
        numbers = layout.decoded(self.rows, self.full)[i].tolist()
        if self.full:
            for at in _WHOLE:
                numbers[at] = int(numbers[at])
        stream, seq, time = self.streams[i], self.seqs[i], self.times[i]
        answer = _quiet(kind, stream, self.model, seq, time, self.duplicate, layout, numbers)
        if isnan(numbers[layout.summary - 1]):
            answer.anomaly = None
        if self.full and isnan(numbers[-len(DETAILS)]):
            answer.log_score = None
        if self.full and not all(map(isfinite, numbers[layout.summary : -len(DETAILS)])):
            assert answer.predictive is not None
            answer.predictive.variance = None
        answer.season = season(self.seasons[i])
        if self.beliefs is not None:
            assert answer.run_length is not None
            answer.run_length.belief = responses.BeliefColumns(*self.beliefs[i])
        return answer

    def _alike(self) -> Iterable[tuple[Sequence[int], tuple[bool, tuple[int, ...]]]]:
        """Places of answers that have the same members, whether these have times, and seasons."""
        every = range(len(self.seqs))
        without = self.times.count(None)
        season = self.seasons[0]
        if without in (0, len(every)) and self.seasons.count(season) == len(every):
            return [(every, (not without, _periods(season)))]  # nearly always
        pairs = zip(self.times, self.seasons, strict=True)
        kinds = [(time is not None, _periods(own)) for time, own in pairs]
        return [([i for i in every if kinds[i] == one], one) for one in set(kinds)]


def _periods(season: wire.SeasonPeriods | None) -> tuple[int, ...]:
    return () if season is None else tuple(season.periods)


# Of the numbers with details, from the end: those that are whole.
_WHOLE = [DETAILS.index(name) - len(DETAILS) for name in ("map_run_length", "hypotheses")]


@lru_cache(256)
def _form(
    kind: type[responses.Answer],
    model: str,
    full: bool,
    layout: Layout,
    duplicate: bool,
    timed: bool,
    periods: tuple[int, ...],
    believed: bool = False,
) -> tuple[bytes, Callable[[Sequence[Any]], tuple[Any, ...]]]:
    """JSON of an answer, to be filled in by `%`, and what picks what with.

    It picks from the numbers of `Layout`, then stream, position, time and belief.
    """
    width = layout.full if full else layout.summary
    gaps = [msgspec.Raw(b"\0%d\0" % number) for number in range(width + 4)]
    stream = msgspec.Raw(b'"%b"' % bytes(gaps[width]))
    time = gaps[width + 2] if timed else None
    answer = _quiet(kind, stream, model, gaps[width + 1], time, duplicate, layout, gaps[:width])
    answer.season = responses.Season([*periods]) if periods else None
    if believed:
        assert answer.run_length is not None
        answer.run_length.belief = cast(Any, gaps[width + 3])
    parts = _encode(answer).replace(b"%", b"%%").split(b"\0")
    return b"%b".join(parts[::2]), itemgetter(*map(int, parts[1::2]))


def _quiet(
    kind: type[responses.Answer],
    stream: Any,
    model: str,
    seq: Any,
    time: Any,
    duplicate: bool,
    layout: Layout,
    numbers: Sequence[Any],
) -> responses.Answer:
    """Return the answer to a quiet observation by its numbers."""
    end = layout.summary
    outputs = layout.outputs
    middle = numbers[: layout.predictive]
    changed_probability, evidence, anomaly = numbers[layout.predictive : end]
    if layout.classes:
        predictive = of_classes([*middle])
    else:
        mean, lower, median, upper = _cut(middle, outputs)
        quantiles = {LOWER: lower, MEDIAN: median, UPPER: upper}
        predictive = of_numbers(mean, ABSENT, quantiles)
    # What is not named here is as it is by default: it takes its time.
    answer = kind(
        stream=stream,
        seq=seq,
        model=model,
        predictive=predictive,
        changed_probability=changed_probability,
        evidence=evidence,
        duplicate=duplicate,
        time=time,
    )
    answer.anomaly = anomaly
    if len(numbers) > end:
        if layout.covariance:
            predictive.variance = _cut(numbers[end : end + layout.covariance], outputs)
        log_score, starts, recent, most_probable, average, hypotheses, pruned = numbers[
            end + layout.covariance :
        ]
        answer.log_score = log_score
        answer.changepoint_probability = starts
        answer.recent_change_probability = recent
        answer.run_length = responses.RunLengthSummary(
            most_probable, average, None, hypotheses, pruned
        )
    return answer


def _cut(numbers: Sequence[Any], length: int) -> list[list[Any]]:
    """Parts of one length."""
    return [[*numbers[at : at + length]] for at in range(0, len(numbers), length)]


def summary(name: str, head: wire.Head) -> responses.StreamSummary:
    """Return the answer to GET stream."""
    return responses.StreamSummary(
        stream=name,
        model=head.settings.model,
        seq=head.next_seq,
        awaited=[head.seq + i for i, observation in enumerate(head.pending) if observation.pending],
        settings=settings(head.settings),
        warming_up=not head.warm,
        x_dim=head.x_dim,
        y_dim=head.y_dim,
        created=instant(head.created_ms),
        updated=instant(head.updated_ms),
        run_length=_most_probable(head.map_run_length),
        regime_start=None if head.map_run_length is None else head.seq - 1 - head.map_run_length,
        changed_probability=head.changed_probability,
        evidence=head.evidence,
        last=head.last_label,
        event=event(head.track.event),
        last_event=event(head.track.last_event),
        last_anomaly=head.last_anomaly,
        mean_log_score=head.log_score_sum / head.scored if head.scored else None,
        pruned_mass=head.pruned_mass_sum,
        season=season(head.season),
        regime=regime(head.regime),
        alarm_period=alarm_period(head),
    )


def season(stored: wire.SeasonPeriods | None) -> responses.Season | None:
    """Return the season of a stream, if it has one now."""
    return responses.Season(stored.periods) if stored is not None and stored.periods else None


def regime(stored: wire.KnownRegime | None) -> responses.KnownRegime | None:
    """Return the regime that a stream is in, if it is a known one."""
    return None if stored is None else responses.KnownRegime(*stored)


def glance(name: str, head: wire.Head, records: Sequence[wire.Record]) -> responses.Glance:
    """Return a stream's row of the overview, with the first number of each retained label."""
    at = head.map_run_length
    labels = [record.y for record in records if record.seq >= head.retained_from]
    return responses.Glance(
        **_of_glance(summary(name, head)),
        regime_length=None if at is None else at + 1,
        labels=[y[0] if isinstance(y, list) else y for y in labels],
    )


def alarm_period(head: wire.Head) -> responses.AlarmPeriod | None:
    """Return the period between false alarms of a stream that has it from the service."""
    every = head.settings.threshold
    per_day = None if head.pace is None else head.pace.per_day
    return None if per_day is None else responses.AlarmPeriod(per_day, every, every / per_day)


def _most_probable(run_length: int | None) -> responses.MostProbable | None:
    return None if run_length is None else responses.MostProbable(run_length)


def segmentation(
    head: wire.Head,
    records: list[wire.Record],
    events: Iterable[wire.Event],
    hindsight: wire.StoredHindsight | None = None,
) -> list[responses.Segment]:
    """Regimes of the retained records; each `end` is exclusive. events: of the stream."""
    if not records or not head.warm:
        return []
    pointers = {record.seq: record.previous_start for record in records}
    path = best(pointers.get, head.best_start, records[0].seq, records[-1].seq + 1)
    later = [] if hindsight is None else lasting(hindsight.starts, hindsight.seq)
    return [responses.Segment(*segment) for segment in regimes(path, confirmed(events), later)]


def hindsight(status: str, stored: wire.StoredHindsight | None) -> responses.Hindsight:
    """Return how far a segmentation was added to in hindsight."""
    if stored is None:
        return responses.Hindsight(status)
    return responses.Hindsight(status, stored.first, stored.seq, instant(stored.at_ms))


def event_state(raised: Raised) -> responses.StreamEvent:
    """Return an entry of the event feed as its readers receive it."""
    return responses.StreamEvent(
        stream=raised.stream,
        model=raised.model,
        event=event(raised.event),
        time=raised.time,
        at=instant(raised.at_ms),
    )


def console_link(stream: str, start: int) -> str:
    """Return the place of a stream in the console, at a position."""
    return f"/#/streams/{quote(stream, safe='')}?at={start}"


def incident_link(id_: str) -> str:
    """Return the page of an incident in the console."""
    return f"/#/incidents/{id_}"


def stream_change(change: FoundChange) -> responses.StreamChange:
    """Return a change of a stream."""
    own = event(change.event)
    return responses.StreamChange(
        **_of_change(own),
        stream=change.stream,
        model=change.raised.model,
        tags=change.raised.tags,
        suspected_time=_moment(change.suspected),
        confirmed_time=None if change.confirmed is None else _moment(change.confirmed),
    )


def around(
    change: responses.StreamChange, records: Sequence[wire.Record]
) -> responses.ValuesAround | None:
    """Return the values around a start; None without any."""
    if not records:
        return None
    output = 0
    if change.explanation is not None and change.explanation.kind != "share":
        output = change.explanation.output or 0
    values = [wire.numbers(record.posted)[output : output + 1] for record in records]
    times = [record.time for record in records]
    return responses.ValuesAround(
        records[0].seq,
        [None if not value or isnan(value[0]) else value[0] for value in values],
        times if any(times) else [],
    )


NAMED = 10  # streams of an incident that lists name


def incident(
    found: FoundIncident, shared: Sequence[incidents.Mover], fleet: int
) -> responses.Incident:
    """Return an incident; shared: what its streams have in common. fleet: number of all streams."""
    changes = found.changes
    moment = found.moment
    fleet = max(fleet, len(changes))  # streams that are gone, too
    confirmed = [change.confirmed for change in changes if change.confirmed is not None]
    directions = Counter(change.event.direction for change in changes)
    sizes = {change.stream: magnitude(change.event) for change in changes}
    measured = [size for size in sizes.values() if size >= 0.0]
    names = sorted(sizes, key=lambda stream: (-sizes[stream], stream))
    movers = shared_tags(shared)
    return responses.Incident(
        id=found.id,
        headline=incident_headline(len(changes), fleet, moment, movers),
        streams=len(changes),
        fleet=fleet,
        start_time=_instant_of(moment.estimate),
        earliest_time=_instant_of(moment.lower),
        latest_time=_instant_of(moment.upper),
        confirmed_time=_moment(min(confirmed, key=lambda at: at.seconds)),
        updated_time=_moment(max(confirmed, key=lambda at: at.seconds)),
        up=directions["up"],
        down=directions["down"],
        size=median(measured) if measured else None,
        by_chance=responses.ByChance(*found.by_chance),
        movers=movers,
        names=names[:NAMED],
    )


def shared_tags(movers: Sequence[incidents.Mover]) -> list[responses.Mover]:
    """Return what streams have in common."""
    return [responses.Mover(*mover[:-1], dict(mover.others)) for mover in movers]


def incident_headline(
    streams: int, fleet: int, moment: incidents.Moment, shared: Sequence[responses.Mover]
) -> str:
    """Return an incident in words: `10 of 208 streams changed at 2024-05-01 15:00 UTC, all of`…"""
    when = datetime.fromtimestamp(_within_years(moment.estimate), UTC)
    # A start that is known to the minute only has no seconds.
    precise = moment.upper - moment.lower < 60 and when.second
    time = when.strftime("%Y-%m-%d %H:%M:%S" if precise else "%Y-%m-%d %H:%M")
    text = f"{streams} of {fleet} streams changed at {time} UTC"
    if not shared:
        return text
    mover = shared[0]
    tag = mover.name
    if mover.changed == streams == mover.streams:
        return f"{text}, all of {tag}"
    if mover.changed == mover.streams:
        return f"{text}, among them all {mover.streams} of {tag}"
    of_tag = f"{tag}, which {mover.streams} have"
    return f"{text}, {'all' if mover.changed == streams else mover.changed} in {of_tag}"


def _within_years(seconds: float) -> float:
    """Return a time that years 1 to 9999 have: what is estimated may lie beyond."""
    return min(max(seconds, EARLIEST_S), LATEST_S)


def _instant_of(seconds: float) -> str:
    return instant(round(1e3 * _within_years(seconds)))


def _moment(moment: Entered) -> str:
    return instant(moment.at_ms) if moment.time is None else moment.time


def instant(milliseconds: int) -> str:
    """Return a time in ms since 1970 as RFC 3339."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
