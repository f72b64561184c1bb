"""States as bytes: what is written is read back bitwise, and whatever else is refused."""

from __future__ import annotations

import functools
import json
import math
import struct
from zlib import crc32

import numpy as np
import pytest
import torch

from model_core import anomaly, codec, correction
from model_core import filter as moca
from model_core.codec import StreamRow
from model_core.errors import BadState
from model_core.filter import FilterState
from model_core.stream import season
from model_core.stream.resolution import held_at_start
from model_core.table import LOG_PROB, PREVIOUS, RUN_LENGTH, SCORE, SEQ, Layout
from tests.model_core.cases import inputs, run, series
from tests.model_core.registry import NAMES, case

ROOM = 12


@functools.cache
def steps_of(name: str, room: int):
    return run(case(name), [series_of(name)], room)


def series_of(name: str):
    return series(case(name), 4, 16, labelled=[True] * 6 + [False], outlier_rate=0.01)


@functools.cache
def layout_of(name: str, room: int = ROOM) -> Layout:
    return Layout(case(name).model, room)


def row_of(name: str, state: FilterState | None = None, room: int = ROOM) -> StreamRow:
    """A state as a row; None: after 14 observations."""
    state = steps_of(name, room)[13].state if state is None else state
    lines, heads = layout_of(name, room).packed(state, case(name).prior())
    model = case(name).model
    errors = correction.start(correction.outputs(model))
    resolution = np.zeros(model.y_dim + 1)
    return StreamRow(
        lines.numpy()[0],
        heads.numpy()[0],
        ranks_of(name),
        errors,
        held_at_start(model.y_dim),
        resolution,
    )


def ranks_of(name: str) -> np.ndarray:
    outputs = anomaly.outputs(case(name).model)
    return anomaly.start([0.5] * outputs, [2.0] * outputs)


def encoded(name: str, own: StreamRow, room: int = ROOM) -> bytes:
    return codec.encode(layout_of(name, room), own)


@functools.cache
def blob_of(name: str) -> bytes:
    return encoded(name, row_of(name))


def decode(name: str, blob: bytes, room: int = ROOM) -> StreamRow:
    fresh = row_of(name, moca.init(case(name).prior(), room), room)
    return codec.decode(layout_of(name, room), fresh, blob)


def sealed(body: bytes) -> bytes:
    """With the checksum that fits."""
    return body + struct.pack("<I", crc32(body))


def header_of(name: str) -> dict:
    blob = blob_of(name)
    (length,) = struct.unpack_from("<I", blob, 6)
    return json.loads(blob[10 : 10 + length])


def transposed(numbers: bytes, lines: int) -> bytes:
    """All first bytes of lines, then all second ones, and so on."""
    return np.frombuffer(numbers, np.uint8).reshape(lines, -1).T.tobytes()


def with_array(name: str, i: int, entry: list) -> bytes:
    """Array `i` under another name, type and shape, and as many bytes as that needs."""
    header, blob = header_of(name), blob_of(name)
    sizes = [8 * math.prod(shape) for _, _, shape in header["arrays"]]
    arrays = transposed(blob[len(blob) - 4 - sum(sizes) : -4], 8)
    start = sum(sizes[:i])
    changed = (arrays[start : start + sizes[i]] * 2)[: 8 * math.prod(entry[2])]
    arrays = arrays[:start] + changed + arrays[start + sizes[i] :]
    header["arrays"][i] = entry
    text = json.dumps(header).encode()
    first = blob[:6] + struct.pack("<I", len(text)) + text
    return sealed(first + transposed(arrays, len(arrays) // 8))


def check_read_back(name: str, state: FilterState, room: int) -> None:
    own = row_of(name, state, len(state.belief.log_prob[0]) - 1)
    blob = encoded(name, own, layout_of(name).max_hypotheses)
    decoded = decode(name, blob, room)
    assert encoded(name, decoded, room) == blob
    alive = np.isfinite(own.lines[LOG_PROB])
    count = alive.sum()
    # Each in its own slot.
    assert decoded.lines[:, : len(alive)][:, alive].tobytes() == own.lines[:, alive].tobytes()
    assert decoded.head.tobytes() == own.head.tobytes()
    assert np.isfinite(decoded.lines[LOG_PROB]).sum() == count


@pytest.mark.parametrize("name", NAMES)
def test_a_state_is_read_back_bitwise_and_goes_on(name):
    model_case = case(name)
    one, steps = series_of(name), steps_of(name, ROOM)
    check_read_back(name, steps[0].state, ROOM)
    check_read_back(name, steps[2].state, 30)
    check_read_back(name, steps[13].state, ROOM)
    blank = row_of(name, moca.init(model_case.prior(), ROOM))
    assert all(map(np.array_equal, decode(name, encoded(name, blank)), blank))
    read = decode(name, encoded(name, row_of(name, steps[9].state)))
    state = layout_of(name).state(read.lines[None], read.head[None])
    for t in range(10, 16):
        state, info = moca.step(model_case.model, state, model_case.prior(), inputs([one], t))
        for each in ("log_score", "changepoint_probability"):
            expected = getattr(steps[t].info, each)
            torch.testing.assert_close(
                getattr(info, each), expected, atol=1e-11, rtol=0, equal_nan=True
            )


@pytest.mark.parametrize("name", NAMES)
def test_damage_of_any_array_is_refused(name):
    for i, (array, dtype, shape) in enumerate(header_of(name)["arrays"]):
        other = {"f64": "i64", "i64": "f64"}[dtype]
        shapes = [*shape, 1], [0, *shape], [0, 2**70], [1] * 9, [] if shape else [1]
        for instead in (
            ["unknown", dtype, shape],
            [array, other, shape],
            *([array, dtype, each] for each in shapes),
        ):
            with pytest.raises(BadState, match=array):
                decode(name, with_array(name, i, instead))


def test_a_symmetric_matrix_is_stored_once():
    name = "alpaca-1"
    (shape,) = [shape for array, _, shape in header_of(name)["arrays"] if array == "lines"]
    (cov,) = layout_of(name).symmetric
    features, _ = cov.shape
    assert layout_of(name).height - shape[0] == features * (features - 1) // 2


@pytest.mark.parametrize(
    ("line", "value"),
    [(RUN_LENGTH, -1), (RUN_LENGTH, 14), (RUN_LENGTH, 0.5), (PREVIOUS, -2), (PREVIOUS, 14),
     (LOG_PROB, 1.0), (RUN_LENGTH, math.nan), (SCORE, math.nan), (-1, math.inf)],
)  # fmt: skip
def test_lines_that_no_hypothesis_can_have_are_refused(line, value):
    own = row_of("gaussian-1")
    own.lines[line, 3] = value
    with pytest.raises(BadState):
        decode("gaussian-1", encoded("gaussian-1", own))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_head_that_no_stream_can_have_is_refused(value):
    own = row_of("averaged-1")
    for place in range(len(own.head)):
        head = own.head.copy()
        head[place] = value
        with pytest.raises(BadState):
            decode("averaged-1", encoded("averaged-1", own._replace(head=head)))


def test_what_is_no_state_is_refused():
    blob = blob_of("gaussian-1")
    for damaged in (
        b"JSON" + blob[4:],
        blob[:4] + struct.pack("<H", codec.VERSION + 1) + blob[6:],  # another version
        sealed(blob[:6] + b"\xff" * 4 + blob[10:-4]),  # the header's length
        sealed(blob[:-4] + bytes(8)),
        sealed(blob[:-12]),
        blob + b"\0",
        sealed(blob[:6] + struct.pack("<I", 100_000) + b"[" * 100_000),
        *map(blob_of, ("poisson", "gaussian-3", "alpaca-1")),  # of other models
    ):
        with pytest.raises(BadState):
            decode("gaussian-1", damaged)
    for at in [*range(64), *range(64, len(blob), 7)]:
        flipped = bytearray(blob)
        flipped[at] ^= 1 << at % 8
        for damaged in (bytes(flipped), blob[:at]):
            with pytest.raises(BadState):
                decode("gaussian-1", damaged)


def test_a_state_has_at_least_one_hypothesis_and_at_most_as_many_as_there_is_room():
    decode("poisson", blob_of("poisson"), 12)
    with pytest.raises(BadState, match="12 hypotheses"):
        decode("poisson", blob_of("poisson"), 11)
    own = row_of("poisson", moca.init(case("poisson").prior(), ROOM))
    own.head[SEQ] = 5
    with pytest.raises(BadState, match="0 hypotheses"):
        decode("poisson", encoded("poisson", own))


def test_ranks_and_seasons_travel_with_a_state():
    name = "gaussian-1"
    own = row_of(name)
    seasons = season.blank(2)
    blob = codec.encode(layout_of(name), own, seasons)
    assert np.array_equal(decode(name, blob).ranks, own.ranks)
    assert np.array_equal(codec.decode_season("gaussian", 2, blob), seasons)
    with pytest.raises(BadState, match="no array 'season'"):
        codec.decode_season("gaussian", 2, blob_of(name))
    for outputs, bad in ((1, seasons), (2, seasons[:, :-1]), (2, seasons[0])):
        with pytest.raises(BadState):
            codec.decode_season("gaussian", outputs, codec.encode(layout_of(name), own, bad))
    with pytest.raises(BadState, match="'anomaly'"):
        decode(name, encoded(name, own._replace(ranks=own.ranks[:-1])))
    own.ranks[0] = 0.5  # half a value
    with pytest.raises(BadState):
        decode(name, encoded(name, own))
