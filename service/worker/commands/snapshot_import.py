"""Imports of snapshots: what one says is checked by the rules that hold for what clients send.

A checksum says that bytes are whole, not that a stream can have come to what they say. Whatever
passes here can be restored, stepped and shown like any other stream.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec
from pydantic import BaseModel, ValidationError

from moca_client.responses import StreamSummary
from model_core import hazard as hazards
from model_core.belief import GREATEST
from model_core.errors import BadState
from model_core.labels import LARGEST
from model_core.stream import checks
from model_core.stream.checks import Dimensions
from model_core.stream.events import Track
from model_core.stream_settings import TABLE, Hazard
from model_core.transfer import out_of_memory
from service import wire
from service.models.catalogue import Catalogue
from service.problems import StreamExists, UnfitSnapshot
from service.schema import observations, rendering
from service.schema.commands import RegimeForm
from service.settings import Settings
from service.store import keys
from service.wire import (
    Event,
    Head,
    Import,
    KnownRegime,
    Observation,
    PendingSettings,
    Record,
    SeasonPeriods,
    SettingsChange,
    numbers,
    outputs_of,
    timestamps,
)
from service.wire import snapshot as snapshots
from service.wire.commands import LOWER, UPPER
from service.wire.records import Excluded
from service.wire.snapshot import BadSnapshot, StreamSnapshot
from service.worker.streams.registry import Engine
from service.worker.streams.stream import Stream
from service.worker.streams.validation import check_sizes

MOST = 2**53  # of what counts observations and events
STATES = ("suspected", "confirmed", "withdrawn")
# Least and greatest of the numbers of each part of a snapshot, or of those in a list; None: the
# position of the record, or else of the stream.
Bounds = tuple[float, float | None]
COUNT: Bounds = (0, MOST)
SEQ: Bounds = (0, None)
TIME_MS: Bounds = (0, 253_402_300_799_999)  # of the year 9999
PROBABILITY: Bounds = (0, 1)
FINITE: Bounds = (-sys.float_info.max, sys.float_info.max)
BOUNDS: dict[type, dict[str, Bounds]] = {
    StreamSnapshot: {},
    Head: {
        **dict.fromkeys(("seq", "scored", "changes"), COUNT),
        **dict.fromkeys(("checkpoint", "best_start", "last_anomaly", "map_run_length"), SEQ),
        **dict.fromkeys(("created_ms", "updated_ms", "checkpoint_ms"), TIME_MS),
        **dict.fromkeys(("changed_probability", "pending_supervision"), PROBABILITY),
        **dict.fromkeys(("log_score_sum", "pruned_mass", "pruned_mass_sum"), FINITE),
        **dict.fromkeys(("last_time", "last_label", "location"), FINITE),
        "scale": (sys.float_info.min, sys.float_info.max),
        "resolution": (0, sys.float_info.max),
        "evidence": (0, GREATEST),
    },
    Track: {
        "next_event": COUNT,
        **dict.fromkeys(("confirmed_start", "before_start", "settled", "since"), SEQ),
        **dict.fromkeys(("confirmed_totals", "before_totals"), FINITE),
    },
    Event: {
        "id": (1, MOST),
        **dict.fromkeys(("start", "suspected_at", "confirmed_at", "refined_at"), COUNT),
        **dict.fromkeys(("earliest", "latest"), COUNT),
        "coverage": PROBABILITY,
    },
    SeasonPeriods: {"since": SEQ, "periods": (1, None)},
    KnownRegime: {
        "probability": PROBABILITY,
        **dict.fromkeys(("id", "seen", "last_seen"), COUNT),
    },
    PendingSettings: {"outlier_rate": PROBABILITY, "interval": (sys.float_info.min, FINITE[1])},
    SettingsChange: {"seq": COUNT, "time_ms": TIME_MS, "number": COUNT},
    Record: {
        "outlier_rate": PROBABILITY,
        "elapsed": (0, math.inf),
        "changepoint": PROBABILITY,
        "offset": (-LARGEST, LARGEST),
    },
    Excluded: {"changepoint": PROBABILITY},
}


def take(engine: Engine, stream: Stream, command: Import, envelope: wire.Envelope) -> StreamSummary:
    """Answer to PUT snapshot: another life of a stream, with all that a snapshot has."""
    now_ms = envelope.time_ms
    if stream.alive and not command.replace:
        detail = f"stream {stream.name!r} already exists; add ?replace=true to replace it"
        raise StreamExists(detail)
    snapshot = _read(engine, stream, command)
    made = _restored(engine, stream, snapshot)
    if stream.alive:
        stream.delete(now_ms)
    head = made.live()
    head.generation = stream.head.generation + 1 if stream.head is not None else 1
    stream.create(head)
    stream.take_over(made)
    for record in snapshot.records:
        stream.tail.put(record)
    stream.keep_events(snapshot.events)
    stream.keep_changes(snapshot.changes)
    remembered = {
        field: wire.checksummed(record, "idempotency", stream.name, keys.text_of(field))
        for field, record in snapshot.idempotency.items()
    }
    stream.recall(remembered)
    if remembered:
        stream.write("HSET", keys.idempotency, *chain.from_iterable(remembered.items()))
    stream.touch(now_ms)
    if stream.slab is not None and head.seq:
        engine.commit_state(stream)
    return rendering.summary(stream.name, head)


def _read(engine: Engine, stream: Stream, command: Import) -> StreamSnapshot:
    blob = engine.store.staged(stream.partition, command.token)
    if blob is None:
        raise UnfitSnapshot("staged snapshot expired; upload it again")
    try:
        snapshot = snapshots.load(blob)
    except BadSnapshot as error:
        raise UnfitSnapshot(str(error)) from error
    settings = snapshot.head.settings
    name = engine.catalogue.resolve(settings.model)
    if name != settings.model:
        raise UnfitSnapshot(f"invalid snapshot: model {settings.model!r} has no version")
    if Catalogue(engine.settings.models_dir).digest(name) != snapshot.model_digest:
        raise UnfitSnapshot(
            f"the model {name} of this deployment differs from the one that the stream was "
            "created with"
        )
    snapshot.head.digest = engine.catalogue.digest(name)
    return snapshot


def _restored(engine: Engine, stream: Stream, snapshot: StreamSnapshot) -> Stream:
    """The stream beside the one there is, its state on the device."""
    head = snapshot.head
    try:
        _check(engine, snapshot)
    except BadSnapshot as error:
        raise UnfitSnapshot(f"invalid snapshot: {error}") from error
    first = snapshot.records[0].seq if snapshot.records else head.seq
    made = Stream(stream.partition, stream.name)
    head.oldest = first
    head.pace = None  # counted anew: another service has other streams
    made.head = head
    try:
        records = [record for record in snapshot.records if record.seq >= head.checkpoint]
        engine.restore(made, snapshot.checkpoint, records)
    except (BadState, msgspec.MsgspecError, ValueError, RuntimeError) as error:
        if out_of_memory(error):
            raise  # no fault of the snapshot
        made.leave()
        raise UnfitSnapshot(f"invalid snapshot: unusable state: {error}") from error
    return made


# --- checks ---------------------------------------------------------------------------------------


def _check(engine: Engine, snapshot: StreamSnapshot) -> None:
    """Raise BadSnapshot, or what a client's own words would be refused with."""
    head = snapshot.head
    _check_bounds(snapshot, head.seq, "snapshot")
    _check_settings(head, engine.settings)
    dimensions = _dimensions(engine, head, engine.settings)
    _check_head(head)
    for change in snapshot.changes:
        _range("changes: number", change.number, 0, head.changes)
    _check_events(snapshot.events, ("change", "anomaly"))
    _check_events([head.track.event, head.track.last_event], ("change",))
    checks.check_options(head.settings.model, head.settings, stated=())
    check_sizes(engine, head, dimensions, head.settings.max_hypotheses)
    model = engine.catalogue.of(head)
    checks.check_settings(head.settings, model, dimensions)
    if head.warm and {len(head.location or []), len(head.scale or [])} != {model.scaled}:
        raise BadSnapshot(f"location and scale: expected {model.scaled} numbers")
    if head.resolution is not None and len(head.resolution) != model.y_dim + 1:
        raise BadSnapshot(f"resolution: expected {model.y_dim + 1} numbers")
    for record in snapshot.records:
        _check_record(record, model.y_dim)
    all_seen: list[tuple[int, Record | Observation]] = [
        (record.seq, record) for record in snapshot.records
    ]
    for seq, seen in [*all_seen, *enumerate(head.pending, head.seq)]:
        where = f"observation {seq}: "
        checks.check_observation(seen.x, outputs_of(seen.y), model, dimensions, where)
        if isinstance(seen, Record) and seen.excluded is not None:
            if seen.y is not None:
                raise BadSnapshot(f"{where}excluded from learning, and has a label")
            checks.check_observation(seen.x, outputs_of(seen.posted), model, dimensions, where)


def _check_bounds(part: Any, seq: int, where: str) -> None:
    """Raise BadSnapshot for a number of a part, or of one within it, that is out of its bounds."""
    seq = getattr(part, "seq", seq)
    bounds = BOUNDS[type(part)]
    names: tuple[str, ...] = getattr(part, "_fields", None) or part.__struct_fields__
    for name in names:
        value = getattr(part, name)
        for item in value if isinstance(value, list) else (value,):
            if type(item) in BOUNDS:
                _check_bounds(item, seq, name)
            elif item is not None and name in bounds:
                least, most = bounds[name]
                _range(f"{where}: {name}", item, least, seq if most is None else most)


def _check_settings(head: Head, limits: Settings) -> None:
    stated = head.settings._asdict()
    _form(observations.StreamForm, {k: v for k, v in stated.items() if v is not None}, "settings")
    if head.settings.confirm_after is not None and not (
        head.own_rule and head.settings.false_alarm_every is None
    ):
        raise BadSnapshot("confirm_after: expected to be a stream's own rule, and its only one")
    _range("max_hypotheses", head.settings.max_hypotheses, 2, limits.max_hypotheses)
    _range("history", head.settings.history, 0, limits.max_history)


def _form(form: type[BaseModel], stated: dict[str, Any], where: str) -> None:
    try:
        form.model_validate(stated)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        field = ".".join(map(str, wrong["loc"]))
        raise BadSnapshot(f"{where}: {field}: {wrong['msg']}") from None


def _dimensions(engine: Engine, head: Head, limits: Settings) -> Dimensions:
    """Dimensions as stated, where its model lets the stream have them."""
    dimensions = Dimensions(head.x_dim, head.y_dim)
    fixed = engine.catalogue.dimensions(head.settings.model)
    for name, stated, model, least in zip(
        Dimensions._fields, dimensions, fixed, (0, 1), strict=True
    ):
        if stated is not None:
            _range(name, stated, least, max(limits.max_dimension, model or 0))
        if model is not None and stated != model:
            raise BadSnapshot(f"{name}: {stated}, of its model {model}")
    return dimensions


def _check_head(head: Head) -> None:
    last = head.last_label
    if last is not None and len(last) != head.y_dim:
        raise BadSnapshot(f"last: expected {head.y_dim} numbers, as a label has, got {len(last)}")
    _check_override(head.belief_override, head.seq)
    for id_, name in head.regime_names.items():
        _range("regime names: id", id_, 1, MOST)
        _form(RegimeForm, {"name": name}, "regime names")
    for settings in head.pending_settings:
        _check_hazard(settings.hazard)
    most = int(TABLE["label_window"].meaning.le or 0)
    if len(head.pending) > most:
        raise BadSnapshot(f"pending: expected at most {most} observations")
    for seen in head.pending:
        _check_pending(seen)


def _check_events(events: Iterable[Event | None], kinds: Sequence[str]) -> None:
    for event in filter(None, events):
        if event.kind not in kinds:
            expected = " or ".join(kinds)
            raise BadSnapshot(f"events: kind is {event.kind!r:.40}, expected {expected}")
        if event.state not in STATES:
            raise BadSnapshot(f"events: state is {event.state!r:.40}")


def _check_record(record: Record, outputs: int) -> None:
    _check_hazard(record.hazard)
    _range("previous start", record.previous_start, -1, max(record.seq - 1, 0))
    _check_override(record.belief_override, record.seq)
    if len(record.offset) not in (0, outputs):
        detail = f"expected {outputs} numbers, got {len(record.offset)}"
        raise BadSnapshot(f"offset at seq {record.seq}: {detail}")
    labels = numbers(record.y)
    if record.uncorrected is not None and labels:
        # Its error is recalled, by an interval and a median of each output.
        levels = record.quantiles or {}
        for values in (record.uncorrected, levels.get(LOWER, []), levels.get(UPPER, [])):
            if len(values) != len(labels):
                detail = f"expected {len(labels)} numbers of each quantile, got {len(values)}"
                raise BadSnapshot(f"forecast at seq {record.seq}: {detail}")
    if record.time is not None:
        try:
            timestamps.parse(record.time)
        except ValueError as error:
            raise BadSnapshot(f"time: {error}") from None


def _check_override(stated: list[tuple[int, float]] | None, seq: int) -> None:
    for run_length, probability in stated or []:
        _range("belief: run length", run_length, 0, seq)
        _range("belief", probability, 0, 1)
    if stated is not None:
        _range("belief: sum", math.fsum(probability for _, probability in stated), 0.5, 2)


def _check_pending(seen: Observation) -> None:
    stated = msgspec.to_builtins(seen)
    changepoint = stated.pop("changepoint", None)
    stated.pop("planned", None)
    supervision = {} if changepoint is None else {"supervision": {"changepoint": changepoint}}
    try:
        form = msgspec.convert(
            {**stated, **supervision},
            observations.ObservationForm,
            dec_hook=observations.read_value,
        )
    except msgspec.ValidationError as error:
        raise BadSnapshot(f"pending: {error}") from None
    labels = form.y if isinstance(form.y, list) else [form.y]
    values = [*labels, *(form.x or []), form.elapsed]
    if not all(math.isfinite(value) for value in values if value is not None):
        raise BadSnapshot("pending: expected finite numbers")


def _check_hazard(hazard: Hazard | None) -> None:
    try:
        if hazard is not None:
            hazards.stated(hazard)
    except ValueError as error:
        raise BadSnapshot(f"hazard: {error}") from None


def _range(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:  # not a number is neither
        raise BadSnapshot(f"{name}: {value}, expected {least} to {most}")
