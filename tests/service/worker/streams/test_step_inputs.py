"""Observations as a filter takes them, from records and from rows as they are stored."""

import random

import numpy as np

from model_core.upm.builtin import Options, build
from service.wire import numbers
from service.wire.stored_records import encode_row
from service.worker.streams.step_inputs import columns_of
from tests.service.wire.test_stored_records import mixed, variants


def test_rows_give_the_columns_of_their_records():
    model = build("gaussian", Options())
    rng = random.Random(8)
    records = [
        record
        for record in [*variants(rng), *mixed(rng, 0, 200)]
        if len(numbers(record.y)) < 2 and len(record.offset or ()) < 2 and not record.x
    ]
    rng.shuffle(records)
    assert {record.outlier_rate for record in records} > {0.0, 0.001}
    assert any(record.hazard is not None for record in records)
    rows = [record if rng.random() < 0.1 else encode_row(record) for record in records]
    assert sum(isinstance(row, bytes) and row[0] > 0 for row in rows) > 50
    for own, expected in zip(columns_of(model, rows), columns_of(model, records), strict=True):
        np.testing.assert_array_equal(own, expected)
