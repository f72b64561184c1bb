"""What comes by itself, on real processes: events of all streams, observations of one, webhooks."""

import signal
import threading
import time

import httpx
import numpy as np
import pytest

from service.runtime.embedded import running_url
from service.store import feed, keys
from service.store.connection import connect
from tests.e2e.calling import BYTES, KNOWN, ask, post
from tests.e2e.deployment import Load, create_streams
from tests.feeding import Consumer, Follower, by_stream
from tests.service.webhooks.conftest import Receiver
from tests.waiting import PATIENCE_S, until

STREAMS = 8
LEVELS = (0.0, 8.0, -8.0, 0.0)
EACH = 12


def steps(streams=STREAMS):
    rng = np.random.default_rng(11)
    return np.repeat(LEVELS, EACH) + rng.normal(size=(streams, EACH * len(LEVELS)))


def feed_of(redis_url, prefix, partitions=16):
    """Every state of every change of the streams with a prefix, by stream, in the log's order."""
    states_of = {}
    with connect(redis_url) as client:
        for p in range(partitions):
            for id_, fields in client.xrange(keys.feed(p)):
                raised = feed.entry_of(p, id_, fields).raised
                if raised.stream.startswith(prefix) and raised.event.kind == "change":
                    states = states_of.setdefault(raised.stream, [])
                    states.append((raised.event.id, raised.event.state))
    return states_of


class Restless(threading.Thread):
    """A reader that leaves after some messages and comes back, and outlives restarts of the API."""

    def __init__(self, reader, enough, messages=3):
        super().__init__(daemon=True)
        self.reader, self.enough, self.messages = reader, enough, messages
        self.connections = 0

    def run(self):
        while not self.enough():
            try:
                with self.reader.connected(timeout=3.0) as messages:
                    self.connections += 1
                    for _ in range(self.messages):
                        next(messages)
                        if self.enough():
                            return
            except (httpx.HTTPError, StopIteration):
                time.sleep(0.05)

    def wait(self):
        until(lambda: not self.is_alive(), lambda: self.reader.seen)


def test_each_event_comes_once_in_the_order_of_the_log_to_one_who_comes_and_goes(
    shared, http, prefix
):
    names = [f"{prefix}{i}" for i in range(4)]
    consumer = Consumer(shared.url, match=f'{{stream=~"{prefix}.*"}}', after="0")
    for name, labels in zip(names, steps(4), strict=True):
        ask(http, "PUT", name, 201, json=KNOWN | {"confirm_after": 4})
        post(http, name, labels.tolist())
    expected = feed_of(shared.store, prefix)
    assert sorted(expected) == names
    total = sum(map(len, expected.values()))
    assert total >= 2 * 2 * len(names)
    reader = Restless(consumer, lambda: len(consumer.seen) >= total)
    reader.start()
    reader.wait()
    assert reader.connections > 3
    assert by_stream(consumer.seen) == expected
    assert consumer.gaps == []


def test_a_stream_that_ends_or_is_replaced_is_told_and_is_not_taken_for_its_successor(
    url, http, prefix
):
    name = f"{prefix}mortal"
    ask(http, "PUT", name, 201, json=KNOWN)
    post(http, name, [1.0, 2.0])
    snapshot = http.get(f"/v1/streams/{name}/snapshot").content
    follower = Follower(url, name, after="0")
    with follower.connected() as messages:
        until(lambda: next(messages) and follower.seen)
        ask(http, "PUT", f"{name}/snapshot?replace=true", content=snapshot, headers=BYTES)
        list(messages)
    assert follower.ends == ["replaced"]
    follower = Follower(url, name, after="0")
    with follower.connected() as messages:
        until(lambda: next(messages) and follower.seen)
        ask(http, "DELETE", name, 204)
        list(messages)
    assert follower.ends == ["deleted"]
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        follower.read(1)
    post(http, name, [5.0, 6.0, 7.0])
    with pytest.raises(httpx.HTTPStatusError, match="409"):
        follower.read(1)
    anew = Follower(url, name, after="1")
    anew.read(1)
    assert anew.seen == [(2, 7.0)]


def test_observations_that_are_not_retained_are_announced_as_a_gap(url, http, prefix):
    name = f"{prefix}short"
    ask(http, "PUT", name, 201, json=KNOWN | {"history": 64})
    post(http, name, [float(i % 9) for i in range(400)])
    follower = Follower(url, name)
    follower.last = "2@1"
    follower.read(1)
    ((start, end),) = follower.gaps
    assert (start, follower.seen) == (3, [(end, float(end % 9))])
    # Whole chunks are kept, until a checkpoint: the list may have come in several commits.
    assert 400 - 64 - 64 - 64 < end <= 400 - 64
    follower.read(400 - end - 1)
    assert [seq for seq, _ in follower.seen] == list(range(end, 400))
    again = Follower(url, name)
    again.last = f"{end - 1}@1"  # the id of a gap: it was announced
    again.read(1)
    assert (again.gaps, again.seen) == ([], [(end, float(end % 9))])


@pytest.mark.slow
def test_consumers_and_followers_see_all_once_whatever_restarts(separate, processes):
    """A worker is killed, the API is stopped, or killed, and started again; readers come and go."""
    create_streams(separate, "load", STREAMS)
    consumer = Consumer(separate, after="0")
    followers = [Follower(separate, f"load-{i}", after="-1", detail="full") for i in range(STREAMS)]
    load = Load(separate, steps(), 80, retry=True)
    length = load.labels.shape[1]
    expected = {}
    readers = [
        Restless(each, lambda each=each: len(each.seen) >= length, messages=20)
        for each in followers
    ]
    readers.append(
        Restless(
            consumer, lambda: expected and len(consumer.seen) >= sum(map(len, expected.values()))
        )
    )
    for reader in readers:
        reader.start()

    def restart_api(end):
        end("api")
        processes.start("api", "api", "--port", separate.rpartition(":")[2])

    load.run_with(
        (0.2, lambda: processes.kill("worker-a")),
        (0.4, lambda: restart_api(processes.stop)),
        (0.7, lambda: restart_api(processes.kill)),
    )
    assert load.failures == []
    expected |= feed_of(processes.redis_url, "load")
    for reader in readers:
        reader.wait()
        assert reader.connections > 2
    assert by_stream(consumer.seen) == expected
    assert len(expected) == STREAMS
    assert consumer.gaps == []
    for i, follower in enumerate(followers):
        assert follower.seen == list(enumerate(load.labels[i])), i
        assert (follower.gaps, follower.ends) == ([], [])
        scores = [each["log_score"] for each in follower.data]
        assert scores == [load.answers[i, at]["log_score"] for at in range(length)]
    create_streams(separate, "calm", STREAMS)  # to which nothing happens
    with httpx.Client(base_url=separate, timeout=PATIENCE_S) as client:
        for i, row in enumerate(load.labels):
            post(client, f"calm-{i}", row.tolist())
    calm = feed_of(processes.redis_url, "calm")
    assert {name.replace("calm", "load"): states for name, states in calm.items()} == expected


@pytest.mark.slow
def test_one_machine_delivers_events_to_webhooks_and_stops_cleanly(serve, processes, tmp_path):
    hooks = tmp_path / "hooks.toml"
    processes.environment["PAGER"] = "whsec_" + "A" * 44
    with Receiver() as receiver:
        hooks.write_text(
            "collect_s = 0\n"
            f'[[hook]]\nname = "pager"\nurl = "{receiver.url}/h"\nsecret_env = "PAGER"\n'
        )
        options = ["--webhooks-file", str(hooks), "--webhook-hosts", "http://127.0.0.1"]
        url = serve(*options)
        with connect(str(running_url(tmp_path / "data"))) as client:
            # Events that are accepted before a hook was first seen are not for it.
            until(lambda: client.hexists(keys.WEBHOOKS, "pager"))
        create_streams(url, "s", 2)
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
            for i, row in enumerate(steps(2)):
                post(client, f"s-{i}", row.tolist())
            confirmed = {
                (f"s-{i}", event["id"])
                for i in range(2)
                for event in ask(client, "GET", f"s-{i}/changepoints")["events"]
                if event["state"] == "confirmed"
            }
            assert len(confirmed) >= 4
            until(lambda: set(receiver.got("/h")) >= confirmed)
            delivered = 'moca_webhook_delivered_total{hook="pager"}'
            until(lambda: delivered in client.get("/metrics").text)
        processes.signal("serve", signal.SIGTERM)
        assert processes.running["serve"].wait(PATIENCE_S) == 0
        assert "did not exit" not in processes.log_of("serve")
