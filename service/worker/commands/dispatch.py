"""Commands beside observations: settings, deletion, overrides, imports, and all that is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from moca_client.responses import StreamSummary
from model_core.errors import MissingTorch
from model_core.stream.checks import Dimensions, check_options, check_settings
from model_core.stream_settings import CONFIRMATION, DEFAULTS, StreamSettings, default_model
from service import wire
from service.problems import CorruptState, Defect, NotInstalled, ReadTimeout, UnknownStream
from service.schema import rendering
from service.store.streams import UnreadablePart
from service.worker.commands import reads, rerun, snapshot_import
from service.worker.commands.rerun import Steps
from service.worker.filtering import delayed_labels
from service.worker.streams.registry import Engine
from service.worker.streams.stream import Stream
from service.worker.streams.task import CommandTask
from service.worker.streams.validation import check_fixed, check_sizes, same_model, with_model

CREATES_STREAM = (wire.Configure, wire.Import)  # need no stream


def control(engine: Engine, stream: Stream, task: CommandTask) -> Iterator[None]:
    """Run a command; yields where a rerun can be left for a while.

    Raises ServiceError where it is refused, and then nothing has changed.
    """
    command = task.command
    created = isinstance(command, CREATES_STREAM) and not stream.alive
    if isinstance(command, wire.READ_ONLY) and _late(engine, task):
        raise ReadTimeout("deadline exceeded before the read was executed")
    if not isinstance(command, wire.Delete):
        usable(stream, moved=isinstance(command, wire.Move))
    if not (isinstance(command, CREATES_STREAM) or stream.alive or stream.broken is not None):
        raise UnknownStream(f"there is no stream {stream.name!r}")
    try:
        answer = _RUN[type(command)](engine, stream, command, task.envelope)
        if isinstance(answer, Iterator):
            answer = yield from answer
    except UnreadablePart as error:  # a part that only this command needs
        engine.note(stream, str(error))
        raise CorruptState(str(error)) from error
    except MissingTorch as error:
        raise NotInstalled(str(error)) from error
    task.status = 201 if created else 204 if answer is None else 200
    task.body = [] if answer is None else [msgspec.json.encode(answer)]


def _late(engine: Engine, task: CommandTask) -> bool:
    """Whether a deadline has passed, by the store's clock alone: others may differ from ours."""
    envelope = task.envelope
    if not envelope.deadline_ms:
        return False
    accepted_ms = int(task.entry.partition("-")[0])
    allowed_ms = envelope.deadline_ms - envelope.time_ms
    return accepted_ms + allowed_ms < time.monotonic() * 1000 + engine.ahead_ms


def usable(stream: Stream, moved: bool = False) -> None:
    """Raise CorruptState for a stream that could not be read, or has no model.

    Or the defect that it is not served for. moved: the model does not matter, it is to get another
    one.
    """
    if stream.broken is not None:
        raise CorruptState(stream.broken)
    if stream.unserved is not None and not moved:
        defect = isinstance(stream.unserved, Defect)
        raise (type(stream.unserved) if defect else CorruptState)(str(stream.unserved))


def fresh(
    engine: Engine,
    stream: Stream,
    envelope: wire.Envelope,
    given: dict[str, Any],
    earlier: StreamSettings = DEFAULTS,
    outputs: int | None = None,
    own_rule: bool = False,
) -> wire.Head:
    """Head of a stream's next generation, before any observation.

    given: settings in place of those of `earlier`. outputs: numbers in its first label, None where
    not known; without a model's name they decide on the model. own_rule: whether the rule of
    confirmation of `earlier` was stated.
    """
    catalogue = engine.catalogue
    now = envelope.time_ms
    named = given.get("model") or earlier.model
    location = given.get("location") or earlier.location
    asked = named or default_model(location, outputs, envelope.default_model)
    if envelope.chosen is not None and same_model(asked, envelope.chosen):
        asked = envelope.chosen
    name = catalogue.resolve(asked)
    settings = wire.updated(earlier, {**given, "model": name})
    check_options(name, settings)
    generation = stream.head.generation + 1 if stream.head is not None else 1
    head = wire.Head(generation, settings, created_ms=now, digest=catalogue.digest(name))
    head.unnamed = not named
    head.own_rule = _states_rule(given, own_rule)
    head.x_dim, head.y_dim = catalogue.dimensions(name)
    dimensions = check_settings(settings, catalogue.of(head), Dimensions(head.x_dim, head.y_dim))
    check_sizes(engine, head, dimensions, settings.max_hypotheses)
    head.x_dim, head.y_dim = dimensions
    return head


def observed(
    engine: Engine,
    stream: Stream,
    envelope: wire.Envelope,
    command: wire.Observe,
    outputs: int | None,
) -> wire.Head:
    """Head of a stream that is observed: its own, or a new one where it has none yet.

    Also where nobody has named its model, and its first label has more outputs than one. outputs:
    numbers in the first label of the command, None where it has none.
    """
    if not stream.alive:
        return fresh(engine, stream, envelope, wire.settings_of(command), outputs=outputs)
    head = stream.live()
    if not head.unnamed or head.y_dim is not None or head.next_seq:
        return head
    earlier = head.settings._replace(model="")
    made = fresh(engine, stream, envelope, {}, earlier, outputs, head.own_rule)
    return head if made.settings.model == head.settings.model else made


def _configure(
    engine: Engine, stream: Stream, command: wire.Configure, envelope: wire.Envelope
) -> StreamSummary:
    given = command.settings
    if not stream.alive:
        stream.create(fresh(engine, stream, envelope, given))
    elif stream.live().next_seq == 0:
        # Nothing was learned yet: begin again, whatever changes.
        head = stream.live()
        earlier = head.settings._replace(model="") if head.unnamed else head.settings
        made = fresh(engine, stream, envelope, given, earlier, own_rule=head.own_rule)
        stream.restart(made)
    else:
        before = wire.encode_settled(stream.live())
        _change(engine, stream, given)
        if wire.encode_settled(stream.live()) != before:  # else a repeat, of no effect
            _note(stream, given, envelope.time_ms)
    stream.touch(envelope.time_ms)
    return rendering.summary(stream.name, stream.live())


def _note(stream: Stream, given: dict[str, Any], now_ms: int) -> None:
    """Keep on record that settings were changed here."""
    head = stream.live()
    head.changes += 1
    seq = head.next_seq
    stream.keep_changes([wire.SettingsChange(seq, now_ms, given, head.changes)])


def _change(engine: Engine, stream: Stream, given: dict[str, Any]) -> None:
    """Change settings of a stream with observations."""
    head = stream.live()
    given = with_model(engine, head, given)
    check_fixed(head, given)
    size = given.pop("max_hypotheses", head.settings.max_hypotheses)
    if size > head.settings.max_hypotheses:
        check_sizes(engine, head, Dimensions(head.x_dim, head.y_dim), size)
    new = wire.updated(head.settings, given)
    if new.history > head.settings.history:
        head.oldest = head.retained_from  # what was past it is not retained again
    delayed_labels.keep_met(engine, head)
    head.settings = new
    if any(rule in given for rule in CONFIRMATION):
        head.own_rule = _states_rule(given, head.own_rule)
        head.pace = None
    if size != head.settings.max_hypotheses:
        engine.resize(stream, size)


def _states_rule(given: dict[str, Any], before: bool) -> bool:
    """Whether settings state when a change is confirmed; before: those that they change."""
    rules = [given[rule] for rule in CONFIRMATION if rule in given]
    return any(rule is not None for rule in rules) if rules else before


def _delete(engine: Engine, stream: Stream, command: wire.Delete, envelope: wire.Envelope) -> None:
    stream.delete(envelope.time_ms)


def _expire(engine: Engine, stream: Stream, command: wire.Expire, envelope: wire.Envelope) -> None:
    """Expire by the requester's timestamp, in log order; an earlier observation keeps it."""
    head = stream.live()
    now_ms = envelope.time_ms
    if head.settings.ttl is not None and head.updated_ms + 1000 * head.settings.ttl <= now_ms:
        stream.delete(now_ms)
    else:
        stream.list_again()


def _move(
    engine: Engine, stream: Stream, command: wire.Move, envelope: wire.Envelope
) -> Steps[StreamSummary]:
    before = wire.encode_settled(stream.live())
    yield from rerun.move(engine, stream, command, envelope)
    if wire.encode_settled(stream.live()) != before:  # else it has that model
        _note(stream, {"model": stream.live().settings.model}, envelope.time_ms)
    return rendering.summary(stream.name, stream.live())


# Answers by command; None: there is nothing to say. Those of reruns are made in steps.
_RUN: dict[
    type, Callable[[Engine, Stream, Any, wire.Envelope], Struct | Steps[Struct | None] | None]
] = {
    wire.Configure: _configure,
    wire.Delete: _delete,
    wire.Expire: _expire,
    wire.NameRegime: reads.name_regime,
    wire.SetBelief: reads.set_belief,
    wire.Import: snapshot_import.take,
    wire.Predict: reads.predictions,
    wire.RunLength: reads.run_length,
    wire.Regimes: reads.remembered,
    wire.Act: reads.act,
    wire.EventFeedback: rerun.apply_feedback,
    wire.Exclude: rerun.exclude,
    wire.WhatIf: rerun.what_if,
    wire.SegmentHistory: rerun.segment_history,
    wire.Move: _move,
}
