"""What is stored of a stream: its position, and records as rows of bytes, blocks, columns.

Position and row: a kind (u8), then what it says. Ordinary ones, which nearly all are, have numbers
alone, at fixed places; all others are the whole in msgpack. A block is what one commit appends to a
tail: the position of its first row (u48), how many there are (u8), and rows one after the other.
A chunk of history is such a block by columns: of rows of one kind and length all first bytes, then
all second ones, and so on, which compress to less.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple, cast
from zlib import crc32

import cramjam
import msgspec
import numpy as np
from numpy.typing import NDArray

from model_core.stream.state import SeenLabels, seasons_of
from model_core.stream_settings import Hazard
from service.wire.commands import QuietNumbers, numbers
from service.wire.records import Head, Pace, Position, Record

MOST_RATIO = 255  # of a block of LZ4

# Kinds of positions and of rows, and what is added to NUMBERS of a row.
WHOLE = 0  # in msgpack; of a row the length of what follows (u32), and that
NUMBERS = 1
STATED = 2  # an elapsed time, supervision, a hazard or a season that are not the usual ones
TIMED = 4  # time of the observation as text, after its length (u8), instead of when it was accepted

LEVELS = ("0.05", "0.5", "0.95")
LONGEST_TIME = 63  # characters: of UTF-8 at most 255 bytes, and more than any time has
RATES = ("elapsed", "changepoint", "hazard", "offset")
NUMBERED = {"y", "outlier_rate", "mean", "quantiles", "variance", "uncorrected", "log_score"}
NUMBERED |= {"changed_probability", "evidence", "anomaly", "changepoint_probability"}
NUMBERED |= {"recent_change_probability", "map_run_length", "previous_start", "accepted_ms"}
# All else, which an ordinary record has not got.
RARE = [f for f in Record.__struct_fields__ if f not in {"seq", "time", *NUMBERED, *RATES}]
_rates = attrgetter(*RATES[:-1])
_ORDINARY_RATES: tuple[float, float | None, float | None, float] = (1.0, None, None, 0.0)
_rare = attrgetter(*RARE)
_NOTHING = (None,) * len(RARE)
# Kind, map run length, previous start, accepted at; label, outlier rate; numbers as they begin in
# `QuietNumbers`, and the median before it was corrected.
_PLAIN = Struct("<BIiq2d12d")
_OTHER_RATES = Struct("<4d")
NUMBERS_KEPT = 11  # the first of `QuietNumbers`, down to the probability of a recent change


def field_at(table: np.dtype[Any], name: str) -> int:
    """Where a field of a table's rows begins."""
    assert table.fields is not None
    return int(table.fields[name][1])


# The same as columns; rates: of rows that have STATED.
_PLAIN_COLUMNS: list[tuple[Any, ...]] = [
    ("kind", "u1"),
    ("map_run_length", "<u4"),
    ("previous_start", "<i4"),
    ("accepted_ms", "<i8"),
    ("y", "<f8"),
    ("outlier_rate", "<f8"),
    ("numbers", "<f8", NUMBERS_KEPT),
    ("uncorrected", "<f8"),
]
_STATED_ROW = np.dtype([*_PLAIN_COLUMNS, ("rates", "<f8", len(RATES))])
_PLAIN_ROW = np.dtype(_PLAIN_COLUMNS)
_VARIANCE = QuietNumbers._fields.index("variance")
_MOST_LENGTH = 2**32 - 1
_LATEST_START = 2**31 - 1
_LENGTH = Struct("<I")
_RUN = Struct("<BI")  # rows of one kind and length that follow one another, and the length
_SEQ_BYTES = 6
_HEADER = _SEQ_BYTES + 1  # of a block
_BLOCK = np.dtype([("first", "<u4"), ("above", "<u2"), ("count", "u1")])

_LABEL_AT = field_at(_PLAIN_ROW, "y")
_ACCEPTED_AT = field_at(_PLAIN_ROW, "accepted_ms")
_OFFSET_AT = field_at(_STATED_ROW, "rates") + 8 * RATES.index("offset")
Bytes = NDArray[np.uint8]
# Rows that follow one another: a run of one kind and length as it lies in a chunk, bytes (length,
# rows); or one by one, with records that are not encoded.
Part = Bytes | Sequence[bytes | Record]

_encode = msgspec.msgpack.Encoder().encode
_decode_record = msgspec.msgpack.Decoder(Record).decode


def encode_row(record: Record) -> bytes:
    """Encode a record, but for its position where it is an ordinary one."""
    quantiles = record.quantiles
    mean = record.mean
    variance = record.variance
    if quantiles is None or mean is None or variance is None or type(record.y) is not float:
        return _whole(record)
    if _rare(record) != _NOTHING or tuple(quantiles) != LEVELS:
        return _whole(record)
    kind = NUMBERS
    more = b""
    rates = (*_rates(record), record.offset[0] if record.offset else 0.0)
    if rates != _ORDINARY_RATES:
        kind |= STATED
    accepted_ms = record.accepted_ms
    if record.time is not None:
        if accepted_ms is not None or len(record.time) > LONGEST_TIME:
            return _whole(record)
        kind |= TIMED
        accepted_ms = 0
        more = _text(record.time)
    try:
        (own_mean,) = mean
        ((own_variance,),) = variance
        (low,), (middle,), (high,) = quantiles.values()
        (uncorrected,) = record.uncorrected or (math.nan,)
        row = _PLAIN.pack(
            kind,
            record.map_run_length,
            record.previous_start,
            accepted_ms,
            record.y,
            record.outlier_rate,
            own_mean,
            low,
            middle,
            high,
            record.changed_probability,
            record.evidence,
            math.nan if record.anomaly is None else record.anomaly,
            own_variance,
            math.nan if record.log_score is None else record.log_score,
            record.changepoint_probability,
            record.recent_change_probability,
            uncorrected,
        )
        if kind & STATED:
            row += _OTHER_RATES.pack(*(math.nan if rate is None else rate for rate in rates))
    except (ValueError, StructError):  # of several outputs; or one is missing, or too large
        return _whole(record)
    return row + more


class PlainRows(NamedTuple):
    """Ordinary records (N,) as columns, which have no supervision.

    y, outlier_rate: (N,). numbers: (N, 11) as they begin in `QuietNumbers`. uncorrected: (N,)
    medians before they were corrected. elapsed: time since the one before. hazard: nan where the
    model's own was met. times: as text, where any record has one. offset: seasons, where any label
    has one.
    """

    y: NDArray[np.float64]
    outlier_rate: NDArray[np.float64]
    numbers: NDArray[np.float64]
    uncorrected: NDArray[np.float64]
    map_run_length: NDArray[np.int64]
    previous_start: NDArray[np.int64]
    accepted_ms: NDArray[np.int64]
    elapsed: NDArray[np.float64]
    hazard: NDArray[np.float64]
    times: Sequence[str | None] | None
    offset: NDArray[np.float64] | None = None

    @property
    def fit(self) -> NDArray[np.bool_]:
        """Which of them have a row of numbers (N,); others are whole records."""
        fit = np.isfinite(self.numbers[:, _VARIANCE])
        fit &= self.map_run_length <= _MOST_LENGTH
        fit &= self.previous_start <= _LATEST_START
        if self.times is not None:
            fit &= [time is None or len(time) <= LONGEST_TIME for time in self.times]
        return fit

    def record(self, at: int, seq: int, hazard: Hazard | None) -> Record:
        """One of them, with a hazard that may be none of the numbers."""
        plain = (
            int(self.map_run_length[at]),
            int(self.previous_start[at]),
            int(self.accepted_ms[at]),
            float(self.y[at]),
            float(self.outlier_rate[at]),
            *self.numbers[at].tolist(),
            float(self.uncorrected[at]),
        )
        offset = 0.0 if self.offset is None else float(self.offset[at])
        time = None if self.times is None else self.times[at]
        record = _ordinary(seq, plain, (float(self.elapsed[at]), None, hazard, offset), time)
        if not math.isfinite(self.numbers[at, _VARIANCE]):
            record.variance = None  # it does not exist
        return record

    def encoded(self) -> list[bytes]:
        """Rows as `encode_row` makes them; undefined of those that do not fit."""
        stated = ~np.isnan(self.hazard) | (self.elapsed != 1.0)
        if self.offset is not None:
            stated |= self.offset != 0.0
        some = stated.any()
        table = np.empty(len(self.numbers), _STATED_ROW if some else _PLAIN_ROW)
        table["kind"] = NUMBERS
        for name, *_ in _PLAIN_COLUMNS[1:]:
            table[name] = getattr(self, name)
        if some:
            table["kind"][stated] += STATED
            table["rates"] = (1.0, math.nan, math.nan, 0.0)
            table["rates"][:, RATES.index("elapsed")] = self.elapsed
            table["rates"][:, RATES.index("hazard")] = self.hazard
            if self.offset is not None:
                table["rates"][:, RATES.index("offset")] = self.offset
        if self.times is not None:
            timed = [time is not None for time in self.times]
            table["kind"][timed] += TIMED
            table["accepted_ms"][timed] = 0
        rows: list[bytes] = table.view(f"V{table.itemsize}").tolist()
        if some and not stated.all():
            pairs = zip(rows, stated.tolist(), strict=True)
            rows = [row if own else row[: _PLAIN.size] for row, own in pairs]
        if self.times is not None:
            pairs_of = zip(rows, self.times, strict=True)
            rows = [row if time is None else row + _text(time) for row, time in pairs_of]
        return rows


def _ordinary(
    seq: int,
    plain: Sequence[Any],
    rates: tuple[float, float | None, Hazard | None, float],
    time: str | None,
) -> Record:
    """An ordinary record; plain: what follows the kind in a row. rates: RATES."""
    run_length, previous_start, accepted_ms, y, outlier_rate, mean, low, middle, high = plain[:9]
    changed, evidence, anomaly, variance, log_score, starts, recent, uncorrected = plain[9:]
    elapsed, changepoint, hazard, offset = rates
    return Record(
        seq=seq,
        y=y,
        x=None,
        time=time,
        elapsed=elapsed,
        changepoint=changepoint,
        hazard=hazard,
        outlier_rate=outlier_rate,
        log_score=None if math.isnan(log_score) else log_score,
        changed_probability=changed,
        evidence=evidence,
        changepoint_probability=starts,
        recent_change_probability=recent,
        map_run_length=run_length,
        mean=[mean],
        quantiles={LEVELS[0]: [low], LEVELS[1]: [middle], LEVELS[2]: [high]},
        previous_start=previous_start,
        variance=[[variance]],
        anomaly=None if math.isnan(anomaly) else anomaly,
        offset=[offset] if offset else [],
        accepted_ms=accepted_ms if time is None else None,
        uncorrected=None if math.isnan(uncorrected) else [uncorrected],
    )


def _text(time: str) -> bytes:
    """The time at the end of a row."""
    text = time.encode()
    return bytes([len(text)]) + text


def _whole(record: Record) -> bytes:
    whole = _encode(record)
    return b"\0" + _LENGTH.pack(len(whole)) + whole


def decode_row(seq: int, row: bytes) -> Record:
    """Decode the record at a position; raises ValueError or StructError for another's."""
    if row[0] == WHOLE:
        record = _decode_whole(row)
        if record.seq != seq:
            raise ValueError(f"expected the record at seq {seq}, got that at {record.seq}")
        return record
    kind, *plain = _PLAIN.unpack_from(row)
    at = _PLAIN.size
    rates = _ORDINARY_RATES
    if kind & STATED:
        elapsed, *optional, offset = _OTHER_RATES.unpack_from(row, at)
        changepoint, hazard = (None if math.isnan(rate) else rate for rate in optional)
        rates = (elapsed, changepoint, hazard, offset)
        at += _OTHER_RATES.size
    return _ordinary(seq, plain, rates, row[at + 1 :].decode() if kind & TIMED else None)


def labels_of(parts: Iterable[Part], outputs: int) -> SeenLabels:
    """Labels of records that follow one another; outputs: numbers of each.

    Ordinary rows are read as columns: a fortieth of the time of their records.
    """
    y = [np.empty((0, outputs))]
    offset = [np.empty((0, outputs))]
    times: list[str | None] = []
    accepted: list[int | None] = []
    missing = [math.nan] * outputs
    for run in chain.from_iterable(map(_runs_of, parts)):
        if isinstance(run, list):
            y.append(np.array([numbers(record.y) or missing for record in run], np.float64))
            offset.append(seasons_of([record.offset for record in run], outputs))
            times += [record.time for record in run]
            accepted += [record.accepted_ms for record in run]
            continue
        length, count = run.shape
        kind = int(run[0, 0])
        form = _STATED_ROW if kind & STATED else _PLAIN_ROW
        if length < form.itemsize:
            raise ValueError(f"expected rows of {form.itemsize} bytes or more, got {length}")
        y.append(_numbers_at(run, _LABEL_AT)[:, None])
        seasons = _numbers_at(run, _OFFSET_AT) if kind & STATED else np.zeros(count)
        offset.append(seasons[:, None])
        if kind & TIMED:
            times += [row[form.itemsize + 1 :].decode() for row in _transposed(run)]
            accepted += [None] * count
        else:
            times += [None] * count
            accepted += _numbers_at(run, _ACCEPTED_AT, np.int64).tolist()
    return SeenLabels(np.concatenate(y), np.concatenate(offset), times, accepted)


def _numbers_at(run: Bytes, at: int, kind: type[np.generic] = np.float64) -> NDArray[Any]:
    """Numbers (count,) that the rows of a run have at a place."""
    return np.ascontiguousarray(run[at : at + 8].T).view(kind)[:, 0]


def _runs_of(part: Part) -> Iterator[Bytes | list[Record]]:
    """Runs of ordinary rows, and other records decoded, in order."""
    if isinstance(part, np.ndarray) and part[0, 0] != WHOLE:
        yield part
        return
    for shape, group in groupby(listed(part), _shape):
        if shape is None:
            yield [row if isinstance(row, Record) else _decode_whole(row) for row in group]
        else:
            run = cast(list[bytes], list(group))
            yield np.frombuffer(b"".join(run), np.uint8).reshape(len(run), -1).T


def _shape(row: bytes | Record) -> tuple[int, int] | None:
    """Kind and length of an ordinary row; None of all others."""
    return None if isinstance(row, Record) or row[0] == WHOLE else (row[0], len(row))


def _decode_whole(row: bytes) -> Record:
    return _decode_record(memoryview(row)[1 + _LENGTH.size :])


def _length(body: bytes, at: int) -> int:
    """Bytes of the row that begins here."""
    kind = body[at]
    if kind == WHOLE:
        (length,) = _LENGTH.unpack_from(body, at + 1)
        return 1 + _LENGTH.size + int(length)
    length = _PLAIN.size + (_OTHER_RATES.size if kind & STATED else 0)
    return length + (1 + body[at + length] if kind & TIMED else 0)


# --- positions of heads ---------------------------------------------------------------------------

# A kind (u8), then numbers at fixed places: so is the position of nearly every stream, of one
# output, that was filtered. Any other is the whole in msgpack. Workers keep those of streams at
# rest as rows of an array, as they are stored.

TOO_MANY = 1 << 32  # observations of a stream whose position is the whole
_FIELDS = {
    "seq": "I",
    "scored": "I",
    "map_run_length": "I",
    "best_start": "I",
    "updated_ms": "q",
    "changed_probability": "d",
    "evidence": "d",
    "pruned_mass": "d",
    "log_score_sum": "d",
    "pruned_mass_sum": "d",
    "last_label": "d",
    "last_time": "d",  # nan: None
    # `Pace`; since nan: there is none, per_day nan: None
    "since": "d",
    "timed": "B",
    "seen": "I",
    "per_day": "d",
}
_TYPES = {"B": "u1", "I": "<u4", "q": "<i8", "d": "<f8"}
POSITION = np.dtype([("kind", "u1"), *((name, _TYPES[form]) for name, form in _FIELDS.items())])
_POSITION = Struct("<B" + "".join(_FIELDS.values()))
_plain_numbers = attrgetter(*(name for name in list(_FIELDS)[: list(_FIELDS).index("last_label")]))
_all_fields = attrgetter(*Position.__struct_fields__)
_decode_whole_position: Callable[[Any], Position] = msgspec.msgpack.Decoder(Position).decode
Numbers = tuple[float, ...]  # of `POSITION`


def numbers_of(head: Head) -> Numbers | None:
    """Return a head's position as numbers of `POSITION`; None where it has others."""
    last = head.last_label
    if last is None or len(last) != 1 or last[0] is None or head.regime is not None:
        return None
    if head.changed_probability is None or head.evidence is None or head.map_run_length is None:
        return None
    pace = Pace(math.nan, False) if head.pace is None else head.pace
    if max(head.seq, head.scored, pace.seen) >= TOO_MANY:
        return None
    return (
        NUMBERS,
        *_plain_numbers(head),
        last[0],
        math.nan if head.last_time is None else head.last_time,
        pace.since,
        pace.timed,
        pace.seen,
        math.nan if pace.per_day is None else pace.per_day,
    )


def enter_numbers(position: Position, numbers: Numbers) -> None:
    """Enter numbers of `POSITION` into a position, or a head."""
    (
        _,
        position.seq,
        position.scored,
        position.map_run_length,
        position.best_start,
        position.updated_ms,
        position.changed_probability,
        position.evidence,
        position.pruned_mass,
        position.log_score_sum,
        position.pruned_mass_sum,
        last_label,
        last_time,
        since,
        timed,
        seen,
        per_day,
    ) = numbers  # type: ignore[assignment]
    position.last_label = [last_label]
    position.last_time = None if math.isnan(last_time) else last_time
    position.regime = None
    position.pace = None
    if not math.isnan(since):
        position.pace = Pace(
            since, bool(timed), int(seen), None if math.isnan(per_day) else per_day
        )


def encode_position(head: Head) -> bytes:
    """Encode the part of a head that every observation moves."""
    numbers = numbers_of(head)
    if numbers is None:
        return bytes([WHOLE]) + _encode(_all_fields(head))
    return _POSITION.pack(*numbers)


def stored_positions(places: Iterable[int], rows: NDArray[Any]) -> NDArray[Any]:
    """Rows (B,) of `POSITION` as elements of `packed`, each with its checksum; places: of each."""
    bodies = np.ascontiguousarray(rows.view(f"V{rows.itemsize}"))  # not field by field
    table = np.empty(len(rows), _STORED_POSITION)
    table["raw"] = _RAW
    table["length"] = CHECKSUM_SIZE + rows.itemsize
    table["mark"] = CHECKSUM_MARK[0]
    table["crc"] = list(map(crc32, bodies.tolist(), places))
    table["body"] = bodies
    return table


def decode_position(body: bytes) -> Position:
    """Decode what `encode_position` made; raises MsgspecError, IndexError or StructError."""
    if body[0] == WHOLE:
        return _decode_whole_position(memoryview(body)[1:])
    position = Position()
    enter_numbers(position, _POSITION.unpack(body))
    return position


# --- blocks and chunks ----------------------------------------------------------------------------


def compressed(body: bytes) -> bytes:
    """Compress a chunk or a state by LZ4: a sixteenth of zlib's time, and 2 % longer."""
    return bytes(cramjam.lz4.compress_block(body))


def decompressed(body: bytes) -> bytes:
    """Return what `compressed` took; raises ValueError and DecompressionError."""
    if int.from_bytes(body[:4], "little") > MOST_RATIO * len(body):  # its length, said first
        raise ValueError("a length that nothing compressed has")
    return bytes(cramjam.lz4.decompress_block(body))


def block_of(first: int, rows: Sequence[bytes]) -> bytes:
    """Join the rows of positions from `first` on, 255 at most."""
    return first.to_bytes(_SEQ_BYTES, "little") + bytes([len(rows)]) + b"".join(rows)


def stored_blocks(
    places: Iterable[int],
    firsts: NDArray[np.int64],
    counts: NDArray[np.int64],
    rows: Sequence[bytes],
) -> list[bytes]:
    """Return one block for each of several tails, with its checksum, as elements of `packed`.

    places: of the checksums. rows: those of each, joined. Each is two parts, of which these are the
    second.
    """
    headers = np.empty(len(firsts), _BLOCK)
    headers["first"] = firsts & 0xFFFFFFFF
    headers["above"] = firsts >> 32
    headers["count"] = counts
    own: list[bytes] = headers.view(f"V{_HEADER}").tolist()
    table = np.empty(len(firsts), _STORED_BLOCK)
    table["raw"] = _RAW
    table["length"] = np.array(list(map(len, rows))) + CHECKSUM_SIZE + _HEADER
    table["mark"] = CHECKSUM_MARK[0]
    table["crc"] = list(map(crc32, rows, map(crc32, own, places)))
    table["header"] = headers.view(f"V{_HEADER}")
    heads: list[bytes] = table.view(f"V{table.itemsize}").tolist()
    return list(chain.from_iterable(zip(heads, rows, strict=True)))


def packed(count: int, *elements: bytes) -> bytes:
    """Return the list in msgpack of so many elements, which are packed; joined or not."""
    return b"".join((b"\xdd", count.to_bytes(4, "big"), *elements))


def split_block(body: bytes) -> tuple[int, list[bytes]]:
    """Return the first position of a block, and its rows; raises ValueError."""
    at = _HEADER
    rows = []
    for _ in range(body[_SEQ_BYTES]):
        end = at + _length(body, at)
        rows.append(body[at:end])
        at = end
    if at != len(body):
        raise ValueError(f"expected rows of {at} bytes, got {len(body)}")
    return int.from_bytes(body[:_SEQ_BYTES], "little"), rows


def overlaps(body: bytes, start: int, stop: int) -> bool:
    """Whether a block says that it has a row in [start, stop); one that is cut short has."""
    if len(body) < _HEADER:
        return True
    first = int.from_bytes(body[:_SEQ_BYTES], "little")
    return first < stop and start < first + body[_SEQ_BYTES]


def decode_block(body: bytes, start: int = 0, stop: int = sys.maxsize) -> list[Record]:
    """Decode the records of a block with seq in [start, stop)."""
    first, rows = split_block(body)
    return [decode_row(seq, row) for seq, row in enumerate(rows, first) if start <= seq < stop]


def columns_of(first: int, rows: Sequence[bytes]) -> bytes:
    """Rows of positions from `first` on, by columns and compressed."""
    parts = [first.to_bytes(_SEQ_BYTES, "little")]
    for run in _runs(rows):
        length = len(run[0])
        table = np.frombuffer(b"".join(run), np.uint8).reshape(len(run), length)
        parts += (_RUN.pack(len(run), length), table.T.tobytes())
    return compressed(b"".join(parts))


def _runs(rows: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Rows of one kind and length that follow one another, 255 at most."""
    kinds = zip(map(itemgetter(0), rows), map(len, rows), strict=True)
    begin = 0
    for _, run in groupby(kinds):
        count = len(list(run))
        for at in range(begin, begin + count, 255):
            yield rows[at : min(at + 255, begin + count)]
        begin += count


def split_columns(body: bytes) -> tuple[int, list[Bytes]]:
    """Return first position and runs of what `columns_of` made; raises as `decompressed`."""
    plain = decompressed(body)
    at = _SEQ_BYTES
    runs: list[Bytes] = []
    while at < len(plain):
        count, length = _RUN.unpack_from(plain, at)
        at += _RUN.size
        if not count or not length:
            raise ValueError(f"a run of {count} rows of {length} bytes")
        runs.append(np.frombuffer(plain, np.uint8, count * length, at).reshape(length, count))
        at += count * length
    return int.from_bytes(plain[:_SEQ_BYTES], "little"), runs


def listed(part: Part) -> Sequence[bytes | Record]:
    """Rows of a part, one by one."""
    return _transposed(part) if isinstance(part, np.ndarray) else part


def _transposed(run: Bytes) -> list[bytes]:
    rows: list[bytes] = np.ascontiguousarray(run.T).view(f"V{len(run)}")[:, 0].tolist()
    return rows


def decode_columns(body: bytes) -> list[Record]:
    """Decode the records of a chunk."""
    first, runs = split_columns(body)
    rows = chain.from_iterable(map(_transposed, runs))
    return [decode_row(seq, row) for seq, row in enumerate(rows, first)]


# --- checksums ------------------------------------------------------------------------------------

# A damaged part is refused before anything of it is used.
#
# Layout: 0xC1, CRC-32 of place and body (u32, little-endian), body. The place (kind of part, owner,
# field) is in the checksum and not stored, so that bytes that belong elsewhere do not fit. The
# partition is no part of the place: a backup may be restored with another number of them.
#
# CRC-32 finds all damage within 32 neighbouring bits, and any other but for one in 4 billion. It
# takes 4 bytes and the time of reading them once. It is no protection against forgery.

CHECKSUM_MARK = b"\xc1"
CHECKSUM_SIZE = 5  # of what precedes the body
_SUM = [("mark", "u1"), ("crc", "<u4")]
# Strings of a list in msgpack, as the server's scripts read them: it has to be raw 32.
_RAW = 0xDB
_ELEMENT = [("raw", "u1"), ("length", ">u4"), *_SUM]
_STORED_POSITION = np.dtype([*_ELEMENT, ("body", f"V{POSITION.itemsize}")])
_STORED_BLOCK = np.dtype([*_ELEMENT, ("header", f"V{_HEADER}")])


class Damaged(ValueError):
    """Bytes that do not fit their checksum at this place."""


def place_of(part: str, owner: object, field: object = "") -> int:
    """Return what the checksums at a place begin with, of part, owner and field."""
    return crc32(f"{part}\0{owner}\0{field}".encode())


def checksummed_at(place: int, body: bytes) -> bytes:
    """Return a body with its checksum; place: as of `place_of`."""
    return CHECKSUM_MARK + crc32(body, place).to_bytes(4, "little") + body


def checksummed(body: bytes, part: str, owner: object, field: object = "") -> bytes:
    """Return a body with its checksum; part, owner and field are its place."""
    return checksummed_at(place_of(part, owner, field), body)


def checked(blob: bytes, part: str, owner: object, field: object = "") -> bytes:
    """Return the body of what `checksummed` made; raises Damaged."""
    place = place_of(part, owner, field)
    body = blob[CHECKSUM_SIZE:]
    if checksummed_at(place, body) != blob:
        raise Damaged("checksum mismatch")
    return body
