"""A fixed number of cases of each target, and bodies as large as they may be."""

import json

import cramjam
import pytest

from tests.referees.fuzz import (
    FLOOR,
    MEMORY,
    SEED,
    SETTINGS,
    TARGETS,
    Failed,
    Target,
    by_chance,
    hold,
    hold_memory,
    memory_of,
)

MIB = 1 << 20


def bodies(name):
    """Large and hostile bodies for a target."""
    deep = b'{"y":' + b"[" * MIB
    wide = b'{"y":[' + b"0," * MIB + b"0]}"
    empty = b"[" + b"{}," * MIB + b"{}]"
    return {
        "ndjson": [b"\n".join([SEED] * 10_000), wide + b"\n" + SEED, b"{}\n" * MIB, deep],
        "json": [b"[" + b",".join([b'{"y":1.5}'] * 10_000) + b"]", wide, empty, deep],
        "remote-write": [b"\x0a\x02\x12\x00" * MIB, b"\x22\x00" * MIB, b"\x00" * MIB],
        "otlp": [b'{"resourceMetrics":' + empty + b"}", b"\x0a\x02\x12\x00" * MIB, deep],
        "msgpack": [b"\xdd\xff\xff\xff\xff", b"\x91" * MIB, b"\xdc\xff\xff" + b"\xc0" * MIB],
        "rows": [b"\x91" * MIB, b"\xdd\xff\xff\xff\xff", b"\x00" * 8 * MIB],
        "snapshot": [b"\x00" * 64 * MIB, b"\x91" * MIB],
        "arrow": [b"\xff\xff\xff\xff" * MIB, b"\x00" * MIB],
        "artifact": [
            json.dumps({"format": 1, "kind": "alpaca", "feature_dim": 10**9}).encode() + b"\n",
            b'{"format":1,"kind":"alpaca","encoder":' + b"[" * MIB + b"\n" + b"\xff" * 64,
        ],
    }[name]


@pytest.mark.parametrize("name", TARGETS)
def test_cases_by_chance(name):
    by_chance(TARGETS[name](), name, cases=300, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_memory_is_bounded(name):
    """Of all that allocates, not of Python alone; a body of 8 MiB is the most there is."""
    target = TARGETS[name]()
    for body in bodies(name):
        assert memory_of(target, body) <= MEMORY * max(len(body), SETTINGS.max_body_bytes)
        hold_memory(target, body[: 8 * FLOOR])


def test_a_bomb_is_not_unpacked():
    """A remote write of 50 KB that says that it is a gigabyte, and one that is."""
    target = TARGETS["remote-write"]()
    bomb = bytes(cramjam.snappy.compress_raw(b"\x0a\x02\x12\x00" * (16 * MIB)))
    assert memory_of(target, bomb) <= MEMORY * SETTINGS.max_body_bytes
    assert memory_of(target, b"\x80\x80\x80\x80\x04" + bomb[5:]) <= MEMORY * SETTINGS.max_body_bytes


def test_what_is_not_refused_is_found():
    def read(body):
        return body.decode() if b"X" not in body else bytearray(64 * MIB)

    target = Target(read, [b"a"], (UnicodeDecodeError,))
    hold(target, b"\xff")
    with pytest.raises(Failed, match="TypeError"):
        hold(target._replace(read=lambda body: body + 1), b"a")
    with pytest.raises(Failed, match="bytes of memory for 1"):
        hold_memory(target, b"X")
