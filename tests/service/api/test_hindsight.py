"""Changepoints: the segmentation in hindsight, asked of a worker and waited for, for a while."""

import asyncio
import time

import pytest

from service import wire
from service.api.gateway import hindsight
from service.store import keys
from service.store.connection import connect
from service.store.keys import partition_of
from tests.service.api.test_streams import put_history

P = partition_of("s", 4)
PATH = "/v1/streams/s/changepoints"


@pytest.fixture
def store(settings):
    with connect(settings.redis_url) as client:
        yield client


def put(store, seq=500, starts=(0, 250), name="s", **settings):
    """A stream whose online path has these starts."""
    previous = [-1] * seq
    for before, start in zip(starts, starts[1:], strict=False):
        previous[start] = before
    head = wire.Head(
        1, wire.StreamSettings(**settings), seq=seq, warm=True, sealed=seq, best_start=starts[-1]
    )
    put_history(store, name, head, previous)


def found_in_hindsight(seq, *starts, generation=1):
    return wire.Hindsight(generation, starts[0], seq, list(starts), 1_700_000_000_000)


def asked(worker):
    return sum(isinstance(each, wire.SegmentHistory) for each in worker.commands)


async def changepoints(api):
    response = await api.get(PATH)
    assert response.status_code == 200, response.text
    answer = response.json()
    segments = answer["segmentation"]
    assert all(a["end"] == b["start"] for a, b in zip(segments, segments[1:], strict=False))
    assert not segments or segments[-1]["end"] == answer["seq"]
    return [each["start"] for each in segments], answer["hindsight"]


async def test_is_computed_once_and_then_kept(api, worker, store):
    put(store)
    worker.hindsight["s"] = found_in_hindsight(500, 0, 100, 260)
    starts, said = await changepoints(api)
    assert starts == [0, 100, 260]
    assert said == {
        "status": "current", "first": 0, "seq": 500, "computed": "2023-11-14T22:13:20.000+00:00",
    }  # fmt: skip
    assert await changepoints(api) == (starts, said)
    assert asked(worker) == 1


async def test_is_computed_anew_beyond_a_tenth(api, worker, store):
    worker.hindsight["s"] = found_in_hindsight(500, 0, 100)
    put(store)
    await changepoints(api)
    put(store, seq=550)
    worker.hindsight["s"] = found_in_hindsight(551, 0, 101)
    starts, said = await changepoints(api)
    assert (starts, said["status"], said["seq"], asked(worker)) == ([0, 100], "current", 500, 1)
    put(store, seq=551)
    starts, said = await changepoints(api)
    assert (starts, said["status"], said["seq"], asked(worker)) == ([0, 101], "current", 551, 2)


async def test_several_at_once_are_one_request(api, worker, store):
    put(store)
    worker.hindsight["s"] = found_in_hindsight(500, 0, 100)
    found = await asyncio.gather(*(changepoints(api) for _ in range(8)))
    assert [starts for starts, _ in found] == [[0, 100]] * 8
    assert asked(worker) == 1


async def test_without_a_worker_the_online_path_is_answered(api, worker, store, until, monkeypatch):
    monkeypatch.setattr(hindsight, "WAIT_S", 1.0)
    put(store)
    worker.hindsight["s"] = found_in_hindsight(500, 0, 100)
    worker.running.clear()
    await asyncio.sleep(0.1)  # its read under way ends
    pending = ([0, 250], {"status": "pending", "first": None, "seq": None, "computed": None})
    assert await changepoints(api) == pending
    began = time.monotonic()
    for _ in range(5):
        assert await changepoints(api) == pending
    assert time.monotonic() - began < 5 * 1.0  # only the first of them waits
    worker.running.set()
    await until(lambda: store.hexists(keys.hindsight(P), "s"))
    assert (await changepoints(api))[0] == [0, 100]
    assert asked(worker) == 1


async def test_few_are_in_the_logs_at_a_time(api, worker, store, until, monkeypatch):
    """A client that reads all streams holds up the observations of a partition by two at most."""
    monkeypatch.setattr(hindsight, "WAIT_S", 0.2)
    monkeypatch.setattr(hindsight, "MOST", 5)
    names = [f"s{i}" for i in range(7)]
    for name in names:
        put(store, name=name)
        worker.hindsight[name] = found_in_hindsight(500, 0, 100)
    worker.running.clear()
    await asyncio.sleep(0.1)
    paths = [f"/v1/streams/{name}/changepoints" for name in names]
    found = await asyncio.gather(*(api.get(path) for path in paths))
    assert [each.json()["hindsight"]["status"] for each in found] == ["pending"] * 7
    assert len(api.app.state.context.replies.pending) == hindsight.IN_LOGS
    worker.running.set()
    await until(lambda: asked(worker) == 5)
    found = await asyncio.gather(*(api.get(path) for path in paths))
    assert [each.json()["hindsight"]["status"] for each in found] == ["current"] * 7
    assert asked(worker) == 7


async def test_stops_while_some_wait(start, settings, worker, store):
    worker.running.clear()
    for i in range(4):
        put(store, name=f"s{i}")
    async with start(settings) as api:
        waiting = [asyncio.create_task(api.get(f"/v1/streams/s{i}/changepoints")) for i in range(4)]
        await asyncio.sleep(0.2)
        began = time.monotonic()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert time.monotonic() - began < 3


async def test_not_waited_for_on_request(api, worker, store, until):
    put(store)
    worker.hindsight["s"] = found_in_hindsight(500, 0, 100)
    worker.running.clear()
    await asyncio.sleep(0.1)
    began = time.monotonic()
    response = await api.get(PATH, params={"wait": "false"})
    assert time.monotonic() - began < 0.5
    assert response.json()["hindsight"]["status"] == "pending"
    worker.running.set()
    await until(lambda: store.hexists(keys.hindsight(P), "s"))
    response = await api.get(PATH, params={"wait": "false"})
    assert response.json()["hindsight"]["status"] == "current"
    assert (await api.get(PATH, params={"wait": "perhaps"})).status_code == 422


async def test_an_older_one_is_answered_meanwhile(api, worker, store, monkeypatch):
    put(store)
    worker.hindsight["s"] = found_in_hindsight(500, 0, 100)
    assert (await changepoints(api))[1]["status"] == "current"
    monkeypatch.setattr(hindsight, "WAIT_S", 0.0)
    worker.running.clear()
    await asyncio.sleep(0.1)
    put(store, seq=700, starts=(0, 250, 600))
    starts, said = await changepoints(api)
    assert (starts, said["status"], said["seq"]) == ([0, 100, 600], "pending", 500)


async def test_a_refusal_fails_no_read(api, worker, store):
    put(store)  # the worker knows of no such stream
    starts, said = await changepoints(api)
    assert (starts, said["status"]) == ([0, 250], "unavailable")
    api.app.state.context.monitor.memory_short = True  # nothing more is stored
    before = len(worker.commands)
    assert (await changepoints(api))[1]["status"] == "unavailable"
    assert len(worker.commands) == before


@pytest.mark.parametrize("blob", [b"", b"nonsense"])
async def test_a_damaged_one_is_asked_for_again(api, worker, store, blob):
    put(store)
    worker.hindsight["s"] = found_in_hindsight(500, 0, 100)
    store.hset(keys.hindsight(P), "s", blob)
    assert (await changepoints(api))[0] == [0, 100]
    assert asked(worker) == 1


@pytest.mark.parametrize(
    "other", [found_in_hindsight(400, 0, 100, generation=2), found_in_hindsight(501, 0, 100)]
)
async def test_one_of_another_life_is_not_answered(api, worker, store, other):
    put(store)
    worker.hindsight["s"] = other
    assert await changepoints(api) == (
        [0, 250], {"status": "unavailable", "first": None, "seq": None, "computed": None}
    )  # fmt: skip


@pytest.mark.parametrize("settings_of", [{"history": 0}, None])
async def test_nothing_is_asked_where_there_is_nothing_to_segment(api, worker, store, settings_of):
    if settings_of is None:
        await api.post("/v1/streams/s/observations", json={"y": 1})  # warming up
    else:
        put(store, **settings_of)
    starts, said = await changepoints(api)
    assert (starts, said["status"], asked(worker)) == ([], "none", 0)
