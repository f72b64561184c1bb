"""The way into the log and back, with faults."""

import asyncio
import contextlib
import time

import pytest
import redis

from service.api.gateway import gateway, load_shedding
from service.errors.base import WaitTooLong
from service.observability import metrics
from service.schema.observations import COMMAND_OBSERVATIONS
from service.store import append, keys
from service.store.connection import connect
from service.store.keys import partition_of
from service.store.script import Script

POST = "/v1/streams/s/observations"
P = partition_of("s", 4)
APPEND = Script("append").digest.encode()


def slug(response):
    return response.json()["type"].rpartition("/")[2]


def shed(reason):
    return metrics.LOAD_SHED.labels(reason)._value.get()


@pytest.fixture
def short(settings):
    return settings.model_copy(update={"request_deadline_s": 0.6})


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(gateway, "GRACE_S", 0.3)


def waiting(api):
    return api.app.state.context.replies.pending


async def test_what_waits_goes_together_and_in_order(api, worker):
    responses = await asyncio.gather(*(api.post(POST, json={"y": i}) for i in range(300)))
    assert [response.json()["seq"] for response in responses] == list(range(300))
    assert len(worker.batches) < 100
    assert waiting(api) == {}


async def test_entries_are_bounded(settings, worker, start, monkeypatch):
    monkeypatch.setattr(append, "MAX_ENTRY_BYTES", 4096)
    async with start(settings) as api:
        body = {"x": [0.5] * 100}
        responses = await asyncio.gather(*(api.post(POST, json=body) for _ in range(40)))
        assert {response.status_code for response in responses} == {200}
        assert max(worker.batches) <= 4


async def test_a_cut_answer_to_an_append_leaves_one_effect(proxy, worker, start, until):
    async with start(proxy.settings) as api:
        await api.post(POST, json={"y": 0})
        repeats = metrics.REPEATED_APPENDS._value.get()
        for i in range(1, 6):
            proxy.cut_answer_to = APPEND
            responses = await asyncio.gather(*(api.post(POST, json={"y": i}) for _ in range(3)))
            assert [response.status_code for response in responses] == [200] * 3
            assert proxy.cut_answer_to is None
        # The worker's answer may come before the append is known to be cut.
        await until(lambda: metrics.REPEATED_APPENDS._value.get() >= repeats + 5)
        assert (await api.get("/v1/streams/s")).json()["seq"] == 16
        assert len(worker.commands) == 16


async def test_replies_that_were_missed_are_read_from_the_store(proxy, worker, start, until):
    """Well before the last look, which comes with the deadline."""
    async with start(proxy.settings.model_copy(update={"request_deadline_s": 60.0})) as api:
        await api.post(POST, json={"y": 0})
        recovered = metrics.RECOVERED_REPLIES._value.get()
        worker.running.clear()
        request = asyncio.create_task(api.post(POST, json={"y": 1}))
        await until(lambda: [p for p in waiting(api).values() if p.acknowledged])
        proxy.blocked = True
        proxy.cut()
        await until(lambda: not api.app.state.context.replies.subscribed.is_set())
        worker.running.set()
        await until(lambda: len(worker.commands) == 2)
        proxy.blocked = False
        async with asyncio.timeout(30):
            assert (await request).json()["seq"] == 1
        assert metrics.RECOVERED_REPLIES._value.get() == recovered + 1


async def test_outcomes_of_which_only_numbers_are_published_are_read_at_once(
    settings, worker, start
):
    worker.inline = False
    recovered = metrics.RECOVERED_REPLIES._value.get()
    async with start(settings.model_copy(update={"request_deadline_s": 60.0})) as api:
        began = time.monotonic()
        posts = [api.post(f"/v1/streams/{i % 9}/observations", json={"y": i}) for i in range(90)]
        assert {response.status_code for response in await asyncio.gather(*posts)} == {200}
        assert time.monotonic() - began < 30
    assert metrics.RECOVERED_REPLIES._value.get() == recovered  # none was missed


async def test_a_failed_read_of_outcomes_is_repeated(settings, worker, start, caplog):
    worker.inline = False
    async with start(settings.model_copy(update={"request_deadline_s": 60.0})) as api:
        store = api.app.state.context.replies._store
        read, failures = store.outcomes, [redis.ConnectionError("gone"), OSError("gone")]

        async def failing(*arguments):
            if failures:
                raise failures.pop()
            return await read(*arguments)

        store.outcomes = failing
        async with asyncio.timeout(30):
            assert (await api.post(POST, json={"y": 0})).status_code == 200
    assert caplog.text.count("cannot read outcomes: gone") == 2


async def test_a_worker_of_an_earlier_version_is_heard(settings, worker, start):
    """It publishes on one channel for all partitions."""
    worker.channel = lambda _, incarnation: keys.plain_reply_channel(incarnation)
    async with start(settings.model_copy(update={"request_deadline_s": 60.0})) as api:
        async with asyncio.timeout(30):
            assert (await api.post(POST, json={"y": 0})).status_code == 200


async def test_a_last_look_before_giving_up(short, worker, start):
    worker.publish = False
    async with start(short) as api:
        began = time.monotonic()
        assert (await api.post(POST, json={"y": 0})).status_code == 200
        assert time.monotonic() - began > 0.5


async def test_no_answer_says_accepted_and_it_is_applied_once(short, start, request):
    async with start(short) as api:
        key = {"Idempotency-Key": "k"}
        response = await api.post(POST, json={"y": 5}, headers=key)
        assert (response.status_code, slug(response)) == (504, "no-answer")
        assert response.headers["retry-after"] == "1"
        read = await api.get("/v1/streams/s/run-length")
        assert (read.status_code, "nothing was changed" in read.text) == (504, True)
        worker = request.getfixturevalue("worker")
        again = await api.post(POST, json={"y": 5}, headers=key)
        assert again.json()["duplicate"] is True
        assert again.json()["seq"] == 0
        assert len(worker.commands) == 3


async def test_a_list_that_stops_half_way_says_how_far_it_came(short, worker, start, until):
    async with start(short) as api:
        request = asyncio.create_task(api.post(POST, json=[{"y": 1}] * 9000))
        await until(lambda: len(worker.commands) > 1)
        worker.running.clear()
        response = await request
        assert (response.status_code, slug(response)) == (504, "no-answer")
        applied = response.json()["applied"]
        assert applied > 0
        assert applied % COMMAND_OBSERVATIONS == 0
        assert [each["seq"] for each in response.json()["answers"]] == list(range(applied))


async def test_an_outage_counts_once_for_all_commands_of_a_request(settings, worker, start):
    apply, patient = worker._apply, settings.model_copy(update={"request_deadline_s": 2.0})

    def late(*arguments):
        time.sleep(1.4)
        return apply(*arguments)

    worker._apply = late
    bulk = [{"stream": "b", "key": f"k{i}", "y": i} for i in range(4)]
    async with start(patient) as api:
        for path, body in (
            (POST, [{"y": i} for i in range(COMMAND_OBSERVATIONS + 8)]),
            ("/v1/observations", bulk),
        ):
            began = time.monotonic()
            response = await api.post(path, json=body)
            assert time.monotonic() - began < 4.0
            if path == POST:
                assert (response.status_code, response.json()["applied"]) == (
                    504,
                    COMMAND_OBSERVATIONS,
                )
            else:
                assert [each["status"] for each in response.json()] == [200, 504, 424, 424]


def test_commands_that_are_answered_as_they_should_be_may_take_any_time():
    patience = gateway.Patience(30.0)
    for _ in range(100):
        patience.spend(7.0)
    assert patience.left_s == 30.0
    patience.spend(12.0)
    assert patience.left_s == 18.0
    patience.spend(40.0)
    assert patience.left_s == gateway.LEAST_PATIENCE_S


async def test_unknown_outcomes(proxy, worker, start, until, impatient):
    async with start(proxy.settings) as api:
        await api.post(POST, json={"y": 0})
        worker.running.clear()
        proxy.cut_answer_to, proxy.blocked = APPEND, True
        key = {"Idempotency-Key": "k"}
        response = await api.post(POST, json={"y": 1}, headers=key)
        assert (response.status_code, slug(response)) == (503, "outcome-unknown")
        assert response.headers["retry-after"] == "1"
        response = await api.post(POST, json={"y": 2})
        assert (response.status_code, slug(response)) == (503, "redis-unavailable")
        proxy.blocked = False
        worker.running.set()
        await until(lambda: not api.app.state.context.gateway._queues[P].failing_since)
        answer = (await api.post(POST, json={"y": 1}, headers=key)).json()
        assert (answer["seq"], answer["duplicate"]) == (1, True)


async def test_a_store_that_goes_away_and_comes_back(
    lonely_store, settings, start, until, impatient
):
    there = settings.model_copy(update={"redis_url": lonely_store.url})
    async with start(there) as api:
        with lonely_store.worker():
            assert (await api.get("/readyz")).status_code == 200
            assert (await api.post(POST, json={"y": 0})).status_code == 200
        lonely_store.stop()
        responses = await asyncio.gather(*(api.post(POST, json={"y": 1}) for _ in range(5)))
        assert {response.status_code for response in responses} == {503}
        assert {response.headers["retry-after"] for response in responses} == {"1"}
        ready = await api.get("/readyz")
        assert (ready.status_code, ready.json()["reasons"]) == (503, ["store unreachable"])
        for path in ("", "/history", "/changepoints"):
            read = await api.get("/v1/streams/s" + path)
            assert (read.status_code, slug(read)) == (503, "redis-unavailable")
        assert (await api.get("/livez")).status_code == 200
        assert "moca_redis_up 0.0" in (await api.get("/metrics")).text
        # The batch that was on its way is still being resolved; nothing else gets in before.
        fast = await api.post(POST, json={"y": 2})
        assert slug(fast) == "redis-unavailable"
        lonely_store.start()
        with lonely_store.worker():
            await until(lambda: api.app.state.context.replies.subscribed.is_set())
            ready = await api.get("/readyz")
            assert ready.status_code == 200, ready.text
            await until(lambda: not api.app.state.context.gateway._queues[P].failing_since)
            assert (await api.post(POST, json={"y": 3})).status_code == 200


async def test_a_full_partition_takes_what_fits(settings, worker, start, until):
    async with start(settings.model_copy(update={"max_pending": 10})) as api:
        worker.running.clear()
        before = shed("partition_full")
        requests = [asyncio.create_task(api.post(POST, json={"y": i})) for i in range(15)]
        await until(lambda: sum(request.done() for request in requests) == 5)
        for request in requests:
            if request.done():
                assert request.result().status_code == 429
                assert request.result().headers["retry-after"] == "1"
                assert slug(request.result()) == "partition-full"
        assert shed("partition_full") == before + 5
        assert "10.0" in (await api.get("/metrics")).text
        worker.running.set()
        kept = [response.status_code for response in await asyncio.gather(*requests)]
        assert sorted(kept) == [200] * 10 + [429] * 5
        assert (await api.post(POST, json=[{"y": 1}] * 50)).status_code == 200


async def test_too_many_waiting(settings, worker, start, until):
    async with start(settings.model_copy(update={"max_waiting": 3})) as api:
        worker.running.clear()
        requests = [asyncio.create_task(api.post(POST, json={"y": i})) for i in range(5)]
        await until(lambda: sum(request.done() for request in requests) == 2)
        worker.running.set()
        responses = await asyncio.gather(*requests)
        assert sorted(response.status_code for response in responses) == [200] * 3 + [429] * 2
        bulk = await api.post("/v1/observations", json=[{"stream": f"s{i}"} for i in range(5)])
        assert sorted(item["status"] for item in bulk.json()) == [200] * 3 + [429] * 2


def overloaded(api, monkeypatch, after=0):
    """Have the estimated wait be too long after some decisions."""
    control, decisions = api.app.state.overload, []

    def admit(partition, now_s):
        decisions.append(partition)
        if len(decisions) > after:
            load_shedding.shed(WaitTooLong("the estimated wait is 2.2 s; nothing was accepted", 3))

    monkeypatch.setattr(control, "admit", admit)


async def test_commands_that_would_wait_for_too_long(api, worker, monkeypatch):
    await api.put("/v1/streams/s")
    overloaded(api, monkeypatch)
    before = shed("wait")
    for call in (api.post(POST, json={"y": 1}), api.delete("/v1/streams/s"),
                 api.get("/v1/streams/s/run-length")):  # fmt: skip
        response = await call
        assert (response.status_code, slug(response)) == (429, "wait-too-long")
        assert response.headers["retry-after"] == "3"
    assert shed("wait") == before + 3
    for path in ("/v1/streams/s", "/livez", "/readyz", "/metrics", "/v1/models"):
        assert (await api.get(path)).status_code == 200


async def test_a_list_that_has_begun_is_not_refused(api, worker, monkeypatch):
    overloaded(api, monkeypatch, after=1)
    answers = await api.post(POST, json=[{"y": i} for i in range(100)])
    assert answers.status_code == 200
    assert [answer["seq"] for answer in answers.json()] == list(range(100))
    refused = await api.post(POST, json=[{"y": i} for i in range(100)])
    assert (refused.status_code, refused.json()["applied"]) == (429, 0)


async def test_items_of_a_bulk_are_refused_by_stream(api, worker, monkeypatch):
    overloaded(api, monkeypatch, after=2)
    items = [{"stream": f"s{i % 4}", "y": i, "key": f"k{i}"} for i in range(12)]
    answers = (await api.post("/v1/observations", json=items)).json()
    assert [answer["status"] for answer in answers] == [200, 200, 429, 429] + [
        200,
        200,
        424,
        424,
    ] * 2
    assert answers[2]["type"].endswith("/wait-too-long")


async def test_what_is_estimated_is_what_waits(api, worker, until):
    control = api.app.state.overload
    worker.running.clear()
    requests = [asyncio.create_task(api.post(POST, json=[{"y": 1}] * 5)) for _ in range(3)]
    await until(lambda: control._all._waiting == 15)
    assert control._each[P]._waiting == 15
    worker.running.set()
    await asyncio.gather(*requests)
    assert control._all._waiting == control._each[P]._waiting == 0
    assert (await api.get("/v1/streams/nowhere/run-length")).status_code == 404
    assert control._all._waiting == 0


async def test_load_is_shed_before_memory_runs_out(api, settings, worker):
    await api.post(POST, json={"y": 1})
    with connect(settings.redis_url) as client:
        used = client.info("memory")["used_memory"]
        try:
            client.config_set("maxmemory", int(used / 0.95))
            await api.app.state.context.monitor.look()
            for response in (await api.post(POST, json={"y": 1}), await api.put("/v1/streams/s")):
                assert (response.status_code, slug(response)) == (429, "memory-short")
                assert response.headers["retry-after"] == "5"
            assert (await api.get("/v1/streams/s/run-length")).status_code == 200
            assert (await api.delete("/v1/streams/s")).status_code == 204
            # Used up before the monitor looks again: the store itself refuses.
            client.config_set("maxmemory", int(used * 0.5))
            api.app.state.context.monitor.memory_short = False
            response = await api.post(POST, json={"y": 1})
            assert (response.status_code, slug(response)) == (429, "memory-short")
        finally:
            client.config_set("maxmemory", 0)
    await api.app.state.context.monitor.look()
    assert (await api.post(POST, json={"y": 1})).json()["seq"] == 0


async def test_requests_that_go_away_do_not_disturb_others(api, worker):
    async def give_up_soon(i):
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(api.post(f"/v1/streams/t{i % 5}/observations", json={}), 0.002)

    for _ in range(5):
        impatient = [give_up_soon(i) for i in range(20)]
        patient = [api.post(f"/v1/streams/u{i}/observations", json={"y": i}) for i in range(20)]
        answers = (await asyncio.gather(*impatient, *patient))[20:]
        for i, answer in enumerate(answers):
            assert (answer.json()["stream"], answer.json()["y"]) == (f"u{i}", i)
    assert waiting(api) == {}


async def test_what_still_waits_at_the_end_is_answered(settings, start, until):
    async with start(settings) as api:
        request = asyncio.create_task(api.post(POST, json={"y": 1}))
        await until(lambda: [p for p in waiting(api).values() if p.acknowledged])
    response = await request
    assert (response.status_code, slug(response)) == (504, "no-answer")


async def test_envelopes_are_stamped(api, worker):
    before = int(time.time() * 1000)
    await api.post(POST, json={"y": 1})
    await api.get("/v1/streams/s/run-length")
    write, read = worker.envelopes
    assert write.deadline_ms == 0
    assert before <= write.time_ms <= int(time.time() * 1000)
    assert read.deadline_ms == read.time_ms + 5000
    assert {write.default_model, read.default_model} == {"averaged"}
    assert read.number > write.number


async def test_a_defect_in_a_lane_leaves_nobody_waiting(api, worker, monkeypatch, caplog):
    queue = api.app.state.context.gateway._queues[P]
    monkeypatch.setattr(queue, "_acknowledge", lambda: 1 / 0)
    worker.running.clear()
    response = await api.post(POST, json={"y": 1})
    assert (response.status_code, slug(response)) == (503, "outcome-unknown")
    assert "ZeroDivisionError" in caplog.text
    monkeypatch.undo()
    worker.running.set()
    assert (await api.post(POST, json={"y": 2})).json()["seq"] == 1  # the first was sent


async def test_a_task_that_should_never_end_is_told_by_the_probes(api, monkeypatch, until):
    context = api.app.state.context
    monkeypatch.setattr(context.replies, "resolve", lambda outcome: 1 / 0)
    request = asyncio.create_task(api.post(POST, json={"y": 1}))
    await until(lambda: context.gateway.failure is not None)
    assert (await api.get("/livez")).status_code == 500
    assert "ZeroDivisionError" in (await api.get("/readyz")).text
    monkeypatch.undo()
    assert (await request).status_code == 200  # the last look before giving up


async def test_stored_outcomes_that_cannot_be_read(short, worker, start, until, caplog):
    worker.publish = False
    async with start(short) as api:
        worker.running.clear()
        request = asyncio.create_task(api.post(POST, json={"y": 1}))
        await until(lambda: [p for p in waiting(api).values() if p.acknowledged])
        ((number, _),) = waiting(api).items()
        incarnation = api.app.state.context.replies._incarnation
        with connect(short.redis_url) as client:
            client.hset(keys.outcomes(P, incarnation, number), str(number), b"\x00")
        response = await request
        assert (response.status_code, slug(response)) == (500, "corrupt-state")
        assert "same Idempotency-Key" in response.json()["detail"]
        assert "cannot read the stored" in caplog.text
        assert api.app.state.context.gateway.failure is None
