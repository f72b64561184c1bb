"""Reruns that clients ask for: feedback, exclusion from learning, other settings or models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from moca_client import responses
from moca_client.responses import BeliefAfter
from model_core.stream import checks
from model_core.stream.checks import Dimensions
from model_core.stream.segmentation import NEAR
from service.observability import metrics
from service.problems import NotRetained, UnknownEvent, WarmingUp
from service.schema import rendering
from service.wire import (
    Envelope,
    Event,
    EventFeedback,
    Exclude,
    Head,
    Move,
    Observation,
    Record,
    SegmentHistory,
    StoredHindsight,
    WhatIf,
    outputs_of,
    updated,
)
from service.worker.commands import known_seasons, rerun
from service.worker.commands.rerun import Steps
from service.worker.streams.registry import Engine
from service.worker.streams.stream import Stream
from service.worker.streams.validation import check_sizes, with_model

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
    supervision = _supervision(command.change, start, event, events, head)
    records = known_seasons.known_now(stream, records, head.settings.seasonal)
    records = [
        replace(record, changepoint=supervision.get(record.seq, record.changepoint))
        for record in records
    ]
    corrected = yield from rerun.corrected(engine, stream, records)
    if event is not None and not command.change:
        # Not raised yet: `_judged` does, once the rerun is in place.
        stream.keep_events([event._replace(state="withdrawn", verdict=False)])
    rerun.adopt(engine, stream, corrected, envelope.time_ms, also=start)
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
    records, season_state = known_seasons.learned_anew(stream, records, start, end)
    corrected = yield from rerun.corrected(engine, stream, records)
    lasting = [one.start for one in corrected.events.values() if one.state == "confirmed"]
    marked = []
    for own in events.values():
        alone = all(abs(own.start - other) > NEAR for other in lasting)
        concerned = own.state == "confirmed" and start <= own.start <= end
        if concerned and own.excluded != (command.excluded and alone):
            marked.append(own._replace(excluded=not own.excluded))
    # Not raised yet: where they count again, the rerun may have moved them.
    stream.keep_events(marked)
    known_seasons.put(stream, season_state, start)
    rerun.adopt(
        engine, stream, corrected, envelope.time_ms, also=None if command.excluded else start
    )
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


def _supervision(
    change: bool, start: int, event: Event | None, events: dict[int, Event], head: Head
) -> dict[int, float]:
    """Supervision by `seq`."""
    if change or event is None:
        return {start: 1.0}
    starts = [event.start for event in events.values() if event.state != "withdrawn"]
    before = max((other for other in starts if other < start), default=0)
    after = min((other for other in starts if other > start), default=head.seq)
    return dict.fromkeys(range(before + 1, after), 0.0)


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
    variant = yield from rerun.under(engine, stream, head, records, command.beliefs)
    try:
        answer = _compared(stream, variant, records, command.series)
        if command.beliefs:
            answer.beliefs = [_shown(seq, belief) for seq, belief in variant.beliefs.items()]
        return answer
    finally:
        variant.close()


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
    stream: Stream, variant: rerun.Rerun, records: list[Record], series: bool
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
    records = known_seasons.known_now(stream, records, head.settings.seasonal)
    starts = yield from rerun.segmented(engine, stream, records)
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
    moved = yield from rerun.under(engine, stream, head, records)
    if head.settings.seasonal is None and not engine.catalogue.of(head).seasonal:
        stream.season_state = old.season = None  # its labels were rerun as they are
    rerun.adopt(engine, stream, moved, envelope.time_ms)
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
    return shaped, known_seasons.known_now(stream, records, seasonal)
