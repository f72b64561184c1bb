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

from model_core import anomaly, codec
from model_core import filter as moca
from model_core.errors import BadState
from model_core.filter import FilterState, Prior
from model_core.stream import season
from tests.model_core.cases import inputs, run, series
from tests.model_core.registry import NAMES, case

ROOM = 12


@functools.cache
def state_of(name: str, steps: int = 14, room: int = ROOM) -> FilterState:
    one = series(case(name), 4, steps, labelled=[True] * 6 + [False], outlier_rate=0.01)
    return run(case(name), [one], room)[-1].state


@functools.cache
def blob_of(name: str) -> bytes:
    return codec.encode(case(name).model, state_of(name))


@functools.cache
def prior_of(name: str) -> Prior:
    return case(name).prior()


def decode(name: str, blob: bytes, room: int = ROOM) -> FilterState:
    return codec.decode(case(name).model, prior_of(name), room, blob)


def sealed(body: bytes) -> bytes:
    """With the checksum that fits."""
    return body + struct.pack("<I", crc32(body))


def header_of(name: str) -> dict:
    blob = blob_of(name)
    (length,) = struct.unpack_from("<I", blob, 6)
    return json.loads(blob[10 : 10 + length])


def with_array(name: str, i: int, entry: list) -> bytes:
    """Array `i` under another name, type and shape, and as many bytes as that needs."""
    header, blob = header_of(name), blob_of(name)
    sizes = [8 * math.prod(shape) for _, _, shape in header["arrays"]]
    start = len(blob) - 4 - sum(sizes[i:])
    changed = (blob[start : start + sizes[i]] * 2)[: 8 * math.prod(entry[2])]
    header["arrays"][i] = entry
    text = json.dumps(header).encode()
    first = blob[:6] + struct.pack("<I", len(text)) + text
    arrays = blob[len(blob) - 4 - sum(sizes) : start] + changed + blob[start + sizes[i] : -4]
    return sealed(first + arrays)


def check_read_back(name: str, state: FilterState, room: int) -> None:
    blob = codec.encode(case(name).model, state)
    decoded = decode(name, blob, room)
    assert codec.encode(case(name).model, decoded) == blob
    alive = torch.isfinite(state.belief.log_prob[0])
    count = int(alive.sum())
    whole = {id(each) for each in (state.seq, state.totals, state.context)}
    for before, after in zip(moca.leaves(state), moca.leaves(decoded), strict=True):
        if id(before) not in whole:
            before, after = before[:, alive], after[:, :count]
        assert before.numpy().tobytes() == after.numpy().tobytes()
    assert torch.isinf(decoded.belief.log_prob[0, count:]).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_state_is_read_back_bitwise_and_goes_on(name):
    model_case = case(name)
    check_read_back(name, state_of(name, 1), ROOM)
    check_read_back(name, state_of(name, 3), 30)
    check_read_back(name, state_of(name), ROOM)
    blank = moca.init(model_case.prior(), ROOM)
    decoded = decode(name, codec.encode(model_case.model, blank))
    assert all(map(torch.equal, moca.leaves(decoded), moca.leaves(blank)))
    one = series(model_case, 5, 16)
    steps = run(model_case, [one], ROOM)
    state = decode(name, codec.encode(model_case.model, steps[9].state))
    for t in range(10, 16):
        state, info = moca.step(model_case.model, state, prior_of(name), inputs([one], t))
        for each in ("log_score", "changepoint_probability"):
            expected = getattr(steps[t].info, each)
            torch.testing.assert_close(getattr(info, each), expected, atol=1e-11, rtol=0)


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
    features = state_of(name).stats.cov.shape[-1]
    (shape,) = [shape for array, _, shape in header_of(name)["arrays"] if array == "stats.cov"]
    assert shape[1:] == [features * (features + 1) // 2]


def test_what_is_no_state_is_refused():
    blob = blob_of("gaussian-1")
    for damaged in (
        b"JSON" + blob[4:],
        blob[:4] + struct.pack("<H", 2) + blob[6:],  # another version
        sealed(blob[:6] + b"\xff" * 4 + blob[10:-4]),  # the header's length
        sealed(blob[:-4] + bytes(8)),
        sealed(blob[:-12]),
        blob + b"\0",
        sealed(blob[:6] + struct.pack("<I", 100_000) + b"[" * 100_000),
        *map(blob_of, ("poisson", "gaussian-3", "alpaca-1")),  # of other models
    ):
        with pytest.raises(BadState):
            decode("gaussian-1", damaged)
    for at in range(len(blob)):
        flipped = bytearray(blob)
        flipped[at] ^= 1 << at % 8
        for damaged in (bytes(flipped), blob[:at]):
            with pytest.raises(BadState):
                decode("gaussian-1", damaged)


def test_a_state_has_at_least_one_hypothesis_and_at_most_as_many_as_there_is_room():
    decode("poisson", blob_of("poisson"), 12)
    with pytest.raises(BadState, match="12 hypotheses"):
        decode("poisson", blob_of("poisson"), 11)
    state = moca.init(prior_of("poisson"), ROOM)
    blob = codec.encode(case("poisson").model, state._replace(seq=state.seq + 5))
    with pytest.raises(BadState, match="0 hypotheses"):
        decode("poisson", blob)


def test_ranks_and_seasons_travel_with_a_state():
    model = case("gaussian-1").model
    ranks = anomaly.start([0.5], [2.0])
    seasons = season.blank(12)
    blob = codec.encode(model, state_of("gaussian-1"), ranks, seasons)
    assert np.array_equal(codec.decode_ranks(model, blob, len(ranks)), ranks)
    assert np.array_equal(codec.decode_season(model, blob), seasons)
    assert codec.encode(model, decode("gaussian-1", blob)) == blob_of("gaussian-1")
    with pytest.raises(BadState, match="no array 'anomaly'"):
        codec.decode_ranks(model, blob_of("gaussian-1"), len(ranks))
    with pytest.raises(BadState):
        codec.decode_season(model, blob_of("gaussian-1"))
    with pytest.raises(BadState):
        codec.decode_ranks(model, blob, len(ranks) + 1)
    ranks[0] = 0.5  # half a value
    spoilt = codec.encode(model, state_of("gaussian-1"), ranks, seasons[:-1])
    with pytest.raises(BadState):
        codec.decode_ranks(model, spoilt, len(ranks))
    with pytest.raises(BadState):
        codec.decode_season(model, spoilt)
