"""Imports of snapshots: what one says is checked by the rules that hold for what clients send.

A checksum says that bytes are whole, not that a stream can have come to what they say. Whatever
passes here can be restored, stepped and shown like any other stream.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain
from typing import Any

import msgspec
from pydantic import BaseModel, ValidationError

from model_core.belief import GREATEST
from model_core.errors import BadState
from model_core.labels import LARGEST
from model_core.stream import checks
from model_core.stream.checks import Dimensions
from model_core.stream.events import Track
from model_core.stream_settings import TABLE, Hazard
from model_core.transfer import out_of_memory
from service import wire
from service.models import catalogue
from service.problems import StreamExists, UnfitSnapshot
from service.schema import observations
from service.schema.commands import RegimeForm
from service.settings import Settings
from service.store import keys
from service.store.streams import CHUNK
from service.wire import (
    Event,
    Head,
    Import,
    KnownRegime,
    Observation,
    PendingSettings,
    Record,
    SeasonPeriods,
    outputs_of,
    timestamps,
)
from service.wire import snapshot as snapshots
from service.wire.snapshot import BadSnapshot, StreamSnapshot
from service.worker.streams.registry import Engine
from service.worker.streams.stream import Stream
from service.worker.streams.validation import check_sizes

LAST_MS = 253_402_300_799_999  # of the year 9999
MOST = 2**53  # of what counts observations and events
MAX_ENTRIES = 10_000  # of the table of an artifact's hazard
STATES = ("suspected", "confirmed", "withdrawn")


def take(engine: Engine, stream: Stream, command: Import, now_ms: int) -> None:
    """Begin another life of a stream with all that a snapshot has; or change nothing."""
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
    stream.keep_events([*snapshot.events, *snapshot.anomalies])
    stream.keep_changes(snapshot.changes)
    remembered = {
        field: wire.checksummed(record, "idempotency", stream.name)
        for field, record in snapshot.idempotency.items()
    }
    stream.recall(remembered)
    if remembered:
        stream.write("HSET", keys.idempotency, *chain.from_iterable(remembered.items()))
    stream.touch(now_ms)
    if stream.slab is not None and head.seq:
        engine.commit_state(stream)


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
    if catalogue.digest(engine.settings.models_dir, name) != snapshot.model_digest:
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
    # Chunks are cut anew: where they end depends on the stream's name.
    head.sealed = first
    head.oldest = (first + made.tail.phase) // CHUNK
    head.pace = None  # counted anew: another service has other streams
    made.head = head
    made.tail.keep(first, [wire.encode_row(record) for record in snapshot.records])
    try:
        engine.restore(made, snapshot.checkpoint)
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
    _check_settings(head, engine.settings)
    dimensions = _dimensions(engine, head, engine.settings)
    _check_head(head)
    _check_kept(snapshot)
    checks.check_options(head.settings.model, head.settings)
    check_sizes(engine, head, dimensions, head.settings.max_hypotheses)
    model = engine.catalogue.of(head)
    checks.check_settings(head.settings, model, dimensions)
    _check_scaling(head, model.scaled)
    seen: list[tuple[int, Record | Observation]] = [
        (record.seq, record) for record in snapshot.records
    ]
    for seq, observation in [*seen, *enumerate(head.pending, head.seq)]:
        where = f"observation {seq}: "
        y = outputs_of(observation.y)
        checks.check_observation(observation.x, y, model, dimensions, where)
        if isinstance(observation, Record) and observation.excluded is not None:
            if observation.y is not None:
                raise BadSnapshot(f"{where}excluded from learning, and has a label")
            y = outputs_of(observation.posted)
            checks.check_observation(observation.x, y, model, dimensions, where)


def _check_kept(snapshot: StreamSnapshot) -> None:
    """Whatever is kept beside settings and sums."""
    head = snapshot.head
    for at in (head.created_ms, head.updated_ms, head.checkpoint_ms):
        _range("a time", at, 0, LAST_MS)
    for change in snapshot.changes:
        _range("changes: a time", change.time_ms, 0, LAST_MS)
        _range("changes: seq", change.seq, 0, MOST)
        _range("changes: number", change.number, 0, head.changes)
    _check_events(snapshot.events, "change")
    _check_events(snapshot.anomalies, "anomaly")
    for record in snapshot.records:
        _check_record(record)
    most = int(TABLE["label_window"].meaning.le or 0)
    if len(head.pending) > most:
        raise BadSnapshot(f"pending: expected at most {most} observations")
    for seen in head.pending:
        _check_pending(seen)


def _check_scaling(head: Head, count: int) -> None:
    for values, least in ((head.location, -math.inf), (head.scale, 0.0)):
        if head.warm and len(values or []) != count:
            raise BadSnapshot(f"location and scale: expected {count} numbers")
        if not all(math.isfinite(value) and value > least for value in values or []):
            raise BadSnapshot("location and scale: expected finite numbers, scales above 0")


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


def _last_label(head: Head) -> list[float]:
    """Numbers of the last label; raises BadSnapshot where they are not as many as a label has."""
    last = head.last_label
    if last is not None and len(last) != head.y_dim:
        raise BadSnapshot(f"last: expected {head.y_dim} numbers, as a label has, got {len(last)}")
    return [value for value in last or [] if value is not None]


def _check_head(head: Head) -> None:
    for name in ("seq", "scored", "changes"):
        _range(name, getattr(head, name), 0, MOST)
    for name in ("checkpoint", "best_start"):
        _range(name, getattr(head, name), 0, head.seq)
    _range("last_anomaly", head.last_anomaly or 0, 0, head.seq)
    _range("map_run_length", head.map_run_length or 0, 0, head.seq)
    for probability in (head.changed_probability, head.pending_supervision):
        _range("a probability", probability or 0.0, 0, 1)
    _range("evidence", head.evidence or 0.0, 0, GREATEST)
    sums = [head.log_score_sum, head.pruned_mass, head.pruned_mass_sum, head.last_time or 0.0]
    if not all(map(math.isfinite, [*_last_label(head), *sums])):
        raise BadSnapshot("a sum, or the last time, is not finite")
    _check_track(head.track, head.seq)
    _check_override(head.belief_override, head.seq)
    _check_season(head.season, head.seq)
    _check_regime(head.regime)
    for id_, name in head.regime_names.items():
        _range("regime names: id", id_, 1, MOST)
        _form(RegimeForm, {"name": name}, "regime names")
    for settings in head.pending_settings:
        _check_rates(settings)


def _check_track(track: Track, seq: int) -> None:
    _range("next_event", track.next_event, 0, MOST)
    for name in ("confirmed_start", "before_start", "settled", "since"):
        _range(name, getattr(track, name), 0, seq)
    totals = [*(track.confirmed_totals or []), *(track.before_totals or [])]
    if not all(map(math.isfinite, totals)):
        raise BadSnapshot("a total of labels is not finite")
    _check_events(filter(None, (track.event, track.last_event)), "change")


def _check_season(season: SeasonPeriods | None, seq: int) -> None:
    if season is None:
        return
    _range("season: since", season.since, 0, seq)
    for period in season.periods:
        _range("season: a period", period, 1, seq)


def _check_events(events: Iterable[Event], kind: str) -> None:
    for event in events:
        if event.kind != kind:
            raise BadSnapshot(f"events: kind is {event.kind!r:.40}, expected {kind}")
        _range("events: id", event.id, 1, MOST)
        if event.state not in STATES:
            raise BadSnapshot(f"events: state is {event.state!r:.40}")
        places = event.suspected_at, event.confirmed_at, event.earliest, event.latest
        for seq in (event.start, *places, event.refined_at):
            _range("events: seq", seq or 0, 0, MOST)
        _range("events: coverage", event.coverage or 0.0, 0, 1)


def _check_record(record: Record) -> None:
    _check_rates(PendingSettings(record.seq + 1, record.hazard, record.outlier_rate, None))
    _range("elapsed", record.elapsed, 0, math.inf)
    _range("previous start", record.previous_start, -1, max(record.seq - 1, 0))
    for stated in (record, record.excluded):
        _range("supervision", (stated and stated.changepoint) or 0.0, 0, 1)
    _check_override(record.belief_override, record.seq)
    _range("season", record.offset, -LARGEST, LARGEST)
    _check_regime(record.regime)
    _check_time(record.time)


def _check_regime(stated: KnownRegime | None) -> None:
    if stated is not None:
        _range("regime: probability", stated.probability, 0, 1)
        for field in ("id", "seen", "last_seen"):
            _range(f"regime: {field}", getattr(stated, field) or 0, 0, MOST)


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


def _check_rates(settings: PendingSettings) -> None:
    _check_hazard(settings.hazard)
    _range("outlier_rate", settings.outlier_rate, 0, 1)
    if settings.interval is not None and not 0 < settings.interval < math.inf:
        raise BadSnapshot(f"interval: {settings.interval:g}")


def _check_hazard(hazard: Hazard | None) -> None:
    if isinstance(hazard, dict):
        _form(observations.DurationsForm, dict(hazard), "hazard")
    elif isinstance(hazard, tuple):
        _range("hazard: entries", len(hazard), 1, MAX_ENTRIES)
        for entry in hazard:
            _range("hazard", entry, 0, 1)
    elif hazard is not None:
        _range("hazard", hazard, 0, 1)


def _check_time(time: str | None) -> None:
    if time is None:
        return
    try:
        timestamps.parse(time)
    except ValueError as error:
        raise BadSnapshot(f"time: {error}") from None


def _range(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:  # not a number is neither
        raise BadSnapshot(f"{name}: {value}, expected {least} to {most}")
