"""Records as rows and blocks: what is read is what was written."""

import itertools
import math
import random
import struct

import msgspec
import numpy as np
import pytest

from model_core.compiled import plain
from service import wire
from service.wire import Record
from service.wire import stored_records as rows
from service.wire.records import Excluded

FLOATS = [0.0, -0.0, 1.0, -1e300, 5e-324, 1e308, 0.1, 123456.789012345, 1e9 + 0.1]
# That float32 has, too.
SMALL_FLOATS = [0.0, 1.0, -1e30, 1e-60, 0.1, 123456.789012345, float("inf")]
TIMES = ["2024-05-01T12:00:00Z", "2024-05-01T12:00:00.123456+02:00", ""]


def ordinary(seq, rng, **fields):
    """A record as nearly all are: a number, and what its step gave."""
    exact = lambda: rng.choice([rng.gauss(0, 1), rng.choice(FLOATS)])  # noqa: E731
    number = lambda: rng.choice([rng.gauss(0, 1), rng.choice(SMALL_FLOATS)])  # noqa: E731
    y = exact()
    lower = rng.gauss(0, 10)
    values = {
        "seq": seq,
        "y": y,
        "x": None,
        "time": None,
        "elapsed": 1.0,
        "changepoint": None,
        "hazard": None,
        "outlier_rate": rng.choice([0.0, 0.001, 0.01, 0.02, 1e-9]),
        "log_score": number(),
        "changed_probability": number(),
        "evidence": rng.choice([0.0, 12.5, 1e290]),
        "changepoint_probability": number(),
        "recent_change_probability": number(),
        "map_run_length": rng.choice([0, 7, 2**32 - 1]),
        "mean": [y + lower + 0.3],
        "quantiles": {level: [y + lower + i / 3] for i, level in enumerate(rows.LEVELS)},
        "previous_start": rng.choice([-1, 0, 2**31 - 1]),
        "variance": [[rng.choice([rng.random(), 1e38, 1e-37])]],
        "uncorrected": rng.choice([None, [exact()]]),
        "anomaly": number(),
        "accepted_ms": rng.choice([0, 1_795_734_569_283, 2**48 - 1]),
    }
    return Record(**{**values, **fields})


def kept(record):
    """A record as its row has it: what a replay needs is exact, answers have digits of float32."""
    kept = msgspec.structs.replace(record)
    narrow = lambda number: None if number is None else float(np.float32(number))  # noqa: E731
    scores = ("changed_probability", "anomaly", "log_score")
    for name in (*scores, "changepoint_probability", "recent_change_probability"):
        setattr(kept, name, narrow(getattr(record, name)))
    if record.probabilities is not None:
        kept.probabilities = [*map(narrow, record.probabilities)]
        return kept
    y = wire.numbers(record.y)
    near = lambda part: [own + narrow(v - own) for v, own in zip(part, y, strict=True)]  # noqa: E731
    kept.mean = near(record.mean)
    kept.quantiles = {level: near(own) for level, own in record.quantiles.items()}
    kept.variance = [[*map(narrow, own)] for own in record.variance]
    return kept


def shaped(outputs, inputs):
    """Numbers of an ordinary record of a vector, with an input."""
    own = [0.5 - i for i in range(outputs)]
    return {
        "y": own,
        "x": [float(i) for i in range(inputs)] or None,
        "mean": own,
        "quantiles": {level: [v + i / 7 for v in own] for i, level in enumerate(rows.LEVELS, -3)},
        "variance": [[float(i - j) for j in range(outputs)] for i in range(outputs)],
        "uncorrected": own,
        "offset": own,
    }


CLASSES = {"mean": None, "quantiles": None, "variance": None, "probabilities": [0.25, 0.75]}
SHAPED = [{"x": [0.5, -1.0]}, CLASSES, {**CLASSES, "x": [1.0]}, shaped(2, 0), shaped(3, 2)]
WARMING = dict.fromkeys(
    (
        "map_run_length",
        "evidence",
        "changed_probability",
        "changepoint_probability",
        "recent_change_probability",
        "anomaly",
        "uncorrected",
    )
)
# What makes a record another than an ordinary one, each alone.
UNUSUAL = [
    {"y": None},
    {"y": [1.0, None]},
    {"y": [1.0]},
    {**shaped(2, 0), "uncorrected": [1.0]},
    {**shaped(2, 0), "offset": [1.0]},
    {**shaped(2, 0), "variance": [[1.0, 0.0]]},
    {**shaped(2, 0), "y": 1.0},
    shaped(17, 0),
    {**CLASSES, "probabilities": []},
    {**CLASSES, "mean": [1.0]},
    {**CLASSES, "probabilities": [2.0**-16] * 2**16},
    {"x": []},
    {"hazard": (0.1, 0.2)},
    {"hazard": {"mean": 9.0, "shape": 2.0}},
    {"changed_probability": None},
    {"evidence": None},
    {"changepoint_probability": None},
    {"recent_change_probability": None},
    {"map_run_length": None},
    {**WARMING, "map_run_length": 1},
    {**WARMING, "evidence": 1.0},
    {**WARMING, "mean": None},
    {"map_run_length": 2**32},
    {"mean": None},
    {"mean": [0.5, 1.0]},
    {"uncorrected": [0.5, 1.0]},
    {"quantiles": None},
    {"quantiles": {"0.5": [1.0]}},
    {"quantiles": {"0.95": [1.0], "0.5": [2.0], "0.05": [3.0]}},
    {"quantiles": {level: [1.0, 2.0] for level in rows.LEVELS}},
    {"probabilities": [0.25, 0.75]},
    {"previous_start": 2**31},
    {"variance": None},
    {"variance": [[1e60]]},
    {"variance": [[1e-60]]},
    {"y": 0.0, "mean": [1e60]},
    {"y": 0.0, "mean": [1e-60]},
    {"log_score": -1e60},
    {"y": 0.0, "quantiles": {"0.05": [1e9], "0.5": [1e9 + 1], "0.95": [1e9 + 2]}},
    {"y": 0.0, "quantiles": dict.fromkeys(rows.LEVELS, [1.0])},
    {"variance": [[1.0, 0.5], [0.5, 2.0]]},
    {"belief_override": [(3, 0.5), (9, 0.5)]},
    {"accepted_ms": None},
    {"time": "2024-05-01T12:00:00Z"},
    {"time": "x" * 256, "accepted_ms": None},
    {"excluded": Excluded(3.0, None, "night")},
    {"new_probability": 0.5},
    {"return_evidence": 3.5},
]
STATED = [
    {"elapsed": 2.5},
    {"elapsed": 0.0},
    {"changepoint": 0.25},
    {"hazard": 0.01},
    {"offset": [-3.25]},
    {"offset": [], "hazard": 0.5},
    {"anomaly": None},
    {"log_score": None, "anomaly": None},
    WARMING,
    {**WARMING, "log_score": None, "elapsed": 2.5},
]


def same(record, other):
    """Equal, also in what `==` does not tell apart: -0.0 from 0.0."""
    return record == other and msgspec.msgpack.encode(record) == msgspec.msgpack.encode(other)


def variants(rng):
    for seq, (number, stated, time) in enumerate(
        itertools.product(range(4), [{}, *STATED], [None, *TIMES])
    ):
        timed = {} if time is None else {"time": time, "accepted_ms": None}
        yield ordinary(seq * 7 + number, rng, **stated, **timed)


def test_ordinary_records_are_numbers_and_read_back_as_they_were():
    rng = random.Random(1)
    for record in variants(rng):
        row = rows.encode_row(record)
        assert row[0] & rows.NUMBERS, record
        assert same(rows.decode_row(record.seq, row), kept(record))
    usual = ordinary(5, rng, outlier_rate=0.001)
    assert len(rows.encode_row(usual)) == 79  # part of the stored format
    for fields in SHAPED:
        record = ordinary(5, rng, **fields)
        row = rows.encode_row(record)
        assert row[0] & rows.NUMBERS, record
        assert same(rows.decode_row(5, row), kept(record))


@pytest.mark.parametrize("y", [0.0, 1e9 + 0.1, -3e-5])
def test_a_label_is_within_its_interval_in_a_row_where_it_was(y):
    """Whether there is an interval, too: scales of corrections are replayed by both."""
    rng = random.Random(7)
    told = []
    for _ in range(500):
        scale = 10.0 ** rng.uniform(-12, 12)
        lower = y + rng.gauss(0, 1) * scale
        upper = rng.choice([lower, math.nextafter(lower, math.inf), lower + rng.random() * scale])
        middle = {"0.05": [lower], "0.5": [(lower + upper) / 2], "0.95": [upper]}
        row = rows.encode_row(ordinary(1, rng, y=y, mean=[lower], quantiles=middle))
        stored = rows.decode_row(1, row).quantiles
        known = [(own["0.05"][0], own["0.95"][0]) for own in (middle, stored)]
        expected, found = ((low < high, y < low, y > high) for low, high in known)
        assert found == expected
        if row[0] != rows.WHOLE:
            told.append(expected)
    assert {(True, True, False), (True, False, True), (True, False, False)} <= {*told}


@pytest.mark.parametrize("fields", UNUSUAL)
def test_any_other_record_reads_back_as_it_was(fields):
    record = ordinary(5, random.Random(2), **fields)
    row = rows.encode_row(record)
    assert row[0] == rows.WHOLE
    assert same(rows.decode_row(5, row), record)
    with pytest.raises(ValueError, match="at seq 6, got that at 5"):
        rows.decode_row(6, row)


def mixed(rng, first, count):
    """Records of all kinds, in runs of one kind and one by one."""
    records = []
    while len(records) < count:
        fields = rng.choice([{}, rng.choice(STATED), rng.choice(UNUSUAL), rng.choice(SHAPED)])
        for _ in range(min(rng.choice([1, 2, 20]), count - len(records))):
            records.append(ordinary(first + len(records), rng, **fields))
    return records


def test_blocks_are_the_identity():
    rng = random.Random(3)
    for count in [0, 1, 2, 63, 64, 64, 64, 255]:
        first = rng.choice([0, 1, 2**48 - 256])
        records = mixed(rng, first, count)
        encoded = [rows.encode_row(record) for record in records]
        body = rows.block_of(first, encoded)
        assert rows.split_block(body) == encoded
        assert rows.begin_of(rows.checksummed_at(0, body)) == first


@pytest.mark.parametrize("outputs", [1, 2])
def test_labels_are_read_as_columns_whatever_their_records_are(outputs):
    rng = random.Random(5)
    several = [[0.5, -0.0], [None, 2.0]]
    records = []
    if outputs == 1:
        drawn = [*variants(rng), *mixed(rng, 0, 99)]
        records = [record for record in drawn if len(wire.numbers(record.y)) < 2]
    for y in [None, *(several if outputs == 2 else [])] * 3:
        records.append(ordinary(7, rng, y=y, offset=[0.25, -0.5][:outputs]))
        if outputs == 2:
            records.append(ordinary(7, rng, **shaped(2, 1)))
            records.append(ordinary(7, rng, **{**shaped(2, 1), "offset": []}))
    rng.shuffle(records)
    encoded = [record if rng.random() < 0.1 else rows.encode_row(record) for record in records]
    y, offset = rows.labels_of([encoded[:9], encoded[9:]], outputs)
    expected = [wire.numbers(record.y) or [math.nan] * outputs for record in records]
    assert np.array_equal(y, np.array(expected), equal_nan=True)
    assert offset.tolist() == [record.offset or [0.0] * outputs for record in records]
    assert [own.shape for own in rows.labels_of([], outputs)] == [(0, outputs)] * 2


@pytest.mark.parametrize("fields", [{}, {"y": [1.0]}, shaped(3, 0)])
def test_labels_of_another_size_are_refused(fields):
    record = ordinary(5, random.Random(6), **fields)
    for row in (record, rows.encode_row(record)):
        with pytest.raises(ValueError, match="expected rows of 2 numbers|cannot reshape"):
            rows.labels_of([[row]], 2)


def test_a_block_that_was_cut_or_goes_on_is_refused():
    rng = random.Random(4)
    body = rows.block_of(3, [rows.encode_row(record) for record in mixed(rng, 3, 9)])
    for other in [body[:length] for length in range(len(body))] + [body + b"\0"]:
        with pytest.raises((ValueError, IndexError, struct.error)):
            rows.split_block(other)


def predictives(records, outputs):
    """Predictives as `Layout` has them, and covariances; inf where there is none."""
    if records[0].probabilities is not None:
        return [record.probabilities for record in records], [[] for _ in records]
    nothing = [[np.inf] * outputs] * outputs
    middle = [[*record.mean, *sum(record.quantiles.values(), [])] for record in records]
    return middle, [sum(record.variance or nothing, []) for record in records]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shape", [{}, *SHAPED])
def test_columns_are_encoded_as_each_record_alone(seed, shape):
    """With or without hazards, times, seasons; those without such a row say so."""
    rng = random.Random(seed)
    records = []
    outputs = len(wire.numbers(shape.get("y", 0.0)))
    for seq in range(1, 80):
        record = ordinary(seq, rng, **shape)
        record.map_run_length = rng.choice([0, 7, 2**32 - 1, 2**32])
        record.previous_start = rng.choice([-1, 0, 2**31 - 1, 2**31])
        record.offset = rng.choice([[], [-0.7] * outputs]) if seed > 3 else []
        if seed != 0:
            record.hazard = rng.choice([None, 0.01]) if seed != 1 else 0.5
        if seed > 1:
            record.elapsed = rng.choice([1.0, 1.0, 3.0, 0.5])
        if seed == 3 and rng.random() < 0.5:
            record.time = rng.choice([*TIMES[:2], "x" * 64])
            record.accepted_ms = None
        if record.variance is not None:
            square = [[rng.random() for _ in range(outputs)] for _ in range(outputs)]
            record.variance = rng.choice([None, *[square] * 9])
            last = rng.choice([1e60, 1e-60, -1e308, *[record.mean[-1]] * 9])
            record.mean = [*record.mean[:-1], last]
            lower = record.quantiles["0.05"]
            narrow = [v + 1e-5 for v in lower]
            record.quantiles["0.95"] = rng.choice([narrow, *[record.quantiles["0.95"]] * 9])
        records.append(record)
    middle, variance = predictives(records, outputs)
    believed = [[r.changed_probability, r.evidence, r.anomaly] for r in records]
    scores = [
        [r.log_score, r.changepoint_probability, r.recent_change_probability] for r in records
    ]
    columns = rows.PlainRows(
        len(shape.get("probabilities", ())),
        np.array([wire.numbers(record.y) for record in records]),
        np.array([record.x or [] for record in records]),
        np.array([record.outlier_rate for record in records]),
        np.hstack((middle, believed, variance, scores)),
        np.array([record.uncorrected or [np.nan] * outputs for record in records]),
        np.array([record.map_run_length for record in records]),
        np.array([record.previous_start for record in records]),
        np.array([record.accepted_ms or 0 for record in records]),
        np.array([record.elapsed for record in records]),
        np.array([np.nan if record.hazard is None else record.hazard for record in records]),
        [record.time for record in records] if seed == 3 else None,
        np.array([record.offset or [0.0] * outputs for record in records]) if seed > 3 else None,
    )
    encoded, fit = columns.encoded(plain)
    for i, record in enumerate(records):
        expected = rows.encode_row(record)
        assert fit[i] == (expected[0] != rows.WHOLE)
        if fit[i]:
            assert bytes(encoded[i]) == expected
        assert rows.encode_row(columns.record(i, record.seq, record.hazard)) == expected
