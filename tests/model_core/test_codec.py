"""States as bytes: what is written is read back bitwise, and whatever else is refused."""

from __future__ import annotations

import functools
import json
import math
import struct
from zlib import crc32

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model_core import codec
from model_core import filter as moca
from model_core.errors import CorruptState
from model_core.filter import FilterState, Prior
from tests.model_core.cases import BY_NAME, EVERY, Case, alpaca_case, inputs, run, series

ROOM = 12
quick = settings(max_examples=150, deadline=None, derandomize=True)
cases = pytest.mark.parametrize("case", EVERY, ids=lambda case: case.name)
any_case = st.sampled_from(EVERY)


def state_of(case: Case, steps: int = 20, max_hypotheses: int = ROOM) -> FilterState:
    one = series(case, 4, steps, labelled=[True] * 6 + [False], outlier_rate=0.01)
    return run(case, [one], max_hypotheses)[-1].state


@functools.cache
def blob_of(name: str) -> bytes:
    """A state of a case, made when it is first needed."""
    return codec.encode(BY_NAME[name].model, state_of(BY_NAME[name]))


def decode(
    case: Case, blob: bytes, max_hypotheses: int = ROOM, prior: Prior | None = None
) -> FilterState:
    """prior: the case's, which takes longer to make than a state to decode."""
    prior = case.prior() if prior is None else prior
    return codec.decode(case.model, prior, max_hypotheses, blob)


def sealed(body: bytes) -> bytes:
    """With the checksum that fits."""
    return body + struct.pack("<I", crc32(body))


def with_header(case: Case, header: object) -> bytes:
    """The same bytes of arrays under another header."""
    blob = blob_of(case.name)
    (length,) = struct.unpack_from("<I", blob, 6)
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return sealed(blob[:6] + struct.pack("<I", len(text)) + text + blob[10 + length : -4])


def header_of(case: Case) -> dict:
    blob = blob_of(case.name)
    (length,) = struct.unpack_from("<I", blob, 6)
    return json.loads(blob[10 : 10 + length])


def with_array(case: Case, i: int, entry: list) -> bytes:
    """Array `i` under another name, type and shape, and as many bytes as that needs."""
    header, blob = header_of(case), blob_of(case.name)
    sizes = [8 * math.prod(shape) for _, _, shape in header["arrays"]]
    start = len(blob) - 4 - sum(sizes[i:])
    changed = (blob[start : start + sizes[i]] * 2)[: 8 * math.prod(entry[2])]
    text = json.dumps({**header, "arrays": replaced(header["arrays"], i, entry)}).encode()
    first = blob[:6] + struct.pack("<I", len(text)) + text
    arrays = blob[len(blob) - 4 - sum(sizes) : start] + changed + blob[start + sizes[i] : -4]
    return sealed(first + arrays)


def replaced(table: list, i: int, entry: object) -> list:
    return [*table[:i], entry, *table[i + 1 :]]


@cases
@pytest.mark.parametrize("steps", [1, 3, 40])
@pytest.mark.parametrize("room", [ROOM, 30])
def test_decoding_gives_what_was_encoded(case, steps, room):
    state = state_of(case, steps)
    blob = codec.encode(case.model, state)
    decoded = decode(case, blob, room)
    assert codec.encode(case.model, decoded) == blob
    alive = torch.isfinite(state.belief.log_prob[0])
    count = int(alive.sum())
    whole = {id(each) for each in (state.seq, state.totals, state.context)}
    for before, after in zip(moca.leaves(state), moca.leaves(decoded), strict=True):
        if id(before) not in whole:
            before, after = before[:, alive], after[:, :count]
        assert before.numpy().tobytes() == after.numpy().tobytes()
    assert torch.isinf(decoded.belief.log_prob[0, count:]).all()


@cases
def test_a_decoded_state_goes_on_as_the_resident_one(case):
    one = series(case, 5, 40)
    steps, prior = run(case, [one], ROOM), case.prior()
    state = decode(case, codec.encode(case.model, steps[24].state))
    for t in range(25, 40):
        state, info = moca.step(case.model, state, prior, inputs([one], t))
        expected = steps[t].info
        assert info.log_score.item() == pytest.approx(expected.log_score.item(), abs=1e-11)
        change = expected.changepoint_probability.item()
        assert info.changepoint_probability.item() == pytest.approx(change, abs=1e-11)


@cases
def test_a_state_before_the_first_observation(case):
    prior = case.prior()
    blob = codec.encode(case.model, moca.init(prior, ROOM))
    decoded = decode(case, blob)
    pairs = zip(moca.leaves(decoded), moca.leaves(moca.init(prior, ROOM)), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_symmetric_matrix_is_stored_once():
    case = alpaca_case(1, features=12)
    blob = codec.encode(case.model, state_of(case))
    assert len(blob) < 8 * ROOM * (12 * 13 // 2 + 12 + 12) + 600


@cases
def test_cut_short(case):
    blob, prior = blob_of(case.name), case.prior()
    for length in range(len(blob)):
        with pytest.raises(CorruptState):
            decode(case, blob[:length], prior=prior)
    with pytest.raises(CorruptState):
        decode(case, blob + b"\0")


@cases
def test_a_flipped_bit_anywhere(case):
    blob, prior = bytearray(blob_of(case.name)), case.prior()
    for at in range(len(blob)):
        blob[at] ^= 1 << at % 8
        with pytest.raises(CorruptState):
            decode(case, bytes(blob), prior=prior)
        blob[at] ^= 1 << at % 8
    decode(case, bytes(blob))


REFUSED = {
    "magic": (lambda b: b"JSON" + b[4:], "begins with b'JSON'"),
    "version": (lambda b: b[:4] + struct.pack("<H", 2) + b[6:], "format 2; this version reads 1"),
    "checksum": (lambda b: b[:-1] + bytes([b[-1] ^ 1]), "checksum"),
    "short": (lambda b: b[:9], "9 bytes is truncated"),
    "header length": (lambda b: sealed(b[:6] + b"\xff" * 4 + b[10:-4]), "header cannot be read"),
    "trailing bytes": (lambda b: sealed(b[:-4] + bytes(8)), "8 unexpected bytes after its arrays"),
    "array cut": (lambda b: sealed(b[:-12]), "is missing"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_the_refusal_says_what_is_wrong(what):
    spoil, words = REFUSED[what]
    case = BY_NAME["gaussian-1"]
    with pytest.raises(CorruptState, match=words):
        decode(case, spoil(blob_of(case.name)))


@pytest.mark.parametrize(
    ("written", "read", "words"),
    [
        ("gaussian-1", "poisson", "kind 'gaussian', not 'poisson'"),
        ("bernoulli", "alpaca-1", "kind 'bernoulli', not 'alpaca'"),
        ("gaussian-1", "gaussian-3", r"expected torch.float64 \[10, 7\]|expected .* \[12, 7\]"),
        ("gaussian-3", "gaussian-1", "expected .*, 3]"),
        ("alpaca-1", "alpaca-2", r"'totals_at_start' is .*, 3\], expected .*, 5\]"),
    ],
)
def test_a_state_of_another_model(written, read, words):
    with pytest.raises(CorruptState, match=words):
        decode(BY_NAME[read], blob_of(written))


def test_a_state_of_other_features():
    with pytest.raises(CorruptState, match="'stats.mean' is"):
        decode(alpaca_case(1, features=6), blob_of("alpaca-1"))


def test_more_hypotheses_than_there_is_room_for():
    with pytest.raises(CorruptState, match="12 hypotheses, expected 1 to 11"):
        decode(BY_NAME["poisson"], blob_of("poisson"), 11)


def test_a_state_without_hypotheses():
    case = BY_NAME["gaussian-1"]
    state = moca.init(case.prior(), ROOM)
    blob = codec.encode(case.model, state._replace(seq=state.seq + 5))
    with pytest.raises(CorruptState, match="0 hypotheses, expected 1 to 12"):
        decode(case, blob)


@cases
def test_every_array_is_needed_and_checked(case):
    header, prior = header_of(case), case.prior()
    for i, (name, dtype, shape) in enumerate(header["arrays"]):
        other = {"f64": "i64", "i64": "f64"}[dtype]
        shapes = [*shape, 1], [0, *shape], [0, 2**70], [1] * 9, [] if shape else [1]
        for instead in (
            ["unknown", dtype, shape],
            [name, other, shape],
            *([name, dtype, each] for each in shapes),
        ):
            with pytest.raises(CorruptState, match=name):
                decode(case, with_array(case, i, instead), prior=prior)


def well_formed(state: FilterState, case: Case) -> bool:
    blank = moca.init(case.prior(), ROOM)
    pairs = zip(moca.leaves(state), moca.leaves(blank), strict=True)
    return all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)


def refused_or_well_formed(case: Case, blob: bytes) -> None:
    try:
        state = decode(case, blob)
    except CorruptState:
        return
    assert well_formed(state, case)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@quick
@given(any_case, st.binary(max_size=200))
def test_any_bytes(case, blob):
    for each in (blob, sealed(b"MOCA" + struct.pack("<H", 1) + blob)):
        refused_or_well_formed(case, each)


@quick
@given(any_case, st.data())
def test_any_damage_under_a_checksum_that_fits(case, data):
    body = bytearray(blob_of(case.name)[:-4])
    for at in data.draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=4)):
        body[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(body)), st.integers(0, len(body))))
    refused_or_well_formed(case, sealed(bytes(body[:cut])))


@quick
@given(any_case, anything | st.binary(max_size=50))
def test_any_header(case, header):
    refused_or_well_formed(case, with_header(case, header))


@quick
@given(any_case, st.data())
def test_any_table_of_arrays(case, data):
    """Entries replaced, dropped, repeated or reordered."""
    header = header_of(case)
    table = data.draw(st.permutations(header["arrays"])) if data.draw(st.booleans()) else None
    table = [list(each) for each in table or header["arrays"]]
    at = data.draw(st.integers(0, len(table) - 1))
    size = st.integers(-1, 40) | st.integers(2**31, 2**70) | anything
    dtype = st.sampled_from(["f64", "i64", "f32"]) | anything
    name = st.sampled_from([each[0] for each in table]) | anything
    entry = st.tuples(name, dtype, st.lists(size, max_size=4) | anything)
    table[at] = data.draw(entry | anything | st.just(table[(at + 1) % len(table)]))
    kind = data.draw(st.just(header["kind"]) | anything)
    refused_or_well_formed(case, with_header(case, {"kind": kind, "arrays": table}))


def test_a_header_too_deep_to_read():
    case = BY_NAME["poisson"]
    with pytest.raises(CorruptState, match="header cannot be read"):
        decode(case, with_header(case, b"[" * 100_000))
