"""Reruns: a stream's retained observations through a filter that starts anew.

What was retained is all that is known, so the first of it counts as the first of a regime. The
stream itself is not touched; `adopt` puts the outcome in its place.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import pairwise
from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from model_core.explanation import explained
from model_core.stream import columns, hindsight, warmup
from model_core.stream.columns import effective_rates
from model_core.stream.events import Track
from model_core.stream.pipeline import follow
from model_core.stream.segmentation import NEAR
from model_core.stream.slab import Slab
from model_core.stream.warmup import Moments, Units
from model_core.upm.base import UnderlyingModel
from service.wire import Event, Head, KnownRegime, Record, stored_records
from service.worker.commands.beliefs import believe
from service.worker.filtering.pipeline import StoredPipeline, advance_head
from service.worker.streams import step_inputs
from service.worker.streams.registry import Engine
from service.worker.streams.step_inputs import past_of
from service.worker.streams.stream import Stream

T = TypeVar("T")
# A rerun yields where it can be left for a while, or given up; it returns its outcome.
Steps = Generator[None, None, T]
# Observations between signs of life, at which others of the worker go on.
TICK = 16
SERIES = 512  # of a kernel, which steps them in one call
# Of the head in place, whatever the rerun found.
KEPT = (
    "created_ms",
    "oldest",
    "sealed",
    "last_time",
    "pending",
    "pending_supervision",
    "pending_settings",
    "last_anomaly",
    "season",
    "own_rule",
    "pace",
)


class Rerun:
    """The outcome: a stream that only exists here, its events, its records and their scores.

    records: as given, with where the best path before each one comes from. scores: log score of
    each, None in the warm-up and without a label. changed, evidence: of a change, likewise.
    beliefs: (run length, probability) after each of the last observations, as many as asked for.
    """

    def __init__(self, stream: Stream, records: list[Record]) -> None:
        self.stream = stream
        self.records = records
        self.events: dict[int, Event] = {}
        self.scores: list[float | None] = [None] * len(records)
        self.changed: list[float | None] = [None] * len(records)
        self.evidence: list[float | None] = [None] * len(records)
        self.beliefs: dict[int, list[tuple[int, float]]] = {}

    @property
    def head(self) -> Head:
        """Head of the rerun stream."""
        return self.stream.live()

    def close(self) -> None:
        """Give its place on the device back."""
        self.stream.leave()


def under(
    engine: Engine, stream: Stream, head: Head, records: list[Record], beliefs: int = 0
) -> Steps[Rerun]:
    """Rerun records as a new stream would have seen them; head: its settings and dimensions."""
    model = engine.catalogue.of(head)
    settings = head.settings
    hazard, outlier_rate = effective_rates(model, settings)
    records = [replace(record, hazard=hazard, outlier_rate=outlier_rate) for record in records]
    scaling = warmup.given(model, head.settings)
    warm = 0
    if scaling is None:
        units, warm = _estimated(model, head, records)
        if units is not None:
            scaling, head.resolution = units[:2], units.resolution
    return (yield from _run(engine, stream, head, records, scaling, warm, beliefs))


def corrected(engine: Engine, stream: Stream, records: list[Record]) -> Steps[Rerun]:
    """Rerun records, of which only supervision was changed, in the stream's own units."""
    old = stream.live()
    units = (old.location or [], old.scale or [])
    model = engine.catalogue.of(old)
    warm = 0
    if records and not records[0].seq and warmup.given(model, old.settings) is None:
        _, warm = _estimated(model, old, records)
    return (yield from _run(engine, stream, _anew(old), records, units, warm))


def segmented(engine: Engine, stream: Stream, records: list[Record]) -> Steps[list[int]]:
    """Starts of the regimes of records in hindsight, as they were met, the first included."""
    head = stream.live()
    slab = engine.slab(head)
    past = past_of(slab.model, records, head.belief_override)
    steps = hindsight.starts(slab, past, head.settings, records[0].seq)
    return (yield from ticking(engine, steps))


def ticking(engine: Engine, steps: Steps[T]) -> Steps[T]:
    """Go through the steps of long work with a sign of life before each of them."""
    while True:
        engine.tick()
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        yield


def _anew(old: Head) -> Head:
    """Head of a rerun with the settings of the stream."""
    return Head(
        1,
        old.settings,
        x_dim=old.x_dim,
        y_dim=old.y_dim,
        digest=old.digest,
        resolution=old.resolution,
    )


def _begun(stream: Stream, head: Head, records: list[Record], warm: int) -> Stream:
    made = Stream(stream.partition, stream.name)
    head.generation = stream.live().generation
    head.seq = records[0].seq if records else 0
    settled = head.seq + max(warm - 1, 0)
    head.track = Track(confirmed_start=head.seq, settled=settled, since=settled)
    made.head = head
    return made


def _estimated(
    model: UnderlyingModel, head: Head, records: list[Record]
) -> tuple[Units | None, int]:
    """Units as the warm-up would have found them, None where it is not over.

    Then how many records it asks for.
    """
    seen = step_inputs.columns_of(model, records)
    values = columns.values(model, seen)
    so_far = np.cumsum(columns.labelled(model, seen.y)).tolist()
    for count, labels in enumerate(so_far, 1):
        if warmup.complete(model, values[:labels], head.settings.warmup, count):
            units = warmup.units(model, seen.part(slice(count)), head.settings)
            return units, warmup.asked(seen.y[:count], head.settings.warmup, units.resolution)
    return None, len(records)


def _run(
    engine: Engine,
    stream: Stream,
    head: Head,
    records: list[Record],
    scaling: Moments | None,
    warm: int,
    beliefs: int = 0,
) -> Steps[Rerun]:
    """warm: of the records, how many are the warm-up."""
    made = _begun(stream, head, records, warm)
    override = stream.live().belief_override
    rerun = Rerun(made, records)
    if scaling is None:
        made.buffer = list(records)
        for record in records:
            head.seq += 1
            advance_head(head, record, None)
        head.belief_override = override
        return rerun
    head.location, head.scale = scaling
    head.warm = True
    slab = engine.slab(head)
    (row,) = slab.begin([head.location], [head.scale], [head.resolution])
    made.slab = slab
    made.row = row
    try:
        yield from _step(engine, rerun, warm, beliefs)
    except BaseException:  # given up on the way, too
        rerun.close()
        raise
    if override and records:  # after the last of them
        believe(made, override)
    head.belief_override = override
    return rerun


def _step(engine: Engine, rerun: Rerun, warm: int, beliefs: int) -> Steps[None]:
    made = rerun.stream
    head = rerun.head
    records = rerun.records
    slab = made.slab
    assert slab is not None
    for part in _parts(len(records), warm, beliefs, SERIES if slab.in_series else TICK):
        engine.tick()
        yield
        chosen = records[part.start : part.stop]
        replayed = slab.replay(
            made.row,
            past_of(slab.model, chosen),
            lambda: head.watch,
            summarised=part.start >= warm,  # forecasts of the warm-up are corrected by none
        )
        for i, record, readout in zip(part, chosen, replayed, strict=True):
            if i == 0 and record.seq:
                hindsight.resume(slab, made.row, record.seq)
                readout = readout._replace(best_start=record.seq)
            score = None if readout.log_score != readout.log_score else readout.log_score
            rerun.scores[i] = score
            rerun.changed[i] = readout.changed_probability
            rerun.evidence[i] = readout.evidence
            if i >= len(records) - beliefs:
                rerun.beliefs[record.seq] = slab.belief(made.row).pairs()
            record.previous_start = readout.born_previous_start
            changed = follow(head, readout, record.seq, slab.model.label != "class", record.time)
            rerun.events.update((event.id, event) for event in changed)
            head.seq += 1
            advance_head(head, record, score)
    _explain(rerun, slab)


def _explain(rerun: Rerun, slab: Slab) -> None:
    """Enter what changed at the events that were not withdrawn."""
    head = rerun.head
    lasting = [event for event in rerun.events.values() if event.state != "withdrawn"]
    if not lasting:
        return
    labels = stored_records.labels_of([rerun.records], slab.model.y_dim)
    lasting.sort(key=lambda event: event.start)
    ends = [event.start for event in lasting[1:]]
    for event, end in zip(lasting, [*ends, head.seq], strict=True):
        own = explained(event, slab.model, labels, head.seq, end, head.settings.history)
        rerun.events[event.id] = own
        head.track = head.track.put(own)


def _parts(count: int, warm: int, alone: int, most: int) -> Iterator[range]:
    """Places of the observations to step at a time; the first and the last `alone` each by itself.

    After those the state is looked at. No part has some of the first `warm` and some after them.
    """
    last = max(1, count - alone)
    bounds = sorted({0, min(warm, count), *range(1, last, most), *range(last, count), count})
    return (range(start, end) for start, end in pairwise(bounds) if start < end)


def adopt(
    engine: Engine, stream: Stream, rerun: Rerun, now_ms: int, also: int | None = None
) -> None:
    """Put a rerun in place of its stream, in the next commit; new events are raised.

    Events that the stream has had keep their ids and, where the rerun has them in the same state,
    are left as they were. New are those after the last one known, those near the start `also`, the
    one under suspicion and the last one confirmed.
    What the observations were answered stays, too.
    """
    old = stream.live()
    _keep_regimes(stream, rerun)
    head = rerun.head
    own = stream.events(engine.store)
    track = head.track
    needed = {event.id for event in (track.event, track.last_event) if event is not None}
    new = _reconciled(rerun.events.values(), own, needed, old.track.next_event, also)
    head.changes = old.changes
    gone = old.track.event
    if gone is not None and (
        gone.id in {event.id for event in new.values()} or own[gone.id].state == "withdrawn"
    ):
        gone = None  # it goes on, or was withdrawn by a verdict
    head.track = track._replace(
        event=None if track.event is None else new.get(track.event.id),
        last_event=None if track.last_event is None else new.get(track.last_event.id),
        next_event=max([old.track.next_event, *(event.id + 1 for event in new.values())]),
    )
    for name in KEPT:
        setattr(head, name, getattr(old, name))
    head.pruned_mass_sum += old.pruned_mass_sum
    changed = [event for event in new.values() if own.get(event.id) != event]
    if gone is not None:
        changed.append(gone._replace(state="withdrawn"))
    made = rerun.stream
    if made.slab is None:
        made.begin_season()
        made.resume_season()
    else:
        made.season_state = stream.season_state
    stream.take_over(made)
    stream.tail.relay(head, rerun.records)
    stream.drop_hindsight()
    pipeline = StoredPipeline(engine)
    for event in changed:
        pipeline.publish(stream, event, None)
    stream.touch(now_ms)
    if stream.slab is not None and head.seq:
        engine.commit_state(stream)


def _keep_regimes(stream: Stream, rerun: Rerun) -> None:
    """Give the regimes of a rerun the ids and names that they have in its stream.

    Two are the same where they were last seen at the same observation, give or take NEAR. All
    others get new ids: none is used again.
    """
    slab = rerun.stream.slab
    if slab is None or not rerun.head.settings.regimes:
        return
    old = stream.live()
    own = [] if stream.slab is None else stream.slab.regimes(stream.row)
    first = 1 if stream.slab is None else stream.slab.next_regime(stream.row)
    shift = first - 1
    ids: dict[int, int] = {}
    for regime in slab.regimes(rerun.stream.row):
        assert regime.id is not None
        near = [other for other in own if _apart(other, regime) <= NEAR]
        if near:
            same = min(near, key=lambda other: _apart(other, regime))
            own.remove(same)
            ids[regime.id] = same.id or 0
        else:
            ids[regime.id] = regime.id + shift
    following = slab.next_regime(rerun.stream.row) + shift
    slab.number_regimes(rerun.stream.row, ids, following)
    kept = set(ids.values())
    head = rerun.head
    head.regime_names = {id_: name for id_, name in old.regime_names.items() if id_ in kept}

    def renumbered(regime: KnownRegime | None) -> KnownRegime | None:
        if regime is None or regime.id is None:
            return regime
        return head.named(regime._replace(id=ids.get(regime.id, regime.id + shift)))

    def corrected(event: Event | None) -> Event | None:
        return event and event._replace(returned=renumbered(event.returned))

    head.regime = renumbered(head.regime)
    head.track = head.track._replace(
        event=corrected(head.track.event), last_event=corrected(head.track.last_event)
    )
    rerun.events = {
        id_: event._replace(returned=renumbered(event.returned))
        for id_, event in rerun.events.items()
    }


def _apart(one: KnownRegime, other: KnownRegime) -> int:
    """Observations between the last ones of two regimes."""
    return abs((one.last_seen or 0) - (other.last_seen or 0))


def _reconciled(
    events: Iterable[Event],
    own: dict[int, Event],
    needed: set[int],
    following: int,
    also: int | None,
) -> dict[int, Event]:
    """The rerun's events by their ids there, under the ids of the stream.

    own: the stream's events. needed: ids there without which the rerun could not go on.
    """
    by_id: dict[int, Event] = {}
    free = [other for other in own.values() if other.state != "withdrawn" and not other.excluded]
    after = max((other.start for other in free), default=-1)
    for event in events:
        if event.state == "withdrawn":
            continue
        near = [other for other in free if abs(other.start - event.start) <= NEAR]
        if near:
            same = min(near, key=lambda other: abs(other.start - event.start))
            free.remove(same)
            settled = event.state == "confirmed" and same.start == event.start
            left = same.state == event.state and (settled or event.id not in needed)
            moved = event._replace(id=same.id, verdict=same.verdict)
            by_id[event.id] = same if left else _as_news(moved, same.state == "confirmed")
        elif (
            event.id in needed
            or event.start > after
            or (also is not None and abs(event.start - also) <= NEAR)
        ):
            by_id[event.id] = _as_news(event._replace(id=following), False)
            following += 1
    return by_id


def _as_news(event: Event, before: bool) -> Event:
    """An event as the stream tells it: news, unless it was confirmed there before."""
    if event.state != "confirmed" or not before:
        return event._replace(refined_at=None)
    return event if event.refined_at is not None else event._replace(refined_at=event.confirmed_at)
