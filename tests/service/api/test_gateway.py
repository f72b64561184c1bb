"""The way into the log and back, with faults."""

import asyncio
import contextlib
import itertools
import time
from itertools import chain, repeat
from unittest.mock import DEFAULT, AsyncMock, Mock

import pytest
import redis

from service import wire
from service.api.gateway import gateway, load_shedding
from service.models.catalogue import Canary
from service.observability import metrics
from service.problems import PartitionFull, ReadTimeout, WaitTooLong
from service.schema.observations import COMMAND_OBSERVATIONS
from service.store import keys
from service.store import log as logs
from service.store.keys import partition_of
from service.wire import Id
from service.wire.event_entries import START
from tests.faults import REPLIES, Proxy
from tests.packing import pack
from tests.remote_write import V2, raw, version_2
from tests.service.api.conftest import BAD_LABEL, DEADLINE_S, slug, worker_of
from tests.waiting import PATIENCE_S, until_async

POST = "/v1/streams/s/observations"
MANY = "/v1/observations"
KEY = {"Idempotency-Key": "k"}
P = partition_of("s", 4)


def count_of(metric):
    return metric._value.get()


def shed(reason):
    return count_of(metrics.LOAD_SHED.labels(reason))


def waiting(api):
    return api.app.state.context.replies.pending


def missing(api):
    """Commands without a result; rows of one count each."""
    return sum(pending.missing for pending in waiting(api).values())


async def appended(api, count=1):
    """Wait until so many commands are in the log and have no outcome."""
    await until_async(
        lambda: sum(p.missing for p in waiting(api).values() if p.acknowledged) == count
    )


def append_by(api, monkeypatch, replace):
    """Have the partition's queue append by what `replace` makes of its appender's method."""
    appender = api.app.state.context.gateway._queues[P]._appender
    send = replace(appender.append)
    monkeypatch.setattr(
        appender, "append", lambda *arguments: asyncio.ensure_future(send(*arguments))
    )


def hold(api, monkeypatch):
    """Keep what the partition's queue sends from the store, until the event returned is set."""
    gate = asyncio.Event()

    def holding(send):
        async def held(*arguments):
            await gate.wait()
            return await send(*arguments)

        return held

    append_by(api, monkeypatch, holding)
    return gate


def unanswered_by(send):
    """Appends that are carried out, and never answered."""

    async def unanswered(*arguments):
        await send(*arguments)
        await asyncio.Event().wait()

    return unanswered


async def failing(api, yes=True):
    queue = api.app.state.context.gateway._queues[P]
    await until_async(lambda: bool(queue.failing_since) == yes)


@pytest.fixture
def proxy(settings):
    """A proxy before the store, and settings that go through it."""
    with contextlib.closing(Proxy(settings.redis_url)) as proxy:
        proxy.settings = settings.model_copy(update={"redis_url": proxy.url})
        yield proxy


async def unanswered(api, proxy, store, *posts):
    """Begin requests whose append arrives and is not answered; the store stays away."""
    count = store.hget(keys.meta(P), "in")
    proxy.hold(REPLIES)
    requests = [asyncio.create_task(post) for post in posts]
    await until_async(lambda: store.hget(keys.meta(P), "in") != count)
    proxy.refuse()
    await failing(api)
    return requests


# --- group commit -------------------------------------------------------------------------------


async def test_what_waits_goes_together_and_in_order(api, worker):
    responses = await asyncio.gather(*(api.post(POST, json={"y": i}) for i in range(300)))
    assert [response.json()["seq"] for response in responses] == list(range(300))
    assert len(worker.batches) < 100
    assert waiting(api) == {}


async def test_what_comes_during_an_append_goes_in_the_next_entry(api, worker):
    appender = api.app.state.context.gateway._queues[P]._appender
    gate = asyncio.Event()
    run = appender._client.run

    async def held(commands):
        await gate.wait()
        return await run(commands)

    appender._client.run = held
    other = next(f"o{i}" for i in itertools.count() if partition_of(f"o{i}", 4) != P)
    requests = [asyncio.create_task(api.post(f"/v1/streams/{other}/observations", json={"y": 0}))]
    await until_async(lambda: [p for p in waiting(api).values() if p.sent])
    requests += [asyncio.create_task(api.post(POST, json={"y": i})) for i in range(20)]
    await until_async(lambda: missing(api) == 21)
    gate.set()
    answers = await asyncio.gather(*requests)
    assert [answer.json()["seq"] for answer in answers] == [0, *range(20)]
    assert sorted(worker.batches) == [1, 20]


async def test_entries_are_bounded(api, worker, monkeypatch):
    monkeypatch.setattr(logs, "MAX_ENTRY_BYTES", 4096)
    appender = api.app.state.context.gateway._queues[P]._appender
    append_entry = Mock(wraps=appender.append)
    monkeypatch.setattr(appender, "append", append_entry)
    responses = await asyncio.gather(*(api.post(POST, json={"y": i}) for i in range(300)))
    assert {response.status_code for response in responses} == {200}
    assert 4096 - 200 < max(len(call.args[3]) for call in append_entry.call_args_list) <= 4096


async def test_envelopes_are_stamped_and_a_canary_is_chosen_for_new_streams(
    api, worker, monkeypatch
):
    before = int(time.time() * 1000)
    await api.post(POST, json={"y": 1})
    await api.get("/v1/streams/s/run-length")
    write, read = worker.envelopes
    assert write.deadline_ms == 0
    assert before <= write.time_ms <= int(time.time() * 1000)
    assert read.deadline_ms == read.time_ms + 1000 * DEADLINE_S
    assert {write.default_model, read.default_model} == {"averaged"}
    assert read.number > write.number
    context = api.app.state.context
    monkeypatch.setattr(context.monitor, "canaries", {"pump": Canary("2", 1.0)})
    monkeypatch.setattr(context.catalogue, "usable", lambda name: ["1", "2"])
    for settings in ({"model": "pump"}, {"model": "pump@1"}, {}):
        seen = wire.Observation(1.0, None, "2026-01-01T00:00:00Z")
        await context.gateway.submit(wire.Ingest("s", [seen], settings=raw(settings)))
    assert [each.chosen for each in worker.envelopes[2:]] == ["pump@2", None, None]


async def test_envelopes_say_how_rarely_a_stream_may_alarm(api, worker, store, monkeypatch):
    await api.post(POST, json={"y": 1})
    monitor = api.app.state.context.monitor
    rate = monitor._settings.model_copy(update={"false_alarms_per_day": 0.5})
    monkeypatch.setattr(monitor, "_settings", rate)
    monkeypatch.setattr(monitor, "quiet_days", 0.0)
    await api.post(POST, json={"y": 2})
    for p, names in enumerate((["a", "b"], ["c"])):
        store.zadd(keys.names(p), dict.fromkeys(names, 0))
    await monitor.look()
    await api.post(POST, json={"y": 3})
    living = sum(store.zcard(keys.names(p)) for p in range(monitor._settings.partitions))
    assert living >= 3
    quiet_days = [envelope.quiet_days for envelope in worker.envelopes]
    assert quiet_days == [None, 0.0, 2 * living]


async def test_a_cut_answer_to_an_append_leaves_one_effect(proxy, worker, start, store, clock):
    async with start(proxy.settings) as api:
        await api.post(POST, json={"y": 0})
        repeats = count_of(metrics.REPEATED_APPENDS)
        posts = [api.post(POST, json={"y": i}) for i in range(3)]
        requests = await unanswered(api, proxy, store, *posts)
        proxy.heal()
        assert [response.status_code for response in await asyncio.gather(*requests)] == [200] * 3
        assert count_of(metrics.REPEATED_APPENDS) > repeats
        assert (await api.get("/v1/streams/s")).json()["seq"] == 4
        assert len(worker.commands) == 4


async def test_a_repeat_is_not_appended_where_the_record_of_the_first_is_damaged(
    proxy, worker, start, store, clock
):
    async with start(proxy.settings) as api:
        await api.post(POST, json={"y": 0})
        worker.pause()
        (request,) = await unanswered(api, proxy, store, api.post(POST, json={"y": 1}))
        store.set(keys.append(P, api.app.state.context.replies._incarnation), b"nonsense")
        proxy.heal()
        response = await request
        assert (response.status_code, slug(response)) == (503, "outcome-unknown")
        worker.running.set()
        assert (await api.post(POST, json={"y": 2})).json()["seq"] == 2  # it was sent once


async def test_a_defect_in_a_lane_leaves_nobody_waiting(api, worker, monkeypatch, caplog):
    queue = api.app.state.context.gateway._queues[P]
    monkeypatch.setattr(queue, "_acknowledge", lambda: 1 / 0)
    worker.pause()
    response = await api.post(POST, json={"y": 1})
    assert (response.status_code, slug(response)) == (503, "outcome-unknown")
    assert "ZeroDivisionError" in caplog.text
    monkeypatch.undo()
    worker.running.set()
    assert (await api.post(POST, json={"y": 2})).json()["seq"] == 1  # the first was sent


async def test_a_defect_in_a_pipeline_leaves_nobody_waiting(api, worker, monkeypatch, caplog):
    """Of all the partitions whose entries it has; the next entries go out as usual."""
    appender = api.app.state.context.gateway._queues[P]._appender
    monkeypatch.setattr(appender._client, "run", lambda *_: 1 / 0)
    other = next(f"o{i}" for i in itertools.count() if partition_of(f"o{i}", 4) != P)
    paths = [POST, f"/v1/streams/{other}/observations"]
    responses = await asyncio.gather(*(api.post(path, json={"y": 1}) for path in paths))
    assert {(each.status_code, slug(each)) for each in responses} == {(503, "outcome-unknown")}
    assert "ZeroDivisionError" in caplog.text
    monkeypatch.undo()
    assert [(await api.post(path, json={"y": 2})).json()["seq"] for path in paths] == [0, 0]


async def test_a_request_that_goes_away_before_its_command_is_sent_has_no_effect(
    api, worker, monkeypatch
):
    gate = hold(api, monkeypatch)
    requests = [asyncio.create_task(api.post(POST, json={"y": 0}))]
    await until_async(lambda: [p for p in waiting(api).values() if p.sent])
    requests += [asyncio.create_task(api.post(POST, json={"y": i})) for i in (1, 2)]
    await until_async(lambda: missing(api) == 3)
    requests[1].cancel()
    await asyncio.wait(requests[1:2])
    gate.set()
    assert [(await requests[i]).json()["seq"] for i in (0, 2)] == [0, 1]


# --- groups: the commands of one request and partition ------------------------------------------


def bulk_of(count, partition=P, **more):
    """Items of so many streams of one partition."""
    streams = (f"g{i}" for i in itertools.count())
    mine = (stream for stream in streams if partition_of(stream, 4) == partition)
    return [{"stream": stream, "y": 1, **more} for stream in itertools.islice(mine, count)]


def statuses(response):
    return [item["status"] for item in response.json()]


async def test_streams_go_in_waves_side_by_side(api, worker):
    """The second item of a stream goes when the first of all are answered, and with the others."""
    streams = [f"s{i}" for i in range(200)]
    items = [{"stream": s, "key": f"{s}.{i}", "y": i} for i in range(3) for s in streams]
    items[200 + 7]["y"] = BAD_LABEL  # of s7: its third is not attempted
    answered = statuses(await api.post(MANY, json=items))
    assert [i for i, status in enumerate(answered) if status != 200] == [207, 407]
    assert (answered[207], answered[407]) == (422, 424)
    for partition in range(4):
        sent = [c for c in worker.commands if partition_of(c.stream, 4) == partition]
        waves = [int(command.key.partition(".")[2]) for command in sent]
        assert waves == sorted(waves)
        assert set(waves) == {0, 1, 2}
    assert len(worker.commands) == 599
    assert len(worker.batches) <= 3 * 4


async def test_an_outcome_that_is_lost_fails_its_own_command(api, worker, clock):
    (lost, *others) = bulk_of(4)
    apply = worker._apply

    def lose(partition, envelope):
        outcome, effects = apply(partition, envelope)
        if envelope.command.stream == lost["stream"]:
            outcome.number += 1_000_000
        return outcome, effects

    worker._apply = lose
    items = [others[0], lost, *others[1:]]
    second = [{**item, "key": "k"} for item in items]
    request = asyncio.create_task(api.post(MANY, json=items + second))
    await until_async(lambda: len(worker.commands) == 4 and missing(api) == 1)
    clock.advance(DEADLINE_S + 0.1)
    response = await request
    assert statuses(response) == [200, 504, 200, 200, 200, 424, 200, 200]
    assert response.json()[1]["type"].endswith("/no-answer")
    control = api.app.state.overload
    assert (control._all._waiting, waiting(api)) == (0, {})
    assert control._usual_s < 1.0  # what is lost has no wait


async def test_a_group_that_goes_away_before_it_is_sent_has_no_effect(api, worker, monkeypatch):
    gate = hold(api, monkeypatch)
    first = asyncio.create_task(api.post(POST, json={"y": 0}))
    await until_async(lambda: [p for p in waiting(api).values() if p.sent])
    gone = asyncio.create_task(api.post(MANY, json=bulk_of(5)))
    await until_async(lambda: missing(api) == 6)
    gone.cancel()
    await asyncio.wait([gone])
    assert (missing(api), api.app.state.overload._all._waiting) == (1, 1)
    gate.set()
    assert (await first).status_code == 200
    assert (await api.post(POST, json={"y": 1})).json()["seq"] == 1
    assert {command.stream for command in worker.commands} == {"s"}


async def test_a_group_that_goes_away_while_it_is_encoded_never_counts_as_waiting(api, worker):
    gateway = api.app.state.context.gateway
    commands = [wire.Observe(item["stream"], [wire.Observation(1.0)]) for item in bulk_of(5)]
    gone = asyncio.create_task(gateway.submit_rows(P, pack(commands)))
    await asyncio.sleep(0)
    assert missing(api) == 5
    gone.cancel()
    await asyncio.wait([gone])
    assert gone.cancelled()
    assert worker.batches == []
    assert waiting(api) == {}
    assert api.app.state.overload._all._waiting == 0


async def test_a_group_goes_in_several_entries_without_what_is_too_large(
    settings, worker, start, monkeypatch
):
    monkeypatch.setattr(logs, "MAX_ENTRY_BYTES", 2048)
    async with start(settings) as api:
        items = bulk_of(250)
        items[7]["x"] = [0.5] * 250
        answers = await api.post(MANY, json=items)
        assert statuses(answers) == [200] * 7 + [413] + [200] * 242
        assert answers.json()[7]["type"].endswith("/body-too-large")
        assert [command.stream for command in worker.commands] == [
            item["stream"] for item in items if "x" not in item
        ]
        assert len(worker.batches) == 3


async def test_rows_are_answered_in_pieces_each_once():
    """A piece that comes twice counts once; a deadline is that of the rows without a result."""
    waiting = {}
    group = gateway.CommandGroup(waiting, 0, 5, 1.0, read_only=False, counted=True)
    command = pack([wire.Observe(f"s{i}", [wire.Observation(1.0)]) for i in range(4)])
    envelopes = [wire.Envelope(n, 0, 0, "m", what) for n, what in ((7, command), (8, command))]
    pending = gateway.PendingCommand(group, range(4), envelopes[0], b"", None)
    other = gateway.PendingCommand(group, (4,), envelopes[1], b"", None)
    waiting |= {7: pending, 8: other}
    same = wire.Outcome(7, 422, [b"{}"], row=2, rows=2)
    for outcome in (same, same, wire.Outcome(7, 200, [b"1"], row=0), same):
        pending.answer(outcome, 1.0)
    assert (pending.missing, group.missing, pending.done, list(waiting)) == (1, 2, False, [7, 8])
    error = ReadTimeout("no answer")
    pending.fail(error)
    assert [(*row.places, row.result.status, row.first) for row in pending.results] == [
        (2, 3, 422, 0),
        (0, 200, 0),
        (1, error.status, 1),
    ]
    assert (group.future.done(), list(waiting)) == (False, [8])
    other.answer(wire.Outcome(8, 200, []), 1.0)
    assert (group.future.done(), waiting) == (True, {})


# --- replies ------------------------------------------------------------------------------------


async def test_replies_that_were_missed_are_read_from_the_store(proxy, worker, start, clock):
    """By a new subscription; the looks before the deadline never come here."""
    async with start(proxy.settings) as api:
        await api.post(POST, json={"y": 0})
        recovered = count_of(metrics.RECOVERED_REPLIES)
        worker.pause()
        request = asyncio.create_task(api.post(POST, json={"y": 1}))
        await appended(api)
        proxy.refuse()
        await until_async(lambda: not api.app.state.context.replies.subscribed.is_set())
        worker.running.set()
        await until_async(lambda: len(worker.commands) == 2)
        proxy.heal()
        assert (await request).json()["seq"] == 1
        assert count_of(metrics.RECOVERED_REPLIES) == recovered + 1


async def test_results_of_which_only_ids_are_published_are_read_until_it_succeeds(
    api, worker, clock, caplog
):
    worker.whole = False
    store = api.app.state.context.replies._store
    failures = [redis.ConnectionError("gone"), OSError("gone")]
    store.results = AsyncMock(wraps=store.results, side_effect=chain(failures, repeat(DEFAULT)))
    assert (await api.post(POST, json={"y": 0})).status_code == 200
    assert store.results.await_count > 2
    assert caplog.text.count("cannot read outcomes: gone") == 1


async def test_a_message_that_does_not_follow_on_the_one_before_has_those_between_read(
    api, worker, clock
):
    assert (await api.post(POST, json={"y": 0})).status_code == 200
    recovered = count_of(metrics.RECOVERED_REPLIES)
    worker.publish = False
    request = asyncio.create_task(api.post(POST, json={"y": 1}))
    await until_async(lambda: len(worker.commands) == 2)
    assert not request.done()
    worker.publish = True
    assert (await api.post(POST, json={"y": 2})).json()["seq"] == 2
    assert (await request).json()["seq"] == 1
    assert count_of(metrics.RECOVERED_REPLIES) == recovered + 1
    reads = api.app.state.context.replies._store
    reads.results = AsyncMock(wraps=reads.results)
    assert (await api.post(POST, json={"y": 3})).json()["seq"] == 3
    reads.results.assert_not_called()


async def test_a_gap_is_closed_although_more_pieces_come_with_every_read(api, worker, clock):
    await api.post(POST, json={"y": 0})
    replies = api.app.state.context.replies
    await until_async(lambda: replies._read_to[P].id > START)  # the first is no gap any more
    results = replies._store.results
    overtaking = []

    async def overtaken(*asked):
        rows = await results(*asked)
        if len(overtaking) < 20:
            overtaking.append(await api.post(POST, json={"y": 9}))
        return rows

    replies._store.results = overtaken
    worker.publish = False
    request = asyncio.create_task(api.post(POST, json={"y": 1}))
    await until_async(lambda: len(worker.commands) == 2)
    worker.publish = True
    await api.post(POST, json={"y": 2})
    assert (await request).json()["seq"] == 1
    for _ in range(20):
        await api.post(POST, json={"y": 3})
    assert 1 <= len(overtaking) <= 3


async def test_a_message_has_pieces_of_several_partitions(api, worker, clock):
    """Each is delivered, and where one is missing before it, or it is long, that is read."""
    replies = api.app.state.context.replies
    posts = [(P, 1), ((P + 1) % 4, 1), ((P + 2) % 4, 1)]
    worker.publish = False
    items = [item for p, count in posts for item in bulk_of(count, p)]
    first = asyncio.create_task(api.post(MANY, json=items))
    await until_async(lambda: len(worker.commands) == len(posts))
    store = replies._store
    last = {}
    async with asyncio.timeout(PATIENCE_S):
        while len(last) < len(posts):  # committed, after the worker has read them
            every = await store.results(replies._incarnation, dict.fromkeys(range(4), START), 64)
            last = {p: pieces[-1] for p, pieces in every.items() if pieces}
    a, b, c = (p for p, _ in posts)
    looked = Mock(wraps=replies.fall_behind)
    replies.fall_behind = looked
    said = (
        f"{a} {last[a][0]} {len(last[a][1])} {c} {last[c][0]} 0 {b} {last[b][0]} {len(last[b][1])}"
    )
    await until_async(lambda: len(replies.pending) == len(posts))
    replies._receive("", said.encode() + b"\n" + last[a][1] + last[b][1])
    assert len(replies.pending) == 1
    (behind,) = looked.call_args.args
    assert c in behind
    assert statuses(await first) == [200] * len(posts)


def test_what_was_read_already_leaves_no_gap_and_one_read_closes_the_gap_before_a_run():
    read_to = gateway.ReadTo()
    read_to.read(Id(1, 5))
    assert read_to.hear(Id(1, 4))
    assert read_to.hear(Id(1, 6))
    assert not read_to.hear(Id(1, 8))
    assert not read_to.hear(Id(1, 9))
    read_to.read(Id(1, 7))
    assert read_to.id == Id(1, 9)
    assert read_to.hear(Id(1, 10))


async def test_a_message_that_is_none_is_ignored(api, worker, store, caplog):
    replies = api.app.state.context.replies
    malformed = (b"\xff", b"1 1-1", b"99 1-1 0\n", b"1 1 0\n")
    for message in malformed:
        store.spublish(keys.results(P, replies._incarnation), message)
    await until_async(lambda: caplog.text.count("ignored a malformed message") == len(malformed))
    assert (await api.post(POST, json={"y": 0})).status_code == 200


async def test_ids_of_a_store_that_was_rolled_back_are_read_from_the_start(
    proxy, worker, start, clock
):
    async with start(proxy.settings) as api:
        for y in range(3):
            await api.post(POST, json={"y": y})
        replies = api.app.state.context.replies
        replies._read_to[P].read(Id(9, 9))
        worker.publish = False
        request = asyncio.create_task(api.post(POST, json={"y": 3}))
        await until_async(lambda: len(worker.commands) == 4)
        proxy.refuse()
        await until_async(lambda: not replies.subscribed.is_set())
        proxy.heal()
        assert (await request).json()["seq"] == 3


@pytest.mark.parametrize("acknowledged", [True, False])
async def test_a_last_look_before_giving_up(api, worker, clock, monkeypatch, acknowledged):
    """The look at deadlines that gives up one request reads the outcome of a later one."""
    replies = api.app.state.context.replies
    looked = Mock(wraps=replies.fall_behind)
    monkeypatch.setattr(replies, "fall_behind", looked)
    worker.publish = False
    earlier = asyncio.create_task(api.post(POST, json={"y": 0}))
    await appended(api)
    clock.advance(0.2)
    if not acknowledged:
        append_by(api, monkeypatch, unanswered_by)
    request = asyncio.create_task(api.post(POST, json={"y": 1}))
    await until_async(lambda: len(worker.commands) == 2)
    await appended(api, 1 + acknowledged)
    worker.pause()  # its commits are done
    looked.assert_not_called()
    clock.advance(DEADLINE_S - 0.1)
    assert (await earlier).status_code == 504
    looked.assert_called_with({P})
    assert (await request).status_code == 200


async def test_no_answer_waits_for_a_store_that_does_not_answer(api, worker, clock):
    """What is read before a deadline is not waited for at the deadline."""
    worker.pause()
    request = asyncio.create_task(api.post(POST, json={"y": 1}))
    await appended(api)
    reading = asyncio.Event()

    async def results(*_):
        reading.set()
        await asyncio.Event().wait()

    api.app.state.context.replies._store.results = results
    clock.advance(DEADLINE_S - 0.1)
    await until_async(reading.is_set)
    assert not request.done()
    clock.advance(0.2)
    response = await request
    assert (response.status_code, slug(response)) == (504, "no-answer")


async def test_stored_outcomes_that_cannot_be_read(api, worker, store, clock, caplog):
    worker.pause()
    request = asyncio.create_task(api.post(POST, json={"y": 1}))
    await appended(api)
    incarnation = api.app.state.context.replies._incarnation
    store.xadd(keys.results(P, incarnation), {"b": b"\x00"}, id="1-1")
    clock.advance(DEADLINE_S - 0.1)
    await until_async(lambda: "cannot read the stored" in caplog.text)
    clock.advance(0.2)
    response = await request
    assert (response.status_code, slug(response)) == (504, "no-answer")
    assert "same Idempotency-Key" in response.json()["detail"]
    assert "cannot read the stored" in caplog.text
    assert api.app.state.context.gateway.failure is None


async def test_a_task_that_should_never_end_is_told_by_the_probes(api, monkeypatch, clock):
    context = api.app.state.context
    with monkeypatch.context() as broken:
        broken.setattr(context.replies, "resolve", lambda *_: 1 / 0)
        request = asyncio.create_task(api.post(POST, json={"y": 1}))
        await until_async(lambda: context.gateway.failure is not None)
    assert (await api.get("/livez")).status_code == 500
    ready = await api.get("/readyz")
    assert (ready.status_code, "ZeroDivisionError" in ready.text) == (503, True)
    clock.advance(DEADLINE_S - 0.1)
    await until_async(request.done)  # looked for before giving up
    assert (await request).status_code == 200


# --- deadlines and outages ----------------------------------------------------------------------


async def test_no_answer_says_accepted_and_it_is_applied_once(settings, start, clock, request):
    async with start(settings) as api:
        posted = asyncio.create_task(api.post(POST, json={"y": 5}, headers=KEY))
        await appended(api)
        clock.advance(DEADLINE_S + 0.1)
        response = await posted
        assert (response.status_code, slug(response)) == (504, "no-answer")
        worker = request.getfixturevalue("worker")
        again = await api.post(POST, json={"y": 5}, headers=KEY)
        assert (again.json()["duplicate"], again.json()["seq"]) == (True, 0)
        assert len(worker.commands) == 2


def apply_only(worker, count, then=lambda: None):
    """Have the worker pause after so many commands more."""
    apply, done = type(worker)._apply, []

    def few(*arguments):
        done.append(arguments)
        if len(done) == count:
            worker.running.clear()
            then()
        return apply(worker, *arguments)

    worker._apply = few


async def test_a_list_that_stops_half_way_says_how_far_it_came(api, worker, clock):
    apply_only(worker, 3)
    request = asyncio.create_task(api.post(POST, json=[{"y": 1}] * 5 * COMMAND_OBSERVATIONS))
    await until_async(lambda: 3 in waiting(api))
    await appended(api)
    clock.advance(DEADLINE_S + 0.1)
    response = await request
    assert (response.status_code, slug(response)) == (504, "no-answer")
    applied = 3 * COMMAND_OBSERVATIONS
    assert response.json()["applied"] == applied
    assert [each["seq"] for each in response.json()["answers"]] == list(range(applied))


async def test_an_outage_counts_once_for_all_commands_of_a_request(api, worker, clock):
    """The first command is answered a second before the deadline: the second has one, the least."""
    bulk = [{"stream": "b", "key": f"k{i}", "y": i} for i in range(4)]
    parts = [{"y": 1}] * (COMMAND_OBSERVATIONS + 8)
    for first, path, body in ((0, POST, parts), (2, MANY, bulk)):
        apply_only(worker, 1, lambda: clock.advance(DEADLINE_S - 1.0))
        worker.running.set()
        request = asyncio.create_task(api.post(path, json=body))
        await until_async(lambda first=first: first + 1 in waiting(api))
        await appended(api)
        clock.advance(0.9)
        await asyncio.sleep(0.05)
        assert not request.done()
        clock.advance(0.2)
        response = await request
        if path == POST:
            assert (response.status_code, response.json()["applied"]) == (504, 512)
        else:
            assert [each["status"] for each in response.json()] == [200, 504, 424, 424]
        worker._apply = lambda *arguments: type(worker)._apply(worker, *arguments)
        worker.running.set()
        await until_async(lambda first=first: len(worker.commands) == first + 2)


def test_commands_that_are_answered_as_they_should_be_may_take_any_time():
    patience = gateway.RequestPatience(30.0)
    assert patience.left_s == 30.0
    for left_s in (22.5, 15.0, 15.0, 15.0):  # in which another worker takes over
        patience.spend(7.5)
        assert patience.left_s == left_s
    patience.spend(16.0)
    assert patience.left_s == 14.0
    patience.spend(40.0)
    assert patience.left_s == gateway.LEAST_PATIENCE_S
    assert gateway.RequestPatience(0.5).left_s == 0.5
    patience = gateway.RequestPatience(30.0)
    for left_s in (20.0, 10.0):  # an outage, and another one
        patience.spend(10.0)
        assert patience.left_s == left_s


async def test_a_process_that_stops_answers_what_waits_and_what_would_follow(api, worker, clock):
    """A list and items that are to go on with a next part, too."""
    apply_only(worker, 1)
    gateway_ = api.app.state.context.gateway
    parts = [{"y": 1}] * (COMMAND_OBSERVATIONS + 8)
    several = asyncio.create_task(api.post(POST, json=parts))
    await until_async(lambda: 1 in waiting(api))
    await appended(api)
    gateway_.stop()
    response = await several
    assert (response.status_code, slug(response)) == (504, "no-answer")
    assert response.json()["applied"] == COMMAND_OBSERVATIONS
    response = await api.post(POST, json={"y": 2})
    assert (response.status_code, slug(response)) == (503, "redis-unavailable")
    assert response.json()["detail"] == "the service is stopping; nothing was accepted"
    assert statuses(await api.post(MANY, json=bulk_of(2))) == [503, 503]
    worker.running.set()
    await until_async(lambda: len(worker.commands) == 2)  # the second part was accepted


async def test_unknown_outcomes(proxy, worker, start, store, clock):
    async with start(proxy.settings) as api:
        await api.post(POST, json={"y": 0})
        worker.pause()
        post = api.post(POST, json={"y": 1}, headers=KEY)
        (request,) = await unanswered(api, proxy, store, post)
        clock.advance(gateway.GRACE_S + 0.1)
        response = await request
        assert (response.status_code, slug(response)) == (503, "outcome-unknown")
        response = await api.post(POST, json={"y": 2})
        assert (response.status_code, slug(response)) == (503, "redis-unavailable")
        proxy.heal()
        worker.running.set()
        await failing(api, False)
        await until_async(api.app.state.context.replies.subscribed.is_set)
        response = await api.post(POST, json={"y": 1}, headers=KEY)
        assert response.status_code == 200, response.text
        answer = response.json()
        assert (answer["seq"], answer["duplicate"]) == (1, True)


async def test_a_store_that_goes_away_and_comes_back(lonely_store, settings, start, clock):
    async with start(settings, redis_url=lonely_store.url) as api:
        with worker_of(lonely_store):
            assert (await api.get("/readyz")).status_code == 200
            assert (await api.post(POST, json={"y": 0})).status_code == 200
        lonely_store.stop()
        requests = [asyncio.create_task(api.post(POST, json={"y": 1})) for _ in range(5)]
        await failing(api)
        clock.advance(gateway.GRACE_S + 0.1)
        for request in requests:
            response = await request
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        ready = await api.get("/readyz")
        assert (ready.status_code, ready.json()["reasons"]) == (503, ["store unreachable"])
        assert (await api.get("/livez")).status_code == 200
        assert "moca_redis_up 0.0" in (await api.get("/metrics")).text
        # The batch that was on its way is still being resolved; nothing else gets in before.
        assert slug(await api.post(POST, json={"y": 2})) == "redis-unavailable"
        lonely_store.start()
        with worker_of(lonely_store):
            await until_async(api.app.state.context.replies.subscribed.is_set)
            ready = await api.get("/readyz")
            assert ready.status_code == 200, ready.text
            await failing(api, False)
            assert (await api.post(POST, json={"y": 3})).status_code == 200


async def test_what_still_waits_at_the_end_is_answered(settings, start):
    async with start(settings) as api:
        request = asyncio.create_task(api.post(POST, json={"y": 1}))
        await appended(api)
    response = await request
    assert (response.status_code, slug(response)) == (504, "no-answer")


# --- load shedding ------------------------------------------------------------------------------


async def test_a_full_partition_takes_what_fits(settings, worker, start):
    async with start(settings, max_pending=10) as api:
        worker.pause()
        before = shed("partition_full")
        assert await taken_and_refused(api, worker, 15, 5) == "partition-full"
        assert shed("partition_full") == before + 5
        assert (await api.post(POST, json=[{"y": 1}] * 50)).status_code == 200


async def test_a_partition_that_has_room_again_refuses_one_rather_than_try_for_ever(
    api, monkeypatch
):
    append_by(api, monkeypatch, lambda _: AsyncMock(return_value=logs.Appended(None, 0)))
    responses = await asyncio.gather(*(api.post(POST, json={"y": i}) for i in range(3)))
    assert [slug(response) for response in responses] == ["partition-full"] * 3


async def test_too_many_waiting(settings, worker, start):
    async with start(settings, max_waiting=3) as api:
        worker.pause()
        assert await taken_and_refused(api, worker, 5, 2) == "too-many-waiting"
        bulk = await api.post(MANY, json=[{"stream": f"s{i}"} for i in range(5)])
        assert sorted(item["status"] for item in bulk.json()) == [200] * 3 + [429] * 2


async def test_a_full_partition_takes_the_rows_that_fit(settings, worker, start):
    """Some wait already; of a row of several observations all are refused, or none.

    Another partition is not full.
    """
    async with start(settings, max_pending=10) as api:
        worker.pause()
        waits = [asyncio.create_task(api.post(POST, json={"y": i})) for i in range(3)]
        await appended(api, 3)
        before = shed("partition_full")
        items = [item for item in bulk_of(6) for _ in range(2)]
        request = asyncio.create_task(api.post(MANY, json=items + bulk_of(1, (P + 1) % 4)))
        await until_async(lambda: missing(api) == 3 + 3 + 1 or request.done())
        worker.running.set()
        *results, other = (await request).json()
        assert other["status"] == 200
        assert [item["status"] for item in results] == [200] * 6 + [429] * 6
        assert {item["type"].rpartition("/")[2] for item in results[6:]} == {"partition-full"}
        assert [item["stream"] for item in results] == [item["stream"] for item in items]
        assert shed("partition_full") == before + 3
        assert {(await request).status_code for request in waits} == {200}
        assert api.app.state.overload._all._waiting == 0
        assert statuses(await api.post(MANY, json=items[6:])) == [200] * 6


async def test_a_group_of_more_commands_than_may_wait_goes_alone(settings, worker, start):
    async with start(settings, max_waiting=3) as api:
        worker.pause()
        large = asyncio.create_task(api.post(MANY, json=bulk_of(5)))
        await until_async(lambda: missing(api) == 5)
        assert slug(await api.post(POST, json={"y": 1})) == "too-many-waiting"
        worker.running.set()
        assert statuses(await large) == [200] * 5


async def taken_and_refused(api, worker, count, refused):
    """Post to a worker that is away: so many are refused, at once, and alike; returns how."""
    requests = [asyncio.create_task(api.post(POST, json={"y": i})) for i in range(count)]
    await until_async(lambda: sum(request.done() for request in requests) == refused)
    refusals = [request.result() for request in requests if request.done()]
    worker.running.set()
    kept = [response.status_code for response in await asyncio.gather(*requests)]
    assert sorted(kept) == [200] * (count - refused) + [429] * refused
    assert {response.headers["retry-after"] for response in refusals} == {"1"}
    (why,) = {slug(response) for response in refusals}
    return why


def overloaded(api, monkeypatch, after=0):
    """Have the estimated wait be too long after some decisions."""
    decisions = []

    def admit(partition, now_s):
        decisions.append(partition)
        if len(decisions) > after:
            load_shedding.shed(WaitTooLong("the estimated wait is 2.2 s; nothing was accepted", 3))

    monkeypatch.setattr(api.app.state.overload, "admit", admit)


async def test_a_list_that_has_begun_is_not_refused(api, worker, monkeypatch):
    overloaded(api, monkeypatch, after=1)
    count = COMMAND_OBSERVATIONS + 100
    before = shed("wait")
    answers = await api.post(POST, json=[{"y": i} for i in range(count)])
    assert answers.status_code == 200
    assert [answer["seq"] for answer in answers.json()] == list(range(count))
    refused = await api.post(POST, json=[{"y": i} for i in range(count)])
    assert (refused.status_code, refused.json()["applied"]) == (429, 0)
    assert shed("wait") == before + 1


async def test_a_list_that_is_refused_between_its_parts_goes_on_by_its_key(
    api, worker, monkeypatch
):
    gateway_ = api.app.state.context.gateway
    submit = gateway_.submit

    async def once_full(command, *others):
        if command.first:
            monkeypatch.setattr(gateway_, "submit", submit)
            load_shedding.shed(PartitionFull("the queue of this stream's partition is full"))
        return await submit(command, *others)

    monkeypatch.setattr(gateway_, "submit", once_full)
    rows = [{"y": i} for i in range(COMMAND_OBSERVATIONS + 8)]
    refused = await api.post(POST, json=rows, headers=KEY)
    assert (refused.status_code, slug(refused)) == (429, "partition-full")
    assert refused.json()["applied"] == len(refused.json()["answers"]) == COMMAND_OBSERVATIONS
    answers = (await api.post(POST, json=rows, headers=KEY)).json()
    assert [answer["seq"] for answer in answers] == [*range(len(rows))]
    assert [answer["duplicate"] for answer in answers] == [True] * COMMAND_OBSERVATIONS + [
        False
    ] * 8


async def test_items_of_a_bulk_are_refused_by_partition(api, worker, monkeypatch):
    """Of four streams in two partitions; later items of refused streams are not attempted."""
    overloaded(api, monkeypatch, after=1)
    before = shed("wait")
    items = [{"stream": f"s{i % 4}", "y": i, "key": f"k{i}"} for i in range(12)]
    assert [partition_of(item["stream"], 4) for item in items[:4]] == [2, 0, 2, 0]
    answers = (await api.post(MANY, json=items)).json()
    later = [200, 424] * 2
    assert [answer["status"] for answer in answers] == [200, 429, 200, 429, *later, *later]
    assert answers[1]["type"].endswith("/wait-too-long")
    assert answers[1]["stream"] == "s1"
    assert shed("wait") == before + 1


async def test_what_a_request_submits_is_no_backlog_to_it(api, worker, monkeypatch):
    """Neither its other partitions, nor its later waves; to other requests it is one."""
    control = api.app.state.overload

    def admit(partition, now_s):
        if control._all._waiting:
            load_shedding.shed(WaitTooLong("the estimated wait is 2.2 s; nothing was accepted", 3))

    monkeypatch.setattr(control, "admit", admit)
    items = [{"stream": f"s{i % 40}", "y": i, "key": f"k{i}"} for i in range(120)]
    assert {partition_of(item["stream"], 4) for item in items} == {0, 1, 2, 3}
    assert statuses(await api.post(MANY, json=items)) == [200] * 120
    assert len(worker.commands) == 120
    worker.pause()
    request = asyncio.create_task(api.post(MANY, json=items[:40]))
    await until_async(lambda: missing(api) == 40)
    assert statuses(await api.post(MANY, json=items[40:])) == [429] * 40 + [424] * 40
    series = [({"__name__": f"x{i}"}, [(1.0, int(time.time() * 1000))]) for i in range(40)]
    write = version_2(*series)
    deferred = await api.post("/v1/prometheus/write", content=write, headers=V2)
    assert (deferred.status_code, deferred.json()["deferred"]) == (503, 40)
    worker.running.set()
    assert statuses(await request) == [200] * 40


async def test_what_is_estimated_is_what_waits(api, worker):
    control = api.app.state.overload
    worker.pause()
    requests = [asyncio.create_task(api.post(POST, json=[{"y": 1}] * 5)) for _ in range(3)]
    await until_async(lambda: control._all._waiting == 15)
    assert control._each[P]._waiting == 15
    gone = asyncio.create_task(api.post(POST, json={"y": 1}))
    await until_async(lambda: control._all._waiting == 16)
    gone.cancel()
    await asyncio.wait([gone])
    assert control._all._waiting == 15
    worker.running.set()
    await asyncio.gather(*requests)
    assert (await api.get("/v1/streams/nowhere/run-length")).status_code == 404
    assert control._all._waiting == control._each[P]._waiting == 0
    assert waiting(api) == {}


async def test_load_is_shed_before_memory_runs_out(api, worker, store):
    await api.post(POST, json={"y": 1})
    used = store.info("memory")["used_memory"]
    store.config_set("maxmemory", int(used / 0.95))
    await api.app.state.context.monitor.look()
    for response in (await api.post(POST, json={"y": 1}), await api.put("/v1/streams/s")):
        assert (response.status_code, slug(response)) == (429, "memory-short")
        assert response.headers["retry-after"] == "5"
    assert (await api.get("/v1/streams/s/run-length")).status_code == 200
    assert (await api.delete("/v1/streams/s")).status_code == 204
    # Used up before the monitor looks again: the store itself refuses.
    store.config_set("maxmemory", int(used * 0.5))
    api.app.state.context.monitor.memory_short = False
    response = await api.post(POST, json={"y": 1})
    assert (response.status_code, slug(response)) == (429, "memory-short")
    store.config_set("maxmemory", 0)
    await api.app.state.context.monitor.look()
    assert (await api.post(POST, json={"y": 1})).json()["seq"] == 0
