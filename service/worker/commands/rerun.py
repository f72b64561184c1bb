"""Reruns: a stream's retained observations through a filter that starts anew.

Clients ask for them: feedback, exclusion from learning, other settings or models, hindsight. What
was retained is all that is known, so the first of it counts as the first of a regime. The stream
itself is not touched; `_adopt` puts the outcome in its place.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
from msgspec.structs import replace

from moca_client import responses
from moca_client.responses import BeliefAfter
from model_core.explanation import explained
from model_core.stream import checks, columns, hindsight, season, seasons, warmup
from model_core.stream.checks import Dimensions
from model_core.stream.columns import effective_rates
from model_core.stream.events import Track
from model_core.stream.pipeline import follow
from model_core.stream.segmentation import NEAR
from model_core.stream.slab import Slab
from model_core.stream.state import SeenLabels, kept_season, seasons_of
from model_core.stream.warmup import Moments, Units
from model_core.stream_settings import SEASONS_FROM
from model_core.upm.base import UnderlyingModel
from service.observability import metrics
from service.problems import NotRetained, UnknownEvent, WarmingUp
from service.schema import rendering
from service.wire import (
    Envelope,
    Event,
    EventFeedback,
    Exclude,
    Head,
    KnownRegime,
    Move,
    Observation,
    Record,
    SeasonPeriods,
    SegmentHistory,
    StoredHindsight,
    WhatIf,
    outputs_of,
    stored_records,
    updated,
)
from service.worker.commands.reads import believe
from service.worker.filtering.pipeline import StoredPipeline, advance_head
from service.worker.streams import step_inputs
from service.worker.streams.registry import Engine
from service.worker.streams.step_inputs import label_of, past_of
from service.worker.streams.stream import Floats, Stream
from service.worker.streams.validation import check_sizes, with_model

T = TypeVar("T")
# A rerun yields where it can be left for a while, or given up; it returns its outcome.
Steps = Generator[None, None, T]
TICK = 16  # observations that are stepped until others of the worker go on
SERIES = 512  # of a kernel, which steps them in one call
# Of the head in place, whatever the rerun found.
KEPT = (
    "created_ms",
    "oldest",
    "last_time",
    "pending",
    "pending_supervision",
    "pending_settings",
    "last_anomaly",
    "season",
    "own_rule",
    "pace",
)
# Observations segmented in hindsight where torch steps each: about a second, for which the other
# commands of the partition wait.
UNCOMPILED = 512
SHOWN = 64  # run lengths of a belief in an answer, at most
BELIEVED = 1e-4  # their probability, at least


def apply_feedback(
    engine: Engine, stream: Stream, command: EventFeedback, envelope: Envelope
) -> Steps[responses.Verdict]:
    """Correct the belief by a person's word, and keep it: answer to the verdict.

    A change is certain at its start. Of one that was none, everything between the changes before
    and after it is one regime.
    """
    head = stream.live()
    records, start, events, event = _corrected(engine, stream, command)
    supervision = {start: 1.0}
    if event is not None and not command.change:
        starts = [event.start for event in events.values() if event.state != "withdrawn"]
        before = max((other for other in starts if other < start), default=0)
        after = min((other for other in starts if other > start), default=head.seq)
        supervision = dict.fromkeys(range(before + 1, after), 0.0)
    records = _known_now(stream, records, head.settings.seasonal)
    records = [
        replace(record, changepoint=supervision.get(record.seq, record.changepoint))
        for record in records
    ]
    corrected = yield from rerun_corrected(engine, stream, records)
    if event is not None and not command.change:
        # Not raised yet: `_judged` does, once the rerun is in place.
        stream.keep_events([event._replace(state="withdrawn", verdict=False)])
    _adopt(engine, stream, corrected, envelope.time_ms, also=start)
    kept = _judged(engine, stream, command, event, start)
    return responses.Verdict(stream.name, stream.live().seq, rendering.event(kept))


class Corrected(NamedTuple):
    """What a correction is of: the records, from `start` on; events by id, and the one meant."""

    records: list[Record]
    start: int
    events: dict[int, Event]
    event: Event | None


def _corrected(engine: Engine, stream: Stream, command: EventFeedback | Exclude) -> Corrected:
    """Find what a command corrects; raises WarmingUp, UnknownEvent and NotRetained."""
    head = stream.live()
    if stream.slab is None or head.seq == 0:
        raise WarmingUp(f"the stream has no belief yet at seq {head.seq}", seq=head.seq)
    records = stream.tail.retained(head, engine.store, engine.settings.max_replay)
    events = stream.events(engine.store)
    event = None
    start = command.start or 0
    if command.event is not None:
        event = events.get(command.event)
        if event is None:
            raise UnknownEvent(f"the stream has no event {command.event}")
        start = event.start
    first = records[0].seq if records else head.seq
    if not first < start < head.seq:
        raise NotRetained(
            f"start {start} is outside the retained range {first + 1}-{head.seq - 1}", first=first
        )
    return Corrected(records, start, events, event)


def exclude(
    engine: Engine, stream: Stream, command: Exclude, envelope: Envelope
) -> Steps[responses.Exclusion]:
    """Exclude observations from learning, or have them count again: answer to the request.

    The regime before the excluded ones goes on after them, and the season is learned without them.
    Changes of these observations stay what they were, marked as excluded; a suspicion of now ends
    where they were all there was to it.
    """
    seq = stream.live().seq
    records, start, events, _ = _corrected(engine, stream, command)
    end = _end(command, start, events, seq)
    first = records[0].seq
    span = slice(start - first, end - first)
    changed = [record.exclude() if command.excluded else record.include() for record in records]
    records[span] = changed[span]
    records, season_state = _learned_anew(stream, records, start, end)
    corrected = yield from rerun_corrected(engine, stream, records)
    lasting = [one.start for one in corrected.events.values() if one.state == "confirmed"]
    marked = []
    for own in events.values():
        alone = all(abs(own.start - other) > NEAR for other in lasting)
        concerned = own.state == "confirmed" and start <= own.start <= end
        if concerned and own.excluded != (command.excluded and alone):
            marked.append(own._replace(excluded=not own.excluded))
    # Not raised yet: where they count again, the rerun may have moved them.
    stream.keep_events(marked)
    _put_season(stream, season_state, start)
    _adopt(engine, stream, corrected, envelope.time_ms, also=None if command.excluded else start)
    present = stream.events(engine.store)
    marked = [present[own.id] for own in marked]
    stream.raise_events(marked, None)
    metrics.EXCLUDED.labels("request").inc(end - start if command.excluded else 0)
    return responses.Exclusion(
        stream.name, seq, start, end, command.excluded, [rendering.event(own) for own in marked]
    )


def _end(command: Exclude, start: int, events: dict[int, Event], seq: int) -> int:
    """The first observation after those that a request is for; raises NotRetained."""
    if command.end is None:
        later = [one.start for one in events.values() if one.state == "confirmed"]
        return min((other for other in later if other > start), default=seq)
    if not start < command.end <= seq:
        raise NotRetained(f"end {command.end} is outside the range {start + 1}-{seq}")
    return command.end


def _judged(
    engine: Engine, stream: Stream, command: EventFeedback, event: Event | None, start: int
) -> Event:
    """The event that the verdict is on, as it is now, with the verdict."""
    events = stream.events(engine.store)
    if event is not None:
        now = events[event.id]._replace(verdict=command.change)
    else:
        alive = [e for e in events.values() if e.state != "withdrawn"]
        near = [e for e in alive if abs(e.start - start) <= NEAR]
        head = stream.live()
        made = Event(
            head.track.next_event,
            "confirmed",
            start,
            start,
            head.seq - 1,
            probability=1.0,
            previous=max((e.start for e in alive if e.start < start), default=0),
        )
        nearest = min(near, key=lambda e: abs(e.start - start), default=made)
        now = nearest._replace(verdict=True)
        head.track = head.track._replace(next_event=max(head.track.next_event, now.id + 1))
    head = stream.live()
    head.track = head.track.put(now)
    stream.raise_events([now], None)
    return now


def what_if(
    engine: Engine, stream: Stream, command: WhatIf, envelope: Envelope
) -> Steps[responses.WhatIf]:
    """Answer to POST what-if: the retained history under other settings."""
    head, records = _prepared(engine, stream, command.settings)
    variant = yield from _under(engine, stream, head, records, command.beliefs)
    try:
        answer = _compared(stream, variant, records, command.series)
        if command.beliefs:
            answer.beliefs = [_shown(seq, belief) for seq, belief in variant.beliefs.items()]
        return answer
    finally:
        variant.stream.leave()


def _shown(seq: int, belief: list[tuple[int, float]]) -> BeliefAfter:
    """A belief without what is hardly believed: whole ones of many observations are megabytes."""
    top = sorted(belief, key=lambda pair: -pair[1])[:SHOWN]
    kept = sorted(pair for pair in top if pair[1] >= BELIEVED)
    return BeliefAfter(
        seq=seq,
        run_length=[run_length for run_length, _ in kept],
        probability=[round(probability, 6) for _, probability in kept],
    )


def _compared(
    stream: Stream, variant: Rerun, records: list[Record], series: bool
) -> responses.WhatIf:
    both = [
        (new, record.log_score)
        for new, record in zip(variant.scores, records, strict=True)
        if new is not None and record.log_score is not None
    ]
    count = len(both)
    return responses.WhatIf(
        stream=stream.name,
        seq=variant.head.seq,
        first=records[0].seq if records else variant.head.seq,
        model=variant.head.settings.model,
        settings=rendering.settings(variant.head.settings),
        warming_up=not variant.head.warm,
        compared=count,
        mean_log_score=sum(new for new, _ in both) / count if count else None,
        present_mean_log_score=sum(old for _, old in both) / count if count else None,
        events=[rendering.event(event) for event in variant.events.values()],
        segmentation=rendering.segmentation(variant.head, variant.records, variant.events.values()),
        log_score=variant.scores if series else None,
        changed_probability=variant.changed if series else None,
        evidence=variant.evidence if series else None,
    )


def segment_history(
    engine: Engine, stream: Stream, command: SegmentHistory, envelope: Envelope
) -> Steps[None]:
    """Segment what is retained in hindsight, unless that was done a short while ago.

    The segmentation is kept beside the stream; the stream itself stays as it is.
    """
    head = stream.live()
    if not head.warm:
        raise WarmingUp(f"the stream has no belief yet at seq {head.seq}", seq=head.seq)
    kept = engine.store.hindsight(stream.partition, stream.name)
    if kept is not None and kept.current(head):
        return
    in_series = stream.slab is not None and stream.slab.in_series
    most = engine.settings.max_replay if in_series else min(UNCOMPILED, engine.settings.max_replay)
    records = stream.tail.retained(head, engine.store, most)
    if not records:
        raise NotRetained("no observation is retained that could be segmented", first=head.seq)
    records = _known_now(stream, records, head.settings.seasonal)
    slab = engine.slab(head)
    past = past_of(slab.model, records, head.belief_override)
    starts = yield from hindsight.starts(slab, past, head.settings, records[0].seq)
    stream.keep_hindsight(
        StoredHindsight(head.generation, starts[0], head.seq, starts, envelope.time_ms)
    )


def move(engine: Engine, stream: Stream, command: Move, envelope: Envelope) -> Steps[None]:
    """Have a stream go on under another model, as if it had been there for all that is retained."""
    old = stream.live()
    name = engine.catalogue.resolve(command.model)
    if (name, engine.catalogue.digest(name)) == (old.settings.model, old.digest):
        return
    stream.events(engine.store)  # needed later: nothing has changed yet where one is damaged
    head, records = _prepared(engine, stream, {"model": name}, old.pending, anew=True)
    moved = yield from _under(engine, stream, head, records)
    if head.settings.seasonal is None and not engine.catalogue.of(head).seasonal:
        stream.season_state = old.season = None  # its labels were rerun as they are
    _adopt(engine, stream, moved, envelope.time_ms)
    # Pending observations are filtered under the new model, as the retained ones were.
    stream.live().pending_settings = []


def _prepared(
    engine: Engine,
    stream: Stream,
    given: dict[str, Any],
    pending: Sequence[Observation] = (),
    anew: bool = False,
) -> tuple[Head, list[Record]]:
    """Head of a new stream with the settings, and records; raises StreamConflict.

    pending: what waits for labels, which is to fit, too. anew: the artifact of a model that stays
    is the one that lies there now, not the stream's.
    """
    head = stream.live()
    catalogue = engine.catalogue
    settings = updated(head.settings, with_model(engine, head, given))
    checks.check_options(settings.model, settings, given)
    records = stream.tail.retained(head, engine.store, engine.settings.max_replay)
    stays = settings.model == head.settings.model and not anew
    digest = head.digest if stays else catalogue.digest(settings.model)
    x_dim, y_dim = catalogue.dimensions(settings.model, digest)
    dimensions = Dimensions(x_dim, y_dim)
    all_seen: list[tuple[int, Record | Observation]] = [(record.seq, record) for record in records]
    all_seen += enumerate(pending, head.seq)
    for _, seen in all_seen:
        dimensions = dimensions.after(seen.x, outputs_of(seen.y))
    shaped = Head(1, settings, x_dim=dimensions.x_dim, y_dim=dimensions.y_dim, digest=digest)
    model = catalogue.of(shaped)
    dimensions = checks.check_settings(settings, model, dimensions)
    check_sizes(engine, shaped, dimensions, settings.max_hypotheses)
    for seq, seen in all_seen:
        where = f"observation {seq}: "
        checks.check_observation(seen.x, outputs_of(seen.y), model, dimensions, where)
    shaped.x_dim, shaped.y_dim = dimensions
    seasonal = settings.seasonal if settings.seasonal or model.seasonal else False
    return shaped, _known_now(stream, records, seasonal)


# --- what is rerun, and as what -------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class Rerun:
    """The outcome: a stream that only exists here, its events, its records and their scores.

    records: as given, with where the best path before each one comes from. scores: log score of
    each, None in the warm-up and without a label. changed, evidence: of a change, likewise.
    beliefs: (run length, probability) after each of the last observations, as many as asked for.
    """

    stream: Stream
    records: list[Record]
    scores: list[float | None]
    changed: list[float | None]
    evidence: list[float | None]
    events: dict[int, Event] = field(default_factory=dict)
    beliefs: dict[int, list[tuple[int, float]]] = field(default_factory=dict)

    @property
    def head(self) -> Head:
        """Head of the rerun stream."""
        return self.stream.live()


def _under(
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


def rerun_corrected(engine: Engine, stream: Stream, records: list[Record]) -> Steps[Rerun]:
    """Rerun records, of which only supervision was changed, in the stream's own units."""
    old = stream.live()
    units = (old.location or [], old.scale or [])
    model = engine.catalogue.of(old)
    warm = 0
    if records and not records[0].seq and warmup.given(model, old.settings) is None:
        _, warm = _estimated(model, old, records)
    head = Head(
        1,
        old.settings,
        x_dim=old.x_dim,
        y_dim=old.y_dim,
        digest=old.digest,
        resolution=old.resolution,
    )
    return (yield from _run(engine, stream, head, records, units, warm))


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
    head.generation = stream.live().generation
    head.seq = records[0].seq if records else 0
    settled = head.seq + max(warm - 1, 0)
    head.track = Track(confirmed_start=head.seq, settled=settled, since=settled)
    made = Stream(stream.partition, stream.name)
    made.head = head
    override = stream.live().belief_override
    nothing: list[float | None] = [None] * len(records)
    rerun = Rerun(made, records, nothing, [*nothing], [*nothing])
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
        yield from _step(rerun, warm, beliefs)
    except BaseException:  # given up on the way, too
        made.leave()
        raise
    if override and records:  # after the last of them
        believe(made, override)
    head.belief_override = override
    return rerun


def _step(rerun: Rerun, warm: int, beliefs: int) -> Steps[None]:
    made = rerun.stream
    head = rerun.head
    records = rerun.records
    slab = made.slab
    assert slab is not None
    count = len(records)
    # The state is looked at after the first observation, and after each of the last `beliefs`.
    last = max(1, count - beliefs)
    most = SERIES if slab.in_series else TICK
    bounds = sorted({0, min(warm, count), *range(1, last, most), *range(last, count), count})
    for part in map(range, bounds, bounds[1:]):
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
    records = rerun.records
    columns = stored_records.labels_of([[*records]], slab.model.y_dim)
    labels = SeenLabels(*columns, lambda at: (records[at].time, records[at].accepted_ms))
    lasting.sort(key=lambda event: event.start)
    ends = [event.start for event in lasting[1:]]
    for event, end in zip(lasting, [*ends, head.seq], strict=True):
        own = explained(event, slab.model, labels, head.seq, end, head.settings.history)
        rerun.events[event.id] = own
        head.track = head.track.put(own)


def _adopt(
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
    for record in rerun.records:
        stream.tail.put(record)
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


# --- seasons of retained records, as they are known now: see `model_core.stream.seasons` ----------


def _known_now(stream: Stream, records: Iterable[Record], seasonal: bool | None) -> list[Record]:
    """Retained records for a rerun, less the seasons that are known now.

    Observations since the filter last began anew are as they were met. seasonal: the setting of the
    rerun; of a stream that has not looked for seasons in that way these are found first.
    """
    records = list(records)
    state = stream.season_state
    present = stream.live().season
    seq = stream.live().seq
    if seasonal is False:
        return [replace(record, offset=[]) for record in records] if state is not None else records
    outputs = stream.live().y_dim or 1
    if state is None and seasonal:
        state, present, records = _searched(records, outputs)
    elif (
        state is None and stream.live().settings.seasonal is False and len(records) >= SEASONS_FROM
    ):
        (state,) = season.searched([_labels(records, outputs)])
        present = None if state is None else SeasonPeriods(season.periods(state), seq)
    if state is None:
        return records
    return _less(records, seasons.known_now(present, state, seq, _met(records, outputs)))


def _learned_anew(
    stream: Stream, records: list[Record], start: int, end: int
) -> tuple[list[Record], Floats | None]:
    """Records for a rerun, and seasons, of which those from `start` to before `end` were corrected.

    Labels that are missing there have no part in the seasons, which are learned anew. Observations
    from `start` on are less the season of now, earlier ones as in `_known_now`.
    """
    live = stream.live()
    state = stream.season_state
    if state is None:
        return _known_now(stream, records, live.settings.seasonal), None
    first = records[0].seq
    outputs = len(state)
    span = _labels(records[start - first : end - first], outputs)
    state = season.corrected(state, live.seq - start, span)
    offsets = seasons.known_now(live.season, state, live.seq, _met(records, outputs))
    now = season.offsets(state, live.seq - start)
    offsets[len(offsets) - len(now) :] = now
    return _less(records, offsets), state


def _put_season(stream: Stream, state: Floats | None, start: int) -> None:
    """Put seasons in place that were learned anew; start: the first observation that met them."""
    if state is None:
        return
    stream.season_state = state
    head = stream.live()
    periods = season.periods(state)
    if head.season is not None:
        head.season = head.season._replace(periods=periods)
    elif periods:  # else none was found so far
        head.season = SeasonPeriods(periods, start)


def _labels(records: list[Record], outputs: int) -> Floats:
    return np.array([label_of(record, outputs) for record in records]).reshape(-1, outputs)


def _met(records: list[Record], outputs: int) -> Floats:
    return seasons_of([record.offset for record in records], outputs)


def _less(records: list[Record], offsets: Floats) -> list[Record]:
    return [
        replace(record, offset=kept_season(offset))
        for record, offset in zip(records, offsets.tolist(), strict=True)
    ]


def _searched(
    records: list[Record], outputs: int
) -> tuple[Floats, SeasonPeriods | None, list[Record]]:
    """Seasons of records, as a stream of them alone would have found them."""
    state = season.blank(outputs)
    present = None
    met = []
    for record in records:
        met.append(replace(record, offset=kept_season(season.offset(state))))
        if season.observe(state, [label_of(record, outputs)]):
            present = SeasonPeriods(season.periods(state), record.seq + 1)
    return state, present, met
