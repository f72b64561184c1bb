"""Reading the log beyond an offset."""

import threading
import time

import pytest

from service.store import keys
from service.store.log import DONE, START, Offset

pytestmark = pytest.mark.redis
P = 3


def test_read_returns_what_is_beyond_each_offset(log, add):
    ids, more = add(3), add(2, partition=0)
    found = log.read({P: Offset(ids[0], DONE), 0: START, 1: START}, count=10, block_ms=0)
    assert {p: [entry.id for entry in entries] for p, entries in found.items()} == {
        P: ids[1:],
        0: more,
    }
    assert found[P][0].payload == b"e1"
    assert len(log.read({P: START}, count=2, block_ms=0)[P]) == 2
    assert log.read({1: START}, count=2, block_ms=0) == {}
    assert log.read({}, count=2, block_ms=0) == {}


def test_an_entry_applied_in_part_is_read_again(redis_client, log):
    for id_ in ("5-0", "5-1", "6-0"):
        redis_client.xadd(keys.log(P), {"b": id_}, id=id_)
    for entry, index, first in [("5-0", 0, "5-0"), ("5-1", 7, "5-1"), ("6-0", 1, "6-0")]:
        found = log.read({P: Offset(entry, index)}, count=1, block_ms=0)[P]
        assert found[0].id == first
        assert found[0].payload == first.encode()
    assert log.read({P: Offset("5-1", DONE)}, 1, 0)[P][0].id == "6-0"


def test_read_waits_for_the_first_entry(log, add):
    def later():
        time.sleep(0.1)
        add()

    thread = threading.Thread(target=later)
    thread.start()
    began = time.monotonic()
    found = log.read({P: START}, count=10, block_ms=5000)
    assert 0.05 < time.monotonic() - began < 2
    assert len(found[P]) == 1
    thread.join()
    began = time.monotonic()
    assert log.read({0: START}, count=10, block_ms=50) == {}
    assert time.monotonic() - began >= 0.04
