"""What a later version wrote is left to it: it is kept, not set aside, and not tried for ever."""

import contextlib

import msgspec
import pytest

from service import wire
from service.store import keys
from service.store.connection import UnusableServer, check_formats
from service.wire import Observation, Observe, versions

LATER = {"type": "forecast_all", "stream": "a", "steps": 3}


def entry_of_format(number):
    command = Observe("a", [Observation(y=3.0)])
    return wire.encode(wire.LogEntry("api9", [wire.Envelope(0, 1, 0, "gaussian", command)], number))


def entry_with_an_unknown_command():
    return wire.encode(["api9", [[0, 1, 0, "gaussian", LATER]]])


@contextlib.contextmanager
def later_version():
    """Have workers be of a later version."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "ENTRY", 2)
        patch.setattr(versions, "STORE", versions.STORE + 1)
        yield


def put(bench, payload):
    p = bench.partition("a")
    bench.client.xadd(keys.log(p), {"b": payload})
    bench.client.hincrby(keys.meta(p), "in", 1)
    return p


@pytest.mark.parametrize("payload", [entry_of_format(2), entry_with_an_unknown_command()])
def test_an_entry_of_a_later_version_waits_for_it(make_bench, caplog, payload):
    bench = make_bench(partitions=2)
    other = next(name for name in "bcdefgh" if bench.partition(name) != bench.partition("a"))
    before = bench.append(Observe("a", [Observation(y=1.0)]))
    p = put(bench, payload)
    after = bench.append(Observe("a", [Observation(y=2.0)]))
    assert [outcome.status for outcome in bench.outcomes(before)] == [200]
    for _ in range(10):
        bench.turn()
    assert bench.worker.leases.held().keys() == {1 - p}
    assert not bench.client.exists(keys.lease(p))
    assert bench.client.xlen(keys.log(p)) == 2
    assert not bench.quarantine("a")
    assert bench.outcome(*after[0]) is None
    assert bench.client.hget(keys.meta(p), "attempts") == b"0"
    assert bench.observe(other, [1.0])[0]["seq"] == 0
    (said,) = (line for line in caplog.messages if "later version" in line)
    assert f"partition {p} " in said


def test_a_later_version_goes_on_where_this_one_stopped(make_bench):
    bench = make_bench(partitions=1)
    bench.observe("a", [1.0])
    put(bench, entry_of_format(2))
    after = bench.append(Observe("a", [Observation(y=2.0)]))
    bench.turn()
    bench.crash()
    with later_version():
        assert [outcome.status for outcome in bench.outcomes(after)] == [200]
    assert [record.y for record in bench.records("a")] == [1.0, 3.0, 2.0]
    assert not bench.quarantine("a")


def test_a_partition_of_a_later_version_is_not_taken(make_bench):
    bench = make_bench(partitions=2)
    bench.observe("a", [1.0])
    bench.crash()
    with later_version():
        bench.observe("a", [2.0])
        bench.stop()
    with pytest.raises(UnusableServer, match=f"format {versions.STORE + 1}"):
        check_formats(bench.client, 2)
    numbers = bench.append(Observe("a", [Observation(y=3.0)]))
    for _ in range(5):
        bench.turn()
    assert bench.worker.leases.held() == {}
    # It is not counted: the others have to make room for all partitions.
    assert bench.client.zcard(keys.WORKERS) == 0
    bench.crash()
    with later_version():
        assert [outcome.status for outcome in bench.outcomes(numbers)] == [200]
    assert bench.head("a").seq == 3


@pytest.mark.parametrize(
    "payload",
    [b"\x92", wire.encode(["api9", [[0, 1, 0, "gaussian", {"type": "observe"}]]]), b"\xc1",
     wire.encode(["api9", 7, 1]), wire.encode(["api9", [[0, 1, 0, "gaussian", [1]]]])],
)  # fmt: skip
def test_what_is_damaged_is_not_of_a_later_version(make_bench, payload):
    bench = make_bench(partitions=1)
    put(bench, payload)
    numbers = bench.append(Observe("a", [Observation(y=1.0)]))
    assert [outcome.status for outcome in bench.outcomes(numbers)] == [200]
    assert list(bench.quarantine("a").values()) == [payload]


def test_every_command_has_a_tag_that_is_known():
    told = msgspec.inspect.type_info(wire.Command)
    assert {each.tag for each in told.types} == wire.TAGS
    assert {"observe", "verdict", "import"} <= wire.TAGS
