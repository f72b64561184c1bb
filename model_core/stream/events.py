"""The life of changepoint events: suspected, confirmed, withdrawn, relocated (DESIGN, section 2).

An event is suspected when the MAP run start moves past what is settled: the warm-up, and all that
was observed when the last change was confirmed. It is confirmed when the evidence of a change since
then reaches a threshold, or when it has stayed for `confirm_after` observations, unless it is still
smaller or younger than the settings want; and withdrawn when it does not stay. Meanwhile the start
may move: that is a better estimate of it, unless it moves past the suspicion itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import copysign, inf, isfinite, isnan, nan, sqrt
from typing import Any, NamedTuple

from model_core.sentences import Explanation, Moments, farthest, sentence
from model_core.stream.state import KnownRegime
from model_core.stream_settings import ALARM_SILENCE, StreamSettings

ROUNDING = 1e-12  # of a sum of squares
# Standard errors by which a size is beyond the least one: of two labels, chosen as the likeliest to
# begin a regime, it is large by chance.
DOUBT = 2.0
SETTLING = 10  # observations after a confirmation at which its start is looked at once more
# A start so many observations after the last confirmed one, at most, that moves the mean by less
# than this share of what that did, is how the same change came about.
ARRIVAL = 5
LESS = 0.5


class Fate(Enum):
    """What becomes of the last confirmed event when a later start is confirmed."""

    KEPT = 1
    MOVED = 2  # it gets another start
    REPLACED = 3  # it was the new one all along
    SAME = 4  # it stays as it is, and the new one is no other change


class Event(NamedTuple):
    """A changepoint's life, or an anomaly, which is confirmed at once.

    `start` and the `_at` fields are positions in the series. Changes are numbered from 1; the id of
    an anomaly is its position.
    """

    id: int
    state: str  # suspected | confirmed | withdrawn
    start: int
    suspected_at: int
    confirmed_at: int | None = None
    delay: int = 0  # suspected_at - start
    probability: float = 0.0
    direction: str | None = None  # up | down
    # In standard deviations within the regimes; of an anomaly None where an output is missing.
    size: float | list[float | None] | None = None
    time: str | None = None  # of the observation that raised this state
    verdict: bool | None = None  # a person's word: whether it was a change
    kind: str = "change"  # or anomaly
    # The shortest set of starts with `coverage` or more of the probability, given a change, is from
    # `earliest` to `latest`; known from the confirmation on.
    earliest: int | None = None
    latest: int | None = None
    coverage: float | None = None
    refined_at: int | None = None  # position at which its start was looked at once more
    # What `explained` makes of the labels on both sides, of a change that is not withdrawn. Those
    # before it begin at `previous`, the start of the change confirmed before it.
    previous: int = 0
    before: Moments | None = None
    after: Moments | None = None
    explanation: Explanation | None = None
    start_time: str | None = None  # of the first observation after it, as it was sent with one
    start_ms: int | None = None  # else when that was accepted, since 1970
    evidence: float | None = None  # of a change, when it entered this state
    excluded: bool = False  # from learning, on request: the regime before it goes on
    returned: KnownRegime | None = None  # the stored regime that a change led back to

    @property
    def sentence(self) -> str:
        """What it is, in a few words."""
        text = sentence(self.explanation, self.direction, self.size, self.kind)
        if self.returned is None:
            return text
        back = f"returned to regime {self.returned.id}"
        if self.returned.name is not None:
            back += f" ({self.returned.name})"
        back += f", last seen at {self.returned.last_seen}"
        return f"{back}: {text}" if text else back

    def named(self, names: Sequence[str | int]) -> Event:
        """With the name of the output that changed most clearly in its sentence, where it has one.

        names: of all outputs; empty: they have none.
        """
        explanation = self.explanation
        if explanation is None and (output := farthest(self.size)) is not None:
            # Of too few labels to explain it: what there is to say, of that output.
            text = sentence(None, self.direction, self.size, self.kind)
            explanation = Explanation(text, output=output)
        if explanation is None or explanation.output is None or not names:
            return self
        i = explanation.output
        text = explanation.text.replace(f"output {i + 1}: ", f"{names[i]}: ", 1)
        return self._replace(explanation=explanation._replace(text=text))

    def to_dict(self) -> dict[str, Any]:
        """As the REST interface has it."""
        fields = self._asdict()
        del fields["previous"], fields["start_ms"]
        for name in ("before", "after", "explanation"):
            part = fields[name]
            fields[name] = part and part._asdict()
        if self.returned is None:
            del fields["returned"]
        else:
            fields["returned"] = self.returned.to_dict()
        return {**fields, "sentence": self.sentence}

    @property
    def news(self) -> bool:
        """Whether it is in another state: no better estimate of a start, and not excluded since."""
        return not self.excluded and (self.state != "confirmed" or self.refined_at is None)


def restored(fields: Sequence[Any]) -> Event:
    """Return an event as JSON has it, as a list of lists."""
    event = Event(*fields)
    return event._replace(
        before=event.before and Moments(*event.before),
        after=event.after and Moments(*event.after),
        explanation=event.explanation and Explanation(*event.explanation),
        returned=event.returned and KnownRegime(*event.returned),
    )


class Watch(NamedTuple):
    """What a step is read for.

    settled: last position at which a start is no new change. since: last position at which one is
    none of the last confirmed change either; before `settled` until the start of that has been
    looked at once more. threshold: of the evidence, at which a change is confirmed; 0: it takes
    time.
    """

    settled: int = 0
    since: int = 0
    threshold: float = 0.0


NOTHING_WATCHED = Watch()


class Track(NamedTuple):
    """What following the events needs from one observation to the next.

    settled, since: as of `Watch`. Totals are a count, sums and sums of squares of all labels
    before a start.
    """

    confirmed_start: int = 0
    before_start: int = 0  # start of the regime before the confirmed one
    confirmed_totals: list[float] | None = None  # before the confirmed start
    before_totals: list[float] | None = None  # before the start of the regime before it
    event: Event | None = None  # the event under suspicion
    last_event: Event | None = None  # the last confirmed one
    next_event: int = 1
    settled: int = 0
    since: int = 0

    def watch(self, threshold: float) -> Watch:
        """What the next step is to be read for."""
        return Watch(self.settled, self.since, threshold)

    def put(self, event: Event) -> Track:
        """With an event as it is now in place of what it was, if it is followed."""
        suspected, last = (
            event if own is not None and own.id == event.id else own
            for own in (self.event, self.last_event)
        )
        return self._replace(event=suspected, last_event=last)


class EventReading(NamedTuple):
    """What the belief says after one observation.

    start: MAP run start, with its `probability`. previous_start: where the best path before it
    starts. totals: count, sums and sums of squares of all labels; start_totals: those before
    `start`; both None where labels are no quantities. evidence: of a change since what is settled.
    earliest to returned: as of an event. labelled: whether the observation had a label.
    """

    seq: int
    time: str | None
    start: int
    probability: float
    previous_start: int
    totals: list[float] | None
    start_totals: list[float] | None
    evidence: float = 0.0
    earliest: int | None = None
    latest: int | None = None
    coverage: float | None = None
    returned: KnownRegime | None = None
    labelled: bool = True


class Shift(NamedTuple):
    """How far the mean of an output has moved from one regime to the next.

    mean: in units of the label. sd: pooled within the two regimes; 0: they are constant. size: the
    shift in standard deviations. error: its standard error.
    """

    mean: float
    sd: float
    size: float
    error: float


def track(
    state: Track, reading: EventReading, settings: StreamSettings
) -> tuple[Track, list[Event]]:
    """Move the event state by one observation; returns it and the events that changed.

    settings: say when a change is confirmed.
    """
    if reading.start <= state.settled:
        state, changed = _withdraw(state, reading)
        if settling(state, reading.seq):
            state, more = _relocate(state, reading)
            changed = [*changed, *more]
        return state, changed
    if settling(state, reading.seq):  # another is suspected by now: it stays as it is
        state = state._replace(since=state.settled)
    state, changed = _suspect(state, reading)
    if state.event is not None and _confirmed(state, state.event, reading, settings):
        state, more = _confirm(state, state.event, reading)
        changed = [*changed, *more]
    return state, changed


def _confirmed(state: Track, event: Event, reading: EventReading, settings: StreamSettings) -> bool:
    """Whether the settings have a suspected change confirmed by now.

    Nothing is confirmed at an observation without a label, which is no evidence.
    """
    if not reading.labelled:
        return False
    if settings.threshold:
        enough = reading.evidence >= settings.threshold
    else:
        enough = reading.seq - event.suspected_at >= (settings.confirm_after or 0)
    if not enough or reading.seq + 1 - reading.start < settings.min_duration:
        return False
    if not (settings.min_size or settings.min_shift) or reading.totals is None or event.verdict:
        return True  # classes have no size; what somebody has called a change is none too small
    before = _before(state, _fate(state, reading))
    return any(
        abs(shift.size) >= settings.min_size + DOUBT * shift.error
        and abs(shift.mean) >= settings.min_shift + DOUBT * shift.error * shift.sd
        for shift in _shifts(before, reading.start_totals, reading.totals)
    )


def settling(state: Track, seq: int) -> bool:
    """Whether the start of the last confirmed event is to be looked at once more."""
    last = state.last_event
    return last is not None and seq == (last.confirmed_at or 0) + SETTLING


def _relocate(state: Track, reading: EventReading) -> tuple[Track, list[Event]]:
    """Move the last confirmed event to what is the most probable start by now."""
    last = state.last_event
    first = state.since
    state = state._replace(since=state.settled)
    if last is None or reading.start <= first:
        return state, []
    suspected_at = max(last.suspected_at, reading.start)
    moved = _estimated(last, state.before_totals, reading)._replace(
        start=reading.start,
        suspected_at=suspected_at,
        delay=suspected_at - reading.start,
        refined_at=reading.seq,
    )
    state = state._replace(
        last_event=moved, confirmed_totals=reading.start_totals, confirmed_start=reading.start
    )
    return state, [moved]


def _withdraw(state: Track, reading: EventReading) -> tuple[Track, list[Event]]:
    if state.event is None:
        return state, []
    gone = state.event._replace(state="withdrawn", probability=0.0, time=reading.time)
    return state._replace(event=None), [gone]


def _suspect(state: Track, reading: EventReading) -> tuple[Track, list[Event]]:
    """Open an event, or move the open one: the MAP start is one that is not confirmed."""
    event = state.event
    if event is not None and event.start == reading.start:
        return state, []
    changed: list[Event] = []
    if event is not None and reading.start > event.suspected_at:
        # A start after the suspicion cannot be what was suspected.
        state, changed = _withdraw(state, reading)
        event = None
    if event is None:
        event = Event(state.next_event, "suspected", reading.start, suspected_at=reading.seq)
        state = state._replace(next_event=state.next_event + 1)
    direction, size = _step(state.confirmed_totals, reading)
    event = event._replace(
        start=reading.start,
        delay=event.suspected_at - reading.start,
        probability=reading.probability,
        direction=direction,
        size=size,
        time=reading.time,
        previous=state.confirmed_start,
        evidence=reading.evidence,
        returned=reading.returned,
    )
    return state._replace(event=event), [*changed, event]


def _confirm(state: Track, event: Event, reading: EventReading) -> tuple[Track, list[Event]]:
    """Confirm the open event, or, where it replaces the last confirmed one, relocate that.

    Where it is the same change it is withdrawn, and what was observed so far is settled.
    """
    last = state.last_event
    changed: list[Event] = []
    fate = _fate(state, reading)
    if fate is Fate.SAME:
        state, changed = _withdraw(state, reading)
        return state._replace(settled=reading.seq, since=reading.seq), changed
    before = _before(state, fate)
    event = event._replace(previous=state.confirmed_start)
    if last is not None and fate is Fate.REPLACED:
        changed.append(event._replace(state="withdrawn", time=reading.time))
        # The first suspicion stands, unless it was before the start it now belongs to.
        since = last.suspected_at if last.suspected_at >= event.start else event.suspected_at
        event = last._replace(start=event.start, suspected_at=since, delay=since - event.start)
    elif last is not None and fate is Fate.MOVED:
        moved = reading.previous_start
        delay = last.suspected_at - moved
        # Of where it began no interval is known any more: the belief has no starts before the last.
        changed.append(
            last._replace(
                start=moved,
                delay=delay,
                refined_at=reading.seq,
                earliest=None,
                latest=None,
                coverage=None,
            )
        )
        event = event._replace(previous=moved)
    if fate is not Fate.REPLACED:
        state = state._replace(before_start=reading.previous_start)
    confirmed = _estimated(event, before, reading)._replace(
        state="confirmed",
        confirmed_at=reading.seq,
        refined_at=None,
        evidence=reading.evidence,
        returned=reading.returned,
    )
    state = state._replace(
        event=None,
        last_event=confirmed,
        before_totals=before,
        confirmed_totals=reading.start_totals,
        confirmed_start=reading.start,
        settled=reading.seq,
        since=state.settled,
    )
    return state, [*changed, confirmed]


def _before(state: Track, fate: Fate) -> list[float] | None:
    """Totals before the regime that a newly confirmed start ends."""
    return state.before_totals if fate is Fate.REPLACED else state.confirmed_totals


def _estimated(event: Event, before: list[float] | None, reading: EventReading) -> Event:
    """An event with what is known of its change by now; before: totals before the regime before."""
    direction, size = _step(before, reading)
    return event._replace(
        probability=reading.probability,
        direction=direction,
        size=size,
        time=reading.time,
        earliest=reading.earliest,
        latest=reading.latest,
        coverage=reading.coverage,
    )


def _fate(state: Track, reading: EventReading) -> Fate:
    """What the best path of a newly confirmed start says of the event confirmed before it."""
    last = state.last_event
    confirmed = state.confirmed_start
    previous = reading.previous_start
    if last is None or previous == confirmed or previous > last.suspected_at:
        # One after the suspicion is a short regime of its own, never confirmed.
        return Fate.SAME if _same(state, reading) else Fate.KEPT
    if previous > confirmed:
        return Fate.MOVED
    # It leads through the start before the confirmed one, give or take; or through a better
    # estimate of the confirmed one.
    return Fate.MOVED if 2 * previous > confirmed + state.before_start else Fate.REPLACED


def _same(state: Track, reading: EventReading) -> bool:
    """Whether a newly confirmed start is how the change confirmed before it came about.

    Not where somebody has called it a change, nor a return to a stored regime.
    """
    last = state.last_event
    called = state.event is not None and state.event.verdict
    if last is None or called or reading.returned is not None:
        return False
    if reading.start - last.start > ARRIVAL:
        return False
    firsts = _shifts(state.before_totals, state.confirmed_totals, reading.start_totals)
    shifts = _shifts(state.confirmed_totals, reading.start_totals, reading.totals)
    if not firsts or not shifts:
        return False
    first, shift = max(zip(firsts, shifts, strict=True), key=lambda pair: abs(pair[0].size))
    size = abs(first.size)
    # What has hardly moved before, as where the spread changed, did so by chance.
    return (
        size > DOUBT * first.error
        and abs(shift.mean) < LESS * abs(first.mean)
        and all(abs(other.size) < LESS * size for other in shifts)
    )


def _step(
    before: list[float] | None, reading: EventReading
) -> tuple[str | None, float | list[float | None] | None]:
    """Direction and size of a shift, in standard deviations pooled within the two regimes.

    The direction is that of the output that moved most; where that was constant within the
    regimes there is no size.
    """
    shifts = _shifts(before, reading.start_totals, reading.totals)
    if not shifts:
        return None, None
    most = max((shift.size for shift in shifts), key=abs)
    direction = None if most == 0 else "up" if most > 0 else "down"
    if not isfinite(most):
        return direction, None
    return direction, (most if len(shifts) == 1 else [shift.size for shift in shifts])


def _shifts(
    before: list[float] | None, middle: list[float] | None, totals: list[float] | None
) -> list[Shift]:
    """Shifts of all outputs; none where there are too few labels, or no quantities.

    Totals before the regime before the shift, before that after it, and of all labels of both.
    """
    if totals is None or middle is None:
        return []
    first = before if before is not None else [0.0] * len(totals)
    outputs = (len(totals) - 1) // 2
    old = middle[0] - first[0]
    new = totals[0] - middle[0]
    if old < 1 or new < 1 or old + new <= 2:
        return []
    error = sqrt(1.0 / old + 1.0 / new)
    shifts = []
    for i in range(1, outputs + 1):
        j = i + outputs
        mean_old = (middle[i] - first[i]) / old
        mean_new = (totals[i] - middle[i]) / new
        within = (middle[j] - first[j]) - old * mean_old**2
        within += (totals[j] - middle[j]) - new * mean_new**2
        squares = totals[j] - first[j]
        shift = mean_new - mean_old
        if within > ROUNDING * squares:
            sd = sqrt(within / (old + new - 2))
            size = shift / sd
        else:  # only rounding is left within the regimes
            sd = 0.0
            alike = shift**2 * (old + new) <= ROUNDING * squares
            size = 0.0 if alike else copysign(inf, shift)
        shifts.append(Shift(shift, sd, size, error))
    return shifts


def alarming(threshold: float | None, anomaly: float, seq: int, last: int | None) -> bool:
    """Whether an observation's anomaly raises an event; last: position of the one before it."""
    silent = last is not None and seq - last < ALARM_SILENCE
    return threshold is not None and anomaly >= threshold and not silent


def anomaly(
    seq: int,
    probability: float,
    label: Sequence[float],
    moments: tuple[Sequence[float], Sequence[float]] | None,
    time: str | None = None,
) -> Event:
    """Anomaly event at `seq`, with the label's distance from its predictive mean, in its sd.

    label: (d,) nan where missing. moments: mean and sd, None of classes. The direction is that of
    the output that is farthest off; a missing output has no size. There is none at all where the
    predictive distribution of another has no variance.
    """
    event = Event(
        seq, "confirmed", seq, seq, seq, probability=probability, time=time, kind="anomaly"
    )
    if moments is None or len(label) != len(moments[0]):
        return event
    sizes = [
        None if isnan(y) else (y - mean) / sd if 0 < sd < inf else nan
        for y, mean, sd in zip(label, *moments, strict=True)
    ]
    measured = [size for size in sizes if size is not None]
    if not all(map(isfinite, measured)):
        return event
    most = max(measured, key=abs)
    direction = None if most == 0 else "up" if most > 0 else "down"
    return event._replace(direction=direction, size=sizes[0] if len(sizes) == 1 else sizes)
