"""What is stored of a stream: its position, and records as rows of bytes, blocks, columns.

Position and row: a kind (u8), then what it says. Ordinary ones, which nearly all are, have numbers
alone, at places that a row's shape fixes; nan stands for a belief that a warm-up has not got. All
others are the whole in msgpack. What a replay needs of a record is exact, and so is evidence, which
may be 1e290; what else it was answered is float32, means and quantiles as their distance from the
label, so that a series far from zero loses no more.
A block is what one commit appends to a tail: the position of its first row (u48), how many there
are (u8), and rows one after the other. Few rows lie beside the position at first, as a block after
it: what is pushed to a list of its own costs the server as much as all else of a stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import chain, groupby, islice, product, repeat
from math import prod
from operator import attrgetter
from struct import Struct
from struct import error as StructError
from types import ModuleType
from typing import Any, NamedTuple, cast
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from model_core.stream.state import kept_season
from model_core.stream_settings import Hazard
from service.wire.commands import DETAILS, SUMMARY, Layout, numbers
from service.wire.records import Head, Pace, Position, Record

KEPT_OUTPUTS = 16  # a record of more keeps no covariance: that of 256 is 600 KB

# Kinds of positions and of rows, and what is added to NUMBERS of a row.
WHOLE = 0  # in msgpack; of a row the length of what follows (u32), and that
NUMBERS = 1
STATED = 2  # an outlier rate, elapsed time, supervision, hazard or season that is not a usual one
TIMED = 4  # time of the observation as text, after its length (u8), instead of when it was accepted
OUTLIERS = 8  # times the place of its outlier rate among USUAL_OUTLIER_RATES
SHAPED = 32  # its `Shape`, after the kind, where it is another than the usual one; the largest

LEVELS = ("0.05", "0.5", "0.95")
LONGEST_TIME = 63  # characters: of UTF-8 at most 255 bytes, and more than any time has
RATES = ("elapsed", "changepoint", "hazard", "outlier_rate")
USUAL_OUTLIER_RATES = (0.0, 0.001, 0.01)  # of models that are built in; four at most
NUMBERED = {"y", "x", "mean", "quantiles", "variance", "uncorrected", "log_score"}
NUMBERED |= {"probabilities", "changed_probability", "evidence", "anomaly", "offset"}
NUMBERED |= {"changepoint_probability", "recent_change_probability", "map_run_length"}
NUMBERED |= {"previous_start", "accepted_ms", *RATES}
# All else, which an ordinary record has not got.
RARE = [f for f in Record.__struct_fields__ if f not in {"seq", "time", *NUMBERED}]
_rates = attrgetter(*RATES)
_USUAL_RATES = tuple((1.0, None, None, rate) for rate in USUAL_OUTLIER_RATES)
_USUAL_TABLE = np.array(_USUAL_RATES, np.float64)
# Of a row by the place of its rates there; the last one of others.
_KINDS = NUMBERS + np.array([*range(0, OUTLIERS * len(_USUAL_RATES), OUTLIERS), STATED])
# What a stream that warms up answers without.
_belief = attrgetter(
    "map_run_length",
    "evidence",
    "changed_probability",
    "changepoint_probability",
    "recent_change_probability",
)
_rare = attrgetter(*RARE)
_NOTHING = (None,) * len(RARE)
# Of DETAILS those that a record has, too.
_SCORES = DETAILS[: DETAILS.index("map_run_length")]
UNKEPT = len(DETAILS) - len(_SCORES)
# Fields of a row that `PlainRows` begins with.
_HEAD = ("kind", "map_run_length", "previous_start", "accepted_ms", "above")
_SHAPE = Struct("<3H")


# Of float32, without those that have fewer digits. An interval that is narrower than this part of
# its distance from the label would lose digits: that of an extreme outlier.
_LEAST = float(np.finfo(np.float32).tiny)
_LARGEST = float(np.finfo(np.float32).max)
_NARROWEST = 2.0**-12


Floats = NDArray[np.float64]
Table = NDArray[np.uint8]
# Rows that follow one another: ordinary ones that are alike as a table (n, length) of bytes, others
# one by one, with records that have no row yet.
Part = Table | list[bytes | Record]
# CRC-32 of each row of a table from a column on, begun with a number.
Sums = Callable[[Table, int, int], Any]


class Shape(NamedTuple):
    """Which numbers an ordinary record has: of its label and input, and of its predictive."""

    outputs: int = 1  # a label of one is no list
    classes: int = 0  # as of `Layout`
    inputs: int = 0

    @property
    def layout(self) -> Layout:
        """Order of the numbers of its answer."""
        return Layout(self.outputs, self.classes)

    @property
    def kind(self) -> int:
        """What it adds to the kind of a row."""
        return SHAPED if self != USUAL_SHAPE else 0

    def encoded(self) -> bytes:
        """Encode it; raises StructError for one that is too large."""
        return _SHAPE.pack(*self) if self.kind else b""

    def size(self, stated: bool) -> int:
        """Bytes of a row, without a time; stated: with what STATED adds."""
        return _form(self, stated).itemsize


USUAL_SHAPE = Shape()


def field_at(table: np.dtype[Any], name: str) -> int:
    """Where a field of a table's rows begins."""
    assert table.fields is not None
    return int(table.fields[name][1])


@lru_cache(256)
def _form(shape: Shape, stated: bool) -> np.dtype[Any]:
    """Rows of a shape as columns; answered: numbers at the places of `_answered`."""
    outputs = shape.outputs
    places, _ = _answered(shape)
    columns: list[tuple[Any, ...]] = [
        ("kind", "u1"),
        *([("shape", "<u2", len(shape))] if shape.kind else []),
        ("map_run_length", "<u4"),
        ("previous_start", "<i4"),
        ("accepted_ms", "<u4"),  # its low bits, and the others
        ("above", "<u2"),
        ("y", "<f8", (outputs,)),
        ("x", "<f8", (shape.inputs,)),
        ("uncorrected", "<f8", (outputs,)),
        ("evidence", "<f8"),
        ("answered", "<f4", places.shape),
    ]
    if stated:
        columns += [("rates", "<f8", (len(RATES),)), ("offset", "<f8", (outputs,))]
    return np.dtype(columns)


@lru_cache(256)
def _packing(shape: Shape, stated: bool) -> tuple[NDArray[np.int64], ...]:
    """Fields of a row and pairs of them, as `compiled.plain.pack` takes them.

    Then the places in `Layout` of its numbers from evidence on.
    """
    form = _form(shape, stated)
    fields: list[list[int]] = []
    first = {}
    exact = ("y", "x", "uncorrected", "evidence", "answered")
    further = ("rates", "offset") if stated else ()
    for name in (*_HEAD, *exact, *(("shape",) if shape.kind else ()), *further):
        first[name] = len(fields)
        column, at = cast(Any, form.fields)[name][:2]
        held = column.base
        fields += [[ord(held.char), at + k * held.itemsize, -1] for k in range(prod(column.shape))]
    places, of_label = _answered(shape)
    answered = first["answered"]
    for k in of_label.nonzero()[0].tolist():
        fields[answered + k][0] = ord("F")
    pairs: list[list[int]] = []
    if not shape.classes:
        for k in range(shape.layout.predictive):
            fields[answered + k][2] = first["y"] + k % shape.outputs
        lower = answered + shape.outputs
        upper = answered + shape.layout.predictive - shape.outputs
        pairs = [[lower + k, upper + k] for k in range(shape.outputs)]
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return np.array(fields), table, np.append(_evidence_at(shape), places)


@lru_cache(256)
def _row(shape: Shape, stated: bool) -> Struct:
    """The same as one row; in place of the shape its bytes."""
    places, _ = _answered(shape)
    exact = 2 * shape.outputs + shape.inputs + 1
    further = f"{len(RATES) + shape.outputs}d" if stated else ""
    return Struct(f"<B{len(shape.encoded())}sIiIH{exact}d{len(places)}f{further}")


@lru_cache(256)
def _answered(shape: Shape) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Places in `Layout` of numbers that are float32; which are distances, or covariances."""
    layout = shape.layout
    kept = np.arange(layout.full - UNKEPT)
    of_label = (kept < layout.predictive) & (shape.classes == 0)
    of_label |= (kept >= layout.summary) & (kept < layout.summary + layout.covariance)
    places = kept[kept != _evidence_at(shape)]
    return places, of_label[places]


def _evidence_at(shape: Shape) -> int:
    return shape.layout.predictive + SUMMARY.index("evidence")


_LENGTH = Struct("<I")
_SEQ_BYTES = 6
_HEADER = _SEQ_BYTES + 1  # of a block
_FEW = 640  # bytes of blocks: fewer are not worth a table
_BLOCK = np.dtype([("first", "<u4"), ("above", "<u2"), ("count", "u1")])

_encode = msgspec.msgpack.Encoder().encode
_decode_record = msgspec.msgpack.Decoder(Record).decode


def encode_row(record: Record) -> bytes:
    """Encode a record, but for its position where it is an ordinary one."""
    y: Any = [record.y] if type(record.y) is float else record.y
    if not isinstance(y, list) or None in y or (len(y) == 1 and y is record.y) or record.x == []:
        return _whole(record)
    outputs = len(y)
    predictive = _predictive(record, y)
    alike = all(not own or len(own) == outputs for own in (record.uncorrected, record.offset))
    if predictive is None or not alike or _rare(record) != _NOTHING:
        return _whole(record)
    x = record.x or []
    shape = Shape(outputs, len(record.probabilities or ()), len(x))
    kind = NUMBERS | shape.kind
    more = b""
    accepted_ms = record.accepted_ms
    if (record.time is None) == (accepted_ms is None):
        return _whole(record)
    if record.time is not None:
        if len(record.time) > LONGEST_TIME:
            return _whole(record)
        kind |= TIMED
        more = _text(record.time)
    middle, covariance = predictive
    missing = [math.nan] * outputs
    run_length, evidence, changed, starts, recent = _belief_of(record)
    answered = [
        *middle,
        changed,
        _or_nan(record.anomaly),
        *covariance,
        _or_nan(record.log_score),
        starts,
        recent,
    ]
    rates = _rates(record)
    stated = rates not in _USUAL_RATES or bool(record.offset)
    further: list[Any] = []
    if stated:
        kind |= STATED
        further = [*map(_or_nan, rates)]
        further += record.offset or [0.0] * outputs
    else:
        kind |= OUTLIERS * _USUAL_RATES.index(rates)
    try:
        row = _row(shape, stated).pack(
            kind,
            shape.encoded(),
            run_length,
            record.previous_start,
            *_halves(accepted_ms or 0),
            *y,
            *x,
            *(record.uncorrected or missing),
            evidence,
            *answered,
            *further,
        )
    except (StructError, OverflowError):  # one number is missing, or too large
        return _whole(record)
    return row + more


def _belief_of(record: Record) -> tuple[Any, ...]:
    """Its belief as a row has it."""
    belief: tuple[Any, ...] = _belief(record)
    return (0, *map(_or_nan, belief[1:])) if belief == (None,) * len(belief) else belief


def _halves(number: Any) -> tuple[Any, Any]:
    """The low 32 bits of a number, or of an array of them, and the others."""
    return number & 0xFFFFFFFF, number >> 32


def _predictive(record: Record, y: list[float]) -> tuple[list[float], list[float]] | None:
    """The predictive of an ordinary record as a row has it, and its covariance."""
    mean = record.mean
    variance = record.variance
    quantiles = record.quantiles
    probabilities = record.probabilities
    if probabilities is not None:
        several = mean is None and variance is None and quantiles is None and probabilities
        return (probabilities, []) if several else None
    if mean is None or variance is None or quantiles is None or tuple(quantiles) != LEVELS:
        return None
    outputs = len(y)
    parts: list[list[Any]] = [mean, *quantiles.values()]
    if outputs > KEPT_OUTPUTS or any(len(own) != outputs for own in (*parts, variance, *variance)):
        return None
    distances = [value - own for part in parts for value, own in zip(part, y, strict=True)]
    covariance = [*chain(*variance)]
    narrow = map(_narrow, distances[outputs : 2 * outputs], distances[-outputs:])
    fit = all(map(_normal, chain(distances, covariance))) and not any(narrow)
    return (distances, covariance) if fit else None


def _normal(number: float) -> bool:
    return number == 0.0 or _LEAST <= abs(number) <= _LARGEST


def _narrow(lower: float, upper: float) -> bool:
    return upper - lower < _NARROWEST * abs(lower + upper)


class PlainRows(NamedTuple):
    """Ordinary records (N,) of one shape as columns, which have no supervision.

    y: (N, d). x: (N, x). outlier_rate: (N,). numbers: (N, ...) as they begin in `Layout`.
    uncorrected: (N, d) medians before they were corrected. elapsed: time since the one before.
    hazard: nan where the model's own was met. times: as text, where any record has one. offset:
    (N, d) seasons, where any label has one.
    """

    classes: int
    y: NDArray[np.float64]
    x: NDArray[np.float64]
    outlier_rate: NDArray[np.float64]
    numbers: NDArray[np.float64]
    uncorrected: NDArray[np.float64]
    map_run_length: NDArray[np.float64]
    previous_start: NDArray[np.float64]
    accepted_ms: NDArray[np.int64]
    elapsed: NDArray[np.float64]
    hazard: NDArray[np.float64]
    times: Sequence[str | None] | None
    offset: NDArray[np.float64] | None = None

    @property
    def shape(self) -> Shape:
        """Of each of them."""
        return Shape(self.y.shape[1], self.classes, self.x.shape[1])

    def record(self, at: int, seq: int, hazard: Hazard | None) -> Record:
        """One of them, with a hazard that may be none of the numbers."""
        start = (self.map_run_length[at], self.previous_start[at], self.accepted_ms[at])
        shape = self.shape
        numbers = self.numbers[at]
        exact = (self.y[at], self.x[at], self.uncorrected[at])
        values = [*chain(*exact), numbers[_evidence_at(shape)], *numbers[_answered(shape)[0]]]
        offset = [] if self.offset is None else self.offset[at].tolist()
        time = None if self.times is None else self.times[at]
        rates = (float(self.elapsed[at]), None, hazard, float(self.outlier_rate[at]))
        values = [*map(float, values)]
        record = _ordinary(seq, shape, [*map(int, start)], values, rates, offset, time)
        if not np.isfinite(record.variance or 0.0).all():  # it does not exist
            record.variance = None
        return record

    def encoded(self, plain: ModuleType) -> tuple[Table | list[bytes], NDArray[np.bool_]]:
        """Rows as `encode_row` makes them, and which (N,) are; all others are whole records.

        Those of one length are a table. plain: `model_core.compiled.plain`, which an API cannot
        load.
        """
        shape = self.shape
        count = len(self.y)
        rates = np.full((count, len(RATES)), math.nan)
        rates[:, RATES.index("elapsed")] = self.elapsed
        rates[:, RATES.index("hazard")] = self.hazard
        rates[:, RATES.index("outlier_rate")] = self.outlier_rate
        offset = np.zeros_like(self.y) if self.offset is None else self.offset
        usual = np.empty(count, np.int64)
        plain.find_rows(rates, offset, _USUAL_TABLE, usual)
        stated = int(np.count_nonzero(usual < 0))
        fields, pairs, places = _packing(shape, stated > 0)
        head = np.empty((count, len(_HEAD)))
        head[:, 0] = _KINDS.take(usual)
        head[:, 1] = self.map_run_length
        head[:, 2] = self.previous_start
        head[:, 3], head[:, 4] = _halves(self.accepted_ms)
        if self.times is not None:
            timed = [time is not None for time in self.times]
            head[timed, 0] += TIMED
            head[timed, 3:] = 0.0
        parts = [head, self.y, self.x, self.uncorrected, self.numbers.take(places, 1)]
        if shape.kind:
            head[:, 0] += shape.kind
            parts += [np.full((count, len(shape)), shape)]
        size = shape.size(stated > 0)
        packed = np.empty((count, size), np.uint8)
        fit = np.empty(count, np.bool_)
        columns = np.concatenate((*parts, rates, offset), 1)
        plain.pack(columns, fields, pairs, _NARROWEST, packed, fit)
        if self.times is None and stated in (0, count):
            return packed, fit
        rows = _rows_from(packed)
        if 0 < stated < count:
            end = shape.size(False)
            known = zip(rows, usual.tolist(), strict=True)
            rows = [row if own < 0 else row[:end] for row, own in known]
        if self.times is not None:
            pairs_of = zip(rows, self.times, strict=True)
            rows = [row if time is None else row + _text(time) for row, time in pairs_of]
            fit &= [time is None or len(time) <= LONGEST_TIME for time in self.times]
        return rows, fit


def _ordinary(
    seq: int,
    shape: Shape,
    start: Sequence[int],
    values: Sequence[float],
    rates: tuple[float, float | None, Hazard | None, float],
    offset: list[float],
    time: str | None,
) -> Record:
    """An ordinary record; start: what follows its shape in a row. values: numbers down to STATED.

    rates: RATES.
    """
    run_length, previous_start, accepted_ms = start
    outputs = shape.outputs
    layout = shape.layout
    elapsed, changepoint, hazard, outlier_rate = rates
    numbered = iter(values)

    def taken(count: int) -> list[float]:
        return [*islice(numbered, count)]

    y = taken(outputs)
    x = taken(shape.inputs)
    uncorrected = taken(outputs)
    (evidence,) = taken(1)
    middle = taken(layout.predictive)
    changed, anomaly = taken(2)
    covariance = taken(layout.covariance)
    log_score, starts, recent = taken(len(_SCORES))
    record = Record(
        seq=seq,
        y=y[0] if outputs == 1 else [*y],
        x=x or None,
        time=time,
        elapsed=elapsed,
        changepoint=changepoint,
        hazard=hazard,
        outlier_rate=outlier_rate,
        log_score=_number(log_score),
        previous_start=previous_start,
        anomaly=_number(anomaly),
        offset=kept_season(offset),
        accepted_ms=accepted_ms if time is None else None,
        uncorrected=None if all(map(math.isnan, uncorrected)) else uncorrected,
    )
    if not math.isnan(evidence):
        record.map_run_length = run_length
        record.evidence = evidence
        record.changed_probability = changed
        record.changepoint_probability = starts
        record.recent_change_probability = recent
    if layout.classes:
        record.probabilities = middle
        return record
    record.mean, *quantiles = _cut(middle, outputs)
    record.quantiles = dict(zip(LEVELS, quantiles, strict=True))
    record.variance = _cut(covariance, outputs)
    return record


def _or_nan(value: Any) -> Any:
    return math.nan if value is None else value


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _cut(numbers: list[float], length: int) -> list[list[float]]:
    """Parts of one length."""
    return [numbers[at : at + length] for at in range(0, len(numbers), length)]


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
    shape = _shape_of(row)
    stated = bool(row[0] & STATED)
    form = _row(shape, stated)
    kind, _, run_length, previous_start, accepted, above, *values = form.unpack_from(row)
    outputs = shape.outputs
    if not shape.classes:
        first = 2 * outputs + shape.inputs + 1
        for at in range(shape.layout.predictive):
            values[first + at] += values[at % outputs]
    rates: tuple[float, float | None, float | None, float]
    rates = _USUAL_RATES[kind // OUTLIERS % 4]
    offset: list[float] = []
    if stated:
        end = len(values) - len(RATES) - outputs
        elapsed, changepoint, hazard, outlier_rate = values[end : end + len(RATES)]
        rates = (elapsed, _number(changepoint), _number(hazard), outlier_rate)
        offset = values[end + len(RATES) :]
    start = (run_length, previous_start, above << 32 | accepted)
    time = row[form.size + 1 :].decode() if kind & TIMED else None
    return _ordinary(seq, shape, start, values, rates, offset, time)


def decoded_row(seq: int, row: bytes | Record) -> Record:
    """The record at a position, which may be encoded."""
    return decode_row(seq, row) if isinstance(row, bytes) else row


def _shape_of(row: bytes, at: int = 0) -> Shape:
    """Shape of the ordinary row that begins here; raises ValueError for none."""
    if not row[at] & SHAPED:
        return USUAL_SHAPE
    shape = Shape(*_SHAPE.unpack_from(row, at + 1))
    if not 0 < shape.outputs <= KEPT_OUTPUTS:
        raise ValueError(f"expected a label of 1 to {KEPT_OUTPUTS} numbers, got {shape.outputs}")
    return shape


def labels_of(parts: Sequence[Part], outputs: int) -> tuple[Floats, Floats]:
    """Labels (N, d) of rows, nan where missing, and their seasons; outputs: numbers of each label.

    Ordinary rows are read as columns: a hundredth of the time of their records.
    """
    count = sum(map(len, parts))
    y = np.empty((count, outputs))
    offset = np.zeros((count, outputs))
    missing = [math.nan] * outputs
    end = 0
    for run in chain.from_iterable(map(runs_of, parts)):
        begin = end
        end += len(run)
        if isinstance(run, list):
            labels = [numbers(record.y) or missing for record in run]
            y[begin:end] = np.reshape(labels, (len(run), outputs))
            for at, record in enumerate(run, begin):
                if record.offset:
                    offset[at] = record.offset
            continue
        form = _form_of(run, outputs)
        y[begin:end] = _numbers(run, form, "y")
        if run[0, 0] & STATED:
            offset[begin:end] = _numbers(run, form, "offset")
    return y, offset


def usual_labels(
    place: int, blobs: Sequence[bytes], first: int, end: int, find_columns: Callable[..., bool]
) -> tuple[Floats, Floats] | None:
    """Return what `labels_of` does of the rows in [first, end), in a tenth of the time.

    None: some of their blocks have other rows, or are not right. blobs: the blocks, as
    `split_blocks` takes them. find_columns: of `model_core.compiled.checksums`, which API processes
    do not load.
    """
    if not blobs or first >= end:
        return None
    data = b"".join(blobs)
    blocks = np.frombuffer(data, np.uint8)
    sizes = np.fromiter(map(len, blobs), np.int64, len(blobs))
    found = np.empty((2, end - first, 1))
    words = found[:, :, 0].view(np.uint64)
    others = np.zeros(end - first, np.int64)
    mark = CHECKSUM_MARK[0]
    if not find_columns(blocks, sizes, mark, place, _usual_kinds(), first, words, others):
        return None
    for i in others.nonzero()[0].tolist():
        at = int(others[i])
        record = _decode_whole(data[at : at + _length(data, at)])
        found[0, i] = numbers(record.y) or math.nan
        found[1, i] = record.offset or 0.0
    return found[0], found[1]


@cache
def _usual_kinds() -> NDArray[np.int64]:
    """Rows of the usual shape, and whole records, as `find_columns` takes their kinds.

    The columns are label and season.
    """
    kinds = np.zeros((256, 4), np.int64)
    kinds[WHOLE, :2] = 1 + _LENGTH.size, _LENGTH.size
    for stated in (False, True):
        form = _form(USUAL_SHAPE, stated)
        offset = field_at(form, "offset") if stated else 0
        rates = (0,) if stated else range(len(USUAL_OUTLIER_RATES))
        for rate, timed in product(rates, (0, 1)):
            kind = NUMBERS + STATED * stated + TIMED * timed + OUTLIERS * rate
            kinds[kind] = form.itemsize + timed, timed, field_at(form, "y"), offset
    return kinds


def _form_of(rows: Table, outputs: int) -> np.dtype[Any]:
    """Form of rows that are alike; raises ValueError for those of other labels, or too short."""
    row = rows[0, : 1 + _SHAPE.size].tobytes()
    shape = _shape_of(row)
    form = _form(shape, bool(row[0] & STATED))
    if rows.shape[1] < form.itemsize or shape.outputs != outputs:
        raise ValueError(
            f"expected rows of {outputs} numbers and {form.itemsize} bytes or more, got "
            f"{shape.outputs} and {rows.shape[1]}"
        )
    return form


def columns_of(rows: Table, outputs: int) -> tuple[Floats, Floats, Floats, Floats | None]:
    """Labels (N, d), inputs (N, x), RATES (N, 4) and seasons (N, d) of rows that are alike.

    nan: an observation has none; None: none has. Raises ValueError as `labels_of` does.
    """
    form = _form_of(rows, outputs)
    stated = bool(rows[0, 0] & STATED)
    usual = _USUAL_TABLE[rows[0, 0] // OUTLIERS % 4]
    return (
        _numbers(rows, form, "y"),
        _numbers(rows, form, "x"),
        _numbers(rows, form, "rates") if stated else usual[None].repeat(len(rows), 0),
        _numbers(rows, form, "offset") if stated else None,
    )


def _numbers(rows: Table, form: np.dtype[Any], name: str) -> Floats:
    """A column of several numbers of float64."""
    begin = field_at(form, name)
    own = rows[:, begin : begin + form[name].itemsize]
    return np.ascontiguousarray(own).view(np.float64)


def runs_of(part: Part) -> Iterator[Table | list[Record]]:
    """Rows as tables of those that are alike, and as records."""
    if isinstance(part, np.ndarray):
        yield part
        return
    # Of those that nearly all are, without a call for each.
    likeness = [
        (row[0], len(row)) if type(row) is bytes and WHOLE < row[0] < SHAPED else _likeness(row)
        for row in part
    ]
    end = 0
    for (prefix, length), group in groupby(likeness):
        begin = end
        end += len(list(group))
        run: Any = part[begin:end]
        if length:
            yield np.frombuffer(b"".join(run), np.uint8).reshape(-1, length)
        else:
            yield run if prefix is None else list(map(_decode_whole, run))


def _likeness(row: bytes | Record) -> tuple[bytes | int | None, int]:
    """What rows that are alike have in common: the beginning, and the length, of a record 0."""
    if isinstance(row, Record):
        return None, 0
    kind = row[0]
    if kind == WHOLE:
        return WHOLE, 0
    return row[: 1 + _SHAPE.size] if kind & SHAPED else kind, len(row)


def singly(parts: Iterable[Part]) -> list[bytes | Record]:
    """Rows one by one."""
    rows: list[bytes | Record] = []
    for part in parts:
        rows += _rows_from(part) if isinstance(part, np.ndarray) else part
    return rows


def _decode_whole(row: bytes) -> Record:
    return _decode_record(row[1 + _LENGTH.size :])


_USUAL_BYTES = USUAL_SHAPE.size(stated=False)
# What kinds of rows that are alike have in common.
_ALIKE = 0xFF - OUTLIERS * 3


def _length(body: bytes, at: int) -> int:
    """Bytes of the row that begins here."""
    kind = body[at]
    if kind == NUMBERS:  # nearly always
        return _USUAL_BYTES
    if kind == WHOLE:
        (length,) = _LENGTH.unpack_from(body, at + 1)
        return 1 + _LENGTH.size + int(length)
    length = _shape_of(body, at).size(bool(kind & STATED))
    return length + (1 + body[at + length] if kind & TIMED else 0)


# --- positions of heads ---------------------------------------------------------------------------

# A kind (u8), then numbers at fixed places: so is the position of nearly every stream that was
# filtered; of a vector the last label goes on after them. Any other is the whole in msgpack.
# Workers keep those of streams at rest as rows of an array, as they are stored.

TOO_MANY = 1 << 32  # observations of a stream whose position is the whole
_FIELDS = {
    "seq": "I",
    "scored": "I",
    "map_run_length": "I",
    "best_start": "I",
    "updated_ms": "q",
    "checkpoint": "I",
    "checkpoint_ms": "q",
    "oldest": "I",
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
    """Return a head's position as numbers of `POSITION`; None where it has others.

    Of a vector it has the first number of the last label.
    """
    last = head.last_label
    if not last or None in last or len(last) > KEPT_OUTPUTS or head.regime is not None:
        return None
    if head.changed_probability is None or head.evidence is None or head.map_run_length is None:
        return None
    pace = Pace(math.nan, False) if head.pace is None else head.pace
    if max(head.seq, head.scored, pace.seen) >= TOO_MANY:
        return None
    return (
        NUMBERS | SHAPED if len(last) > 1 else NUMBERS,
        *_plain_numbers(head),
        cast(float, last[0]),
        math.nan if head.last_time is None else head.last_time,
        pace.since,
        pace.timed,
        pace.seen,
        math.nan if pace.per_day is None else pace.per_day,
    )


def enter_numbers(position: Position, numbers: Numbers, further: Sequence[float] = ()) -> None:
    """Enter numbers of `POSITION` into a position, or a head.

    further: numbers of the last label after its first.
    """
    (
        _,
        position.seq,
        position.scored,
        position.map_run_length,
        position.best_start,
        position.updated_ms,
        position.checkpoint,
        position.checkpoint_ms,
        position.oldest,
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
    position.last_label = [last_label, *further]
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
    assert head.last_label is not None
    return _POSITION.pack(*numbers) + further_bytes(head.last_label[1:])


def further_bytes(numbers: Sequence[float | None]) -> bytes:
    """Return what follows `POSITION` of a vector: the number of its further outputs, and these."""
    return _further(len(numbers)).pack(len(numbers), *numbers) if numbers else b""


@lru_cache(KEPT_OUTPUTS)
def _further(count: int) -> Struct:
    return Struct(f"<B{count}d")


def decode_position(body: bytes) -> Position:
    """Decode what `encode_position` made; raises MsgspecError, IndexError or StructError."""
    if body[0] == WHOLE:
        return _decode_whole_position(memoryview(body)[1:])
    position = Position()
    further: Sequence[float] = ()
    end = _POSITION.size
    if body[0] & SHAPED:
        _, *further = _further(body[end]).unpack(body[end:])
        body = body[:end]
    enter_numbers(position, _POSITION.unpack(body), further)
    return position


# --- blocks ---------------------------------------------------------------------------------------


def block_of(first: int, rows: Sequence[bytes]) -> bytes:
    """Join the rows of positions from `first` on, 255 at most."""
    return first.to_bytes(_SEQ_BYTES, "little") + bytes([len(rows)]) + b"".join(rows)


def bytes_of(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """Return rows (N,) as bytes (N, ...)."""
    return np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), rows.itemsize)


class Blocks(NamedTuple):
    """Blocks of several streams (N,): position of the first row, and rows of each.

    full: whether it goes to the stream's tail; the others go with its position. room, places, held:
    the table where rows lie that a block begins with, its row there, and bytes of these. rows,
    sizes: those that follow, one after the other, and bytes of each block.
    """

    firsts: NDArray[np.int64]
    counts: NDArray[np.int64]
    full: NDArray[np.bool_]
    room: NDArray[np.uint8]
    places: NDArray[np.int64]
    held: NDArray[np.int64]
    rows: NDArray[np.uint8]
    sizes: NDArray[np.int64]


def elements(
    starts: NDArray[np.int64],
    heads: NDArray[np.uint8],
    sizes: NDArray[np.int64],
    more: bytes,
    blocks: Blocks,
    enter_positions: Callable[..., None],
) -> tuple[tuple[NDArray[np.uint8], list[int]], tuple[NDArray[np.uint8], list[int]]]:
    """Return positions with blocks, and blocks of tails, as elements of `packed`, joined.

    With each where those of each stream end. starts: (N, 2) places of the checksums of positions
    and of tails. heads: (N, ...) how positions begin. sizes: (N,) of what follows in each, which is
    `more`. enter_positions: of `model_core.compiled.checksums`, which API processes do not load.
    """
    count, width = heads.shape
    full = blocks.full
    of_blocks = blocks.held + blocks.sizes + (_HEADER + CHECKSUM_SIZE)
    lying = of_blocks[~full].sum()
    held = np.empty(len(more) + lying + count * (width + _ELEMENT + 2), np.uint8)
    pushed = np.empty(of_blocks.sum() - lying + np.count_nonzero(full) * 5, np.uint8)
    ends = np.empty((2, count), np.int64)
    enter_positions(
        heads,
        np.frombuffer(more, np.uint8),
        sizes,
        *blocks,
        starts,
        np.frombuffer(_BEFORE_ELEMENT, np.uint8),
        held,
        ends[0],
        pushed,
        ends[1],
    )
    return (held, ends[0].tolist()), (pushed, ends[1].tolist())


def packed(count: int, elements: NDArray[np.uint8]) -> bytes:
    """Return the list in msgpack of so many elements, which are packed and joined."""
    return b"".join((b"\xdd", count.to_bytes(4, "big"), elements.data))


def with_block(position: bytes, block: bytes = b"") -> bytes:
    """Return a position, with its checksum, as it is stored with a block that lies beside it."""
    return b"".join((position, block, len(block).to_bytes(2, "little")))


def split_position(stored: bytes) -> tuple[bytes, bytes]:
    """Return the parts of what `with_block` made; raises Damaged."""
    end = len(stored) - 2
    begin = end - int.from_bytes(stored[-2:], "little")
    if begin < CHECKSUM_SIZE:
        raise Damaged("a length that no block has")
    return stored[:begin], stored[begin:end]


def begin_of(blob: bytes) -> int:
    """Return the position of the first row of a block, whose checksum is not looked at."""
    return int.from_bytes(blob[CHECKSUM_SIZE : CHECKSUM_SIZE + _SEQ_BYTES], "little")


def sums_of(table: Table, begin: int, start: int) -> list[int]:
    """`Sums` by zlib."""
    return list(map(crc32, _rows_from(table[:, begin:]), repeat(start)))


def split_blocks(place: int, blobs: Sequence[bytes], sums: Sums) -> Iterator[tuple[int, int, Part]]:
    """Yield rows of blocks, many alike as a table: in a tenth of the time.

    Before them the positions that the first and the last of their blocks begin at. blobs: with
    their checksums, as of `checksummed_at`. Raises ValueError, or as damaged rows do.
    """
    at = 0
    for size, group in groupby(map(len, blobs)):
        alike = blobs[at : at + len(list(group))]
        at += len(alike)
        rows = _table(place, alike, sums) if size * len(alike) >= _FEW else None
        if rows is not None:
            yield begin_of(alike[0]), begin_of(alike[-1]), rows
            continue
        for blob in alike:
            yield begin_of(blob), begin_of(blob), split_block(checked_at(place, blob))


def _table(place: int, blobs: Sequence[bytes], sums: Sums) -> Table | None:
    """Rows of blocks of one length, if all are right, ordinary and alike, and without a gap."""
    own = blobs[0]
    if len(own) <= BEFORE_ROWS or own[BEFORE_ROWS] == WHOLE:
        return None
    table = np.frombuffer(b"".join(blobs), np.uint8).reshape(len(blobs), -1)
    count = own[BEFORE_ROWS - 1]
    begins = begin_of(own) + count * np.arange(len(blobs))
    expected = np.empty(len(blobs), _BEFORE)
    expected["mark"] = CHECKSUM_MARK[0]
    expected["crc"] = sums(table, CHECKSUM_SIZE, place)
    expected["first"], expected["above"] = _halves(begins)
    expected["count"] = count
    if table[:, :BEFORE_ROWS].tobytes() != expected.tobytes():
        return None
    length = _length(own, BEFORE_ROWS)
    if len(own) != BEFORE_ROWS + count * length:
        return None
    rows = table[:, BEFORE_ROWS:].reshape(-1, length)
    # What the length of a row depends on.
    kind = own[BEFORE_ROWS]
    alike = rows[:, 0] & _ALIKE == kind & _ALIKE
    if kind & SHAPED:
        alike &= (rows[:, 1 : 1 + _SHAPE.size] == rows[0, 1 : 1 + _SHAPE.size]).all(1)
    if kind & TIMED:
        text = _shape_of(own, BEFORE_ROWS).size(bool(kind & STATED))
        alike &= rows[:, text] == rows[0, text]
    return rows if alike.all() else None


def _rows_from(table: Table) -> list[bytes]:
    """The rows of a table of bytes."""
    rows: list[bytes] = np.ascontiguousarray(table).view(f"V{table.shape[1]}")[:, 0].tolist()
    return rows


def split_block(body: bytes) -> list[bytes | Record]:
    """Return the rows of a block; raises ValueError."""
    return split_rows(body, body[_SEQ_BYTES], _HEADER)


def split_rows(body: bytes, count: int, begin: int = 0) -> list[bytes | Record]:
    """Return so many rows, one after the other from a place to the end; raises ValueError."""
    kind = body[begin] if count else WHOLE
    if kind & NUMBERS and not kind & (TIMED | SHAPED):  # its length is that of its kind
        length = _length(body, begin)
        if len(body) == begin + count * length and body[begin::length] == bytes([kind]) * count:
            return [body[at : at + length] for at in range(begin, len(body), length)]
    at = begin
    rows: list[bytes | Record] = []
    for _ in range(count):
        end = at + _length(body, at)
        rows.append(body[at:end])
        at = end
    if at != len(body):
        raise ValueError(f"expected rows of {at} bytes, got {len(body)}")
    return rows


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
# What is stored of a block before its rows.
_BEFORE = np.dtype([*_SUM, *_BLOCK.descr])
BEFORE_ROWS = _BEFORE.itemsize
# Strings of a list in msgpack, as the server's scripts read them, which has to be raw 32: a byte
# before the length, of four, and then the mark.
_BEFORE_ELEMENT = b"\xdb" + CHECKSUM_MARK
_ELEMENT = 1 + 4 + CHECKSUM_SIZE  # bytes before a body


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


def checked_at(place: int, blob: bytes) -> bytes:
    """Return the body of what `checksummed_at` made; raises Damaged."""
    body = blob[CHECKSUM_SIZE:]
    if blob[:CHECKSUM_SIZE] != CHECKSUM_MARK + crc32(body, place).to_bytes(4, "little"):
        raise Damaged("checksum mismatch")
    return body


def checked(blob: bytes, part: str, owner: object, field: object = "") -> bytes:
    """Return the body of what `checksummed` made; raises Damaged."""
    return checked_at(place_of(part, owner, field), blob)
