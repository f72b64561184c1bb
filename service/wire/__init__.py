"""What travels through Redis: commands, outcomes, and a stream's stored parts (msgpack, typed).

A LogEntry has commands of one API process. An Outcome is the committed result of one command.
Head and Record are what a stream keeps; how they lie there says `service.wire.stored_records`.
The order of their fields is part of the stored format: another one needs another FORMAT.
"""

from __future__ import annotations

import msgspec

from model_core.stream.events import Event
from model_core.stream.state import KnownRegime, SeasonPeriods
from model_core.stream_settings import StreamSettings
from service.wire.commands import (
    AS_IT_IS,
    BACKGROUND,
    LEVELS,
    ONE_NUMBER,
    READ_ONLY,
    Act,
    Answers,
    BeliefSummary,
    Command,
    CommandSum,
    Configure,
    Delete,
    Envelope,
    EventFeedback,
    Exclude,
    Expire,
    Id,
    Import,
    Ingest,
    Layout,
    LogEntry,
    Move,
    NameRegime,
    NumberList,
    Observation,
    ObservationList,
    Observe,
    ObserveMany,
    Outcome,
    PlannedSpan,
    Predict,
    QuietAnswers,
    QuietRows,
    Regimes,
    RunLength,
    SegmentHistory,
    SetBelief,
    StoredAnswer,
    Sums,
    WhatIf,
    grouped,
    latest,
    numbers,
    outputs_of,
    settings_of,
    sublist,
    times_of,
    units,
)
from service.wire.records import (
    Head,
    IdempotencyRecord,
    Pace,
    PendingSettings,
    Position,
    Record,
    SettingsChange,
    SettledHead,
    StoredHindsight,
    TaggedHead,
    joined,
    settled_values,
    shared,
    updated,
)
from service.wire.stored_records import (
    CHECKSUM_SIZE,
    Damaged,
    checked,
    checked_at,
    checksummed,
    checksummed_at,
    decode_position,
    decode_row,
    encode_position,
    encode_row,
    place_of,
)

FORMAT = 45  # of all that the store and backups hold; one of another format is refused
encode = msgspec.msgpack.Encoder().encode
decode_batch = msgspec.msgpack.Decoder(LogEntry).decode
decode_envelope = msgspec.msgpack.Decoder(Envelope).decode
decode_sums = msgspec.msgpack.Decoder(Sums).decode
decode_results = msgspec.msgpack.Decoder(list[Outcome]).decode
decode_settled = msgspec.msgpack.Decoder(SettledHead).decode
decode_tagged = msgspec.msgpack.Decoder(TaggedHead).decode
decode_change = msgspec.msgpack.Decoder(SettingsChange).decode
decode_hindsight = msgspec.msgpack.Decoder(StoredHindsight).decode
decode_event = msgspec.msgpack.Decoder(Event).decode
decode_idempotency = msgspec.msgpack.Decoder(IdempotencyRecord).decode


def encode_settled(head: Head) -> bytes:
    """Encode the part of a head that few observations change."""
    return encode(settled_values(head))
