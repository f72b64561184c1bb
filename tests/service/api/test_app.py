"""The application: models, probes, metrics, and its start and stop, whatever the store does."""

import asyncio
import contextlib
import json
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from service.api import context as wiring
from service.api import sse
from service.api.app import create_app
from service.api.context import check_store
from service.api.gateway.gateway import Replies
from service.api.gateway.load_shedding import Overload
from service.observability import metrics
from service.problems import StartupError
from service.store import connection, subscription
from service.store.connection import connect_async
from service.store.feed import Feeds
from service.store.reads import AsyncStore
from service.wire import Id
from tests.service.api.conftest import PARTITIONS
from tests.service.models.test_catalogue import put
from tests.waiting import PATIENCE_S, until_async

TURNS = 30  # of the event loop: more than a command to the store takes to be sent


async def test_models(api, settings):
    folder = settings.models_dir
    for version in ("1", "9", "10"):
        put(folder, "sine", version, training={"iterations": int(version)})
    numbers = {"version": 1, "metrics": [{"name": "test NLL", "estimate": {"mean": -0.5}}]}
    (folder / "sine" / "9" / "report.json").write_text(json.dumps(numbers))
    put(folder, "odd", "1", format=7)
    wrong = {
        "hazard": "low",
        "regimes": [{"name": 1}],
        "training": {"iterations": "many"},
        "encoder": {"own": [1]},
    }
    put(folder, "wrong", "1", **wrong)
    models = {model["name"]: model for model in (await api.get("/v1/models")).json()["models"]}
    assert {"gaussian", "regimes", "odd", "sine", "wrong"} <= set(models)
    assert models["sine"]["default"] == "sine@10"
    assert models["sine"]["versions"] == ["1", "9", "10"]
    assert (models["odd"]["default"], "format 7" in models["odd"]["error"]) == (None, True)
    sine = (await api.get("/v1/models/sine")).json()
    assert [version["training"]["iterations"] for version in sine["versions"]] == [1, 9, 10]
    assert [version["report"] for version in sine["versions"]] == [None, numbers, None]
    assert models["wrong"]["hazard"] is None  # a client reads the rest
    (version,) = (await api.get("/v1/models/wrong")).json()["versions"]
    assert [version[name] for name in wrong] == [None, None, None, {"own": [1]}]
    assert models["gaussian"]["versions"] == []
    gaussian = (await api.get("/v1/models/gaussian")).json()
    assert (gaussian["built_in"], gaussian["default"]) == (True, "gaussian")
    assert [version["version"] for version in gaussian["versions"]] == [None]
    assert (await api.get("/v1/models/%2e%2e")).status_code == 404


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/stream/pump-7", "/v1/streams/pump-7"),
        ("/v1/streams/pump-7/observation", "/v1/streams/pump-7/observations"),
        ("/streams/pump-7/history", "/v1/streams/pump-7/history"),
        ("/v1/incident", "/v1/incidents"),
        ("/v1/streams/pump-7/nothing", None),
        ("/v1/streams//observations", None),
        ("/nothing", None),
    ],
)
async def test_an_unknown_path_names_one_that_is_like_it(api, path, meant):
    answer = await api.get(path)
    assert answer.status_code == 404
    hint = "" if meant is None else f"; did you mean {meant!r}?"
    assert answer.json()["detail"] == f"no resource at {path}{hint}"


async def test_readiness_names_what_is_missing(settings, start, request):
    async with start(settings) as api:
        assert (await api.get("/livez")).json() == {"status": "alive"}
        response = await api.get("/readyz")
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert response.json()["reasons"] == ["4 of 4 partitions have no worker: 0, 1, 2, 3"]
        assert (await api.get("/readyz?partitions=any")).status_code == 503
        worker = request.getfixturevalue("worker")
        assert (await api.get("/readyz")).json() == {"status": "ready"}
        for count, of_any in ((1, 200), (3, 200), (4, 503)):
            for lease in list(worker._leases.values())[:count]:
                worker._log.release(lease)
            assert (await api.get("/readyz")).status_code == 503
            assert (await api.get("/readyz?partitions=any")).status_code == of_any


async def test_metrics_name_routes_and_no_streams(api):
    await api.post("/v1/streams/some-stream/observations", json={"y": 1})
    await api.get("/nowhere/else")
    await api.request("BREW", "/v1/streams")
    response = await api.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    for wanted in (
        'route="/v1/streams/{stream}/observations"',
        'method="other",route="/v1/streams"',
        'route="unmatched",status="404"',
        'moca_stage_duration_seconds_count{stage="ingest"}',
        'moca_partition_lag_observations{partition="3"} 0.0',
        "moca_redis_up 1.0",
    ):
        assert wanted in response.text
    assert "some-stream" not in response.text


# --- start --------------------------------------------------------------------------------------


async def test_a_store_with_another_number_of_partitions_is_refused(settings, start):
    async with start(settings):
        pass
    with pytest.raises(StartupError, match="4 partitions"):
        await start(settings, partitions=5).__aenter__()


async def test_a_default_model_that_is_not_there_is_said_at_the_start(settings, start, caplog):
    for model, said in (("nope", True), ("poisson@99", True), ("poisson", False)):
        caplog.clear()
        async with start(settings, default_model=model):
            assert ("is not usable" in caplog.text) == said, model


def test_a_start_says_that_the_store_hangs_and_gives_up(
    settings, lonely_store, caplog, monkeypatch
):
    monkeypatch.setattr(wiring, "START_TIMEOUT_S", 0.1)
    times_s = iter([0.0, wiring.START_WAIT_S, wiring.START_WAIT_S + 0.1])
    monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=times_s.__next__))
    chosen = settings.model_copy(update={"redis_url": lonely_store.url})
    with lonely_store.hanging(), pytest.raises(Exception, match="Timeout reading"):
        check_store(chosen)
    assert "waiting for the store: Timeout reading" in caplog.text


async def test_a_start_that_waits_for_a_store_that_hangs_can_be_ended(settings, lonely_store):
    app = create_app(settings.model_copy(update={"redis_url": lonely_store.url}))

    async def run():
        async with app.router.lifespan_context(app):
            raise AssertionError("it has no store")

    with lonely_store.hanging():
        task = asyncio.create_task(run())
        await until_async(lambda: app.state.starting is not None)
        await asyncio.sleep(0.05)
        app.state.starting.cancel()
        await asyncio.wait([task], timeout=PATIENCE_S)
        assert task.cancelled()
        assert app.state.starting is None


async def test_an_application_starts_without_a_subscription_and_says_so(
    settings, worker, start, monkeypatch, caplog
):
    async def deaf(self):
        await asyncio.Event().wait()

    monkeypatch.setattr(Replies, "listen", deaf)
    monkeypatch.setattr(wiring, "START_WAIT_S", 0.2)
    async with start(settings) as client:
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/readyz")).status_code == 503
    assert "no subscription within 0.2 s" in caplog.text


# --- stop ---------------------------------------------------------------------------------------


async def turns(count):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_listens_ends_in_whatever_turn_it_is_cancelled(settings, monkeypatch):
    """The library drops a cancellation in the turn in which a command was sent."""
    monkeypatch.setattr(subscription, "IDLE_S", 0.02)
    monkeypatch.setattr(sse, "POLL_S", 0.02)
    clients = [connect_async(settings.redis_url) for _ in range(2)]
    for turn in range(TURNS):
        store = AsyncStore(clients[1], PARTITIONS)
        overload = Overload(settings)
        replies = Replies(clients[0], store, f"i{turn}", 4, overload, metrics.Gathered())
        hub = sse.EventHub(Feeds(clients[1], PARTITIONS), settings)
        hub.enter()
        tasks = [asyncio.create_task(replies.listen()), asyncio.create_task(hub.watch())]
        await turns(turn)
        for task in tasks:  # by what it was, one cancellation
            task.cancel()
        _, going_on = await asyncio.wait(tasks, timeout=PATIENCE_S)
        assert not going_on, turn
        hub.leave()
    for client in clients:
        await client.aclose()


async def test_feeds_are_read_only_while_somebody_listens(settings, monkeypatch):
    monkeypatch.setattr(sse, "POLL_S", 0.01)
    feeds = AsyncMock()
    feeds.grown.return_value = {}
    hub = sse.EventHub(feeds, settings)
    watch = asyncio.create_task(hub.watch())
    for number in (1, 2):
        before = len(feeds.mock_calls)
        await asyncio.sleep(0.05)
        assert len(feeds.mock_calls) == before
        feeds.newest.return_value = {0: Id(5, number)}
        await hub.ready()
        assert hub.positions == {0: Id(5, number)}
        hub.enter()
        await asyncio.sleep(0.05)
        assert feeds.grown.await_count >= number
        hub.leave()
        await asyncio.sleep(0.02)  # a look may be under way
    watch.cancel()


async def test_an_application_stops_while_the_store_hangs_or_is_away(
    settings, lonely_store, start, monkeypatch
):
    monkeypatch.setattr(wiring, "CLOSE_WAIT_S", 0.2)
    for fate in (lonely_store.hanging, lambda: contextlib.nullcontext(lonely_store.stop())):
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(start(settings, redis_url=lonely_store.url))
            with fate():
                calls = [
                    asyncio.create_task(client.post(f"/v1/streams/{i}/observations", json={"y": 1}))
                    for i in range(20)
                ]
                await turns(TURNS)
                async with asyncio.timeout(PATIENCE_S):
                    await stack.aclose()
                    statuses = {(await call).status_code for call in calls}
                assert statuses == {503}


async def test_appends_under_way_do_not_hold_the_stop_of_a_lane(settings, worker, start):
    async with start(settings) as client:
        started = []

        def never(*_):
            started.append(True)
            return asyncio.get_running_loop().create_future()

        gateway = client.app.state.context.gateway
        gateway._queues[0]._appender.append = never
        posts = [
            asyncio.create_task(client.post(f"/v1/streams/{i}/observations", json={"y": 1}))
            for i in range(8)
        ]
        await until_async(lambda: started)
        async with asyncio.timeout(PATIENCE_S):
            await gateway.close()
        assert {(await post).status_code for post in posts} == {503}


async def test_durations_are_written_together_and_before_they_are_read(api, worker, monkeypatch):
    monkeypatch.setattr(metrics, "ENTER_EVERY_S", 60.0)

    def count(text):
        route = 'route="/v1/streams/{stream}/observations",status="200"'
        (line,) = (
            line
            for line in text.splitlines()
            if line.startswith("moca_http_request_duration_seconds_count") and route in line
        )
        return float(line.rpartition(" ")[2])

    await api.post("/v1/streams/s/observations", json={"y": 1})
    before = count((await api.get("/metrics")).text)
    gathered = api.app.state.gathered
    for y in range(5):
        await api.post("/v1/streams/s/observations", json={"y": y})
    kept = [len(values) for values in gathered._values.values() if values]
    assert kept.count(5) >= 2  # the time of requests, and of the replies
    assert count((await api.get("/metrics")).text) == before + 5
    monkeypatch.setattr(metrics, "ENTER_EVERY_S", 0.01)
    gathered.enter()  # that of the page, and no minute's wait for it
    await api.post("/v1/streams/s/observations", json={"y": 6})
    await until_async(lambda: not any(gathered._values.values()))
    assert gathered._timer is None
