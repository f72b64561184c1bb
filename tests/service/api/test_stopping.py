"""Start and stop of the application: each has a bound, whatever the store does meanwhile."""

import asyncio
import contextlib
import os
import signal
import time

import pytest

from service.api.app import check_store, create_app
from service.api.gateway.replies import Replies
from service.api.sse import event_hub
from service.store.api_reads import AsyncStore
from service.store.cluster import subscription
from service.store.connection import connect_async
from service.store.event_log import Feeds
from service.tasks import end
from tests.service.api.conftest import PARTITIONS

STOP_S = 8.0  # a stop of the application alone, with all that waits for a store that hangs
TURNS = 30  # of the event loop: more than a command to the store takes to be sent


@contextlib.contextmanager
def hanging(store):
    """Stop the store's process for a while: connections stay, and nothing answers."""
    os.kill(store._process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(store._process.pid, signal.SIGCONT)


@pytest.fixture
async def clients(settings):
    found = [connect_async(settings.redis_url) for _ in range(2)]
    yield found
    for client in found:
        await client.aclose()


async def turns(count):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_listening_ends_in_whatever_turn_it_is_cancelled(clients, monkeypatch):
    """The library drops a cancellation in the turn in which a command was sent."""
    monkeypatch.setattr(subscription, "IDLE_S", 0.05)
    for turn in range(TURNS):
        found = Replies(clients[0], AsyncStore(clients[1], PARTITIONS), f"i{turn}", 4)
        task = asyncio.create_task(found.listen())
        await turns(turn)
        task.cancel()
        async with asyncio.timeout(STOP_S):
            await asyncio.wait([task])  # by what it was, one cancellation


async def test_following_the_events_ends_in_whatever_turn_it_is_cancelled(
    clients, settings, monkeypatch
):
    monkeypatch.setattr(event_hub, "BLOCK_MS", 50)
    for turn in range(TURNS):
        found = event_hub.EventHub(Feeds(*clients, PARTITIONS), settings)
        found.start()
        await turns(turn)
        found._task.cancel()
        async with asyncio.timeout(STOP_S):
            await asyncio.wait([found._task])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("turn", range(12))
async def test_a_gateway_closes_after_its_loop_was_busy(settings, worker, start, turn, monkeypatch):
    """What is due goes out in the turns after a long computation, which may be those of a stop."""
    monkeypatch.setattr(subscription, "IDLE_S", 0.1)
    async with start(settings) as client:
        await asyncio.sleep(0.05)
        time.sleep(0.2)  # noqa: ASYNC251 (such as to make /openapi.json)
        await turns(turn)
        gateway = client.app.state.context.gateway
        async with asyncio.timeout(STOP_S):
            await gateway.close()
    assert all(task.done() for task in gateway._tasks)
    assert gateway.failure is None


async def test_an_application_stops_while_the_store_hangs(settings, lonely_store, start):
    chosen = settings.model_copy(update={"redis_url": lonely_store.url})
    with lonely_store.worker():
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(start(chosen))
            assert (await client.post("/v1/streams/s/observations", json={"y": 1})).is_success
            with hanging(lonely_store):
                calls = [
                    asyncio.create_task(client.post(f"/v1/streams/{i}/observations", json={"y": 1}))
                    for i in range(20)
                ]
                await asyncio.sleep(0.5)
                began = time.monotonic()
                await stack.aclose()
                assert time.monotonic() - began < STOP_S
                await end(*calls)


async def test_an_application_stops_while_the_store_is_away(settings, lonely_store, start):
    chosen = settings.model_copy(update={"redis_url": lonely_store.url})
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(start(chosen))
        lonely_store.stop()
        await asyncio.sleep(0.3)
        began = time.monotonic()
        await stack.aclose()
        assert time.monotonic() - began < STOP_S


async def test_a_start_that_waits_for_a_store_that_hangs_can_be_ended(
    settings, lonely_store, until
):
    app = create_app(settings.model_copy(update={"redis_url": lonely_store.url}))

    async def run():
        async with app.router.lifespan_context(app):
            raise AssertionError("it has no store")

    with hanging(lonely_store):
        task = asyncio.create_task(run())
        await until(lambda: app.state.starting is not None)
        await asyncio.sleep(0.2)
        app.state.starting.cancel()
        done, _ = await asyncio.wait([task], timeout=STOP_S)
        assert done
        assert task.cancelled()
        assert app.state.starting is None


def test_a_start_says_that_the_store_hangs_and_gives_up(
    settings, lonely_store, caplog, monkeypatch
):
    monkeypatch.setattr("service.api.app.START_WAIT_S", 1.0)
    monkeypatch.setattr("service.api.app.START_TIMEOUT_S", 0.4)
    chosen = settings.model_copy(update={"redis_url": lonely_store.url})
    with hanging(lonely_store):
        began = time.monotonic()
        with pytest.raises(Exception, match="Timeout reading"):
            check_store(chosen)
        assert time.monotonic() - began < 10  # 60 s were the default
    assert "waiting for the store: Timeout reading" in caplog.text


async def test_an_application_starts_without_a_subscription_and_says_so(
    settings, worker, start, monkeypatch, caplog
):
    async def deaf(self):
        await asyncio.Event().wait()

    monkeypatch.setattr(Replies, "listen", deaf)
    monkeypatch.setattr("service.api.app.START_WAIT_S", 0.2)
    async with start(settings) as client:
        assert (await client.get("/livez")).status_code == 200
    assert "no subscription within 0.2 s" in caplog.text


async def test_appends_under_way_do_not_hold_the_stop_of_a_lane(settings, worker, start):
    async with start(settings) as client:
        hanging = asyncio.Event()

        async def never(*_):
            await hanging.wait()

        client.app.state.context.gateway._queues[0]._access.appender.append = never
        posts = [
            asyncio.create_task(client.post(f"/v1/streams/{i}/observations", json={"y": 1}))
            for i in range(8)
        ]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(STOP_S):
            await client.app.state.context.gateway.close()
        assert {(await post).status_code for post in posts} == {503}
