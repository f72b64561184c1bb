"""The whole way of an event: from an observation over HTTP to those who wait for it."""

import asyncio
import signal
import threading
import time

import httpx
import numpy as np
import pytest

from service.runtime.embedded import running_url
from service.store import event_log, keys
from service.store.connection import connect
from tests.e2e.deployment import Load, wait_ready
from tests.feeding import Consumer, by_stream
from tests.ports import free_port
from tests.service.webhooks.test_delivery import SECRET, Receiver, until

STREAMS, EACH, LEVELS = 20, 12, (0.0, 8.0, -8.0, 0.0, 8.0, -8.0)
SETTINGS = {"model": "gaussian", "location": 0.0, "scale": 1.0, "hazard": 0.02, "confirm_after": 4}


def labels(streams=STREAMS):
    rng = np.random.default_rng(11)
    return np.repeat(LEVELS, EACH) + rng.normal(size=(streams, EACH * len(LEVELS)))


def create(url, prefix, streams=STREAMS):
    with httpx.Client(base_url=url, timeout=60) as client:
        for i in range(streams):
            assert client.put(f"/v1/streams/{prefix}-{i}", json=SETTINGS).status_code == 201


def feed_of(redis_url, prefix, partitions=16):
    """Every change of the streams with a prefix: id, state and start, by stream, in order."""
    found = {}
    with connect(redis_url) as client:
        for p in range(partitions):
            for id_, fields in client.xrange(keys.feed(p)):
                raised = event_log.entry_of(p, id_, fields).raised
                if raised.stream.startswith(prefix) and raised.event.kind == "change":
                    event = raised.event
                    state = (event.id, event.state, event.start, event.confirmed_at)
                    found.setdefault(raised.stream.removeprefix(prefix), []).append(state)
    return found


class Restless(threading.Thread):
    """A consumer that leaves and comes back, and outlives restarts of the API."""

    def __init__(self, url, **query):
        super().__init__()
        self.consumer, self.connections = Consumer(url, **query), 0
        self.first = 0.0
        self.enough = lambda: False

    def run(self):
        give_up = time.monotonic() + 90
        while not self.enough():
            assert time.monotonic() < give_up
            try:
                with self.consumer.connected(timeout=3.0) as messages:
                    self.connections += 1
                    leave = time.monotonic() + 0.6
                    while time.monotonic() < leave:
                        next(messages)
            except (httpx.HTTPError, StopIteration):
                time.sleep(0.05)


async def meanwhile(load, *steps):
    async def later(seconds, step):
        await asyncio.sleep(seconds)
        await asyncio.to_thread(step)

    await asyncio.gather(load.run(), *(later(*each) for each in steps))


@pytest.mark.slow
def test_a_consumer_sees_each_event_once_whatever_restarts(separate, processes):
    """A worker is killed, the API is started again, and the consumer comes and goes."""
    create(separate, "load")
    restless = Restless(separate)
    restless.start()
    until(lambda: restless.consumer.last is not None)
    load = Load(separate, labels(), 250, retry=True)

    def restart_api():
        processes.signal("api", signal.SIGTERM)
        processes.running.pop("api").wait(20)
        processes.start("api", "api", "--port", separate.rpartition(":")[2])

    kill = (1.0, lambda: processes.kill("worker-a"))
    asyncio.run(meanwhile(load, kill, (3.0, restart_api)))
    assert load.failures == []
    expected = {
        stream: [(id_, state) for id_, state, _, _ in states]
        for stream, states in feed_of(processes.redis_url, "load").items()
    }
    total = sum(map(len, expected.values()))
    seen = restless.consumer.seen
    restless.enough = lambda: len(seen) >= total and restless.connections > 10
    restless.join()
    got = {stream.removeprefix("load"): states for stream, states in by_stream(seen).items()}
    assert got == expected
    assert len(expected) == STREAMS
    assert total >= 2 * (len(LEVELS) - 1) * STREAMS * 0.8
    assert restless.consumer.gaps == []
    check_as_calm(separate, processes.redis_url, load)


def check_as_calm(url, redis_url, load):
    """The feed has what streams raise that nothing ever happened to."""
    create(url, "calm")
    with httpx.Client(base_url=url, timeout=60) as client:
        for i, row in enumerate(load.labels):
            body = [{"y": float(y)} for y in row]
            assert client.post(f"/v1/streams/calm-{i}/observations", json=body).status_code == 200
        ends = client.get("/v1/streams/calm-3/changepoints").json()["events"]
    calm, tried = feed_of(redis_url, "calm"), feed_of(redis_url, "load")
    assert tried == calm
    last = {id_: (id_, state, start, at) for id_, state, start, at in calm["-3"]}
    assert [(e["id"], e["state"], e["start"], e["confirmed_at"]) for e in ends] == list(
        last.values()
    )


def test_serve_delivers_to_webhooks(processes, tmp_path):
    """One machine: `moca serve` with a file of webhooks, killed child and all."""
    receiver, port = Receiver(), free_port()
    hooks = tmp_path / "hooks.toml"
    hooks.write_text(f'[[hook]]\nname = "pager"\nurl = "{receiver.url}/h"\nsecret_env = "PAGER"\n')
    processes.environment["PAGER"] = SECRET
    options = ["--webhooks-file", str(hooks), "--webhook-hosts", "http://127.0.0.1"]
    data = tmp_path / "data"
    try:
        processes.start("serve", "serve", "--data-dir", str(data), "--port", str(port), *options)
        url = f"http://127.0.0.1:{port}"
        wait_ready(url)
        with connect(running_url(data)) as client:
            # Events that are accepted before a hook was first seen are not for it.
            until(lambda: client.hexists(keys.WEBHOOKS, "pager"))
        create(url, "s", 4)
        with httpx.Client(base_url=url, timeout=60) as client:
            for i, row in enumerate(labels(4)):
                body = [{"y": float(y)} for y in row]
                client.post(f"/v1/streams/s-{i}/observations", json=body).raise_for_status()
            confirmed = [
                (f"s-{i}", e["id"])
                for i in range(4)
                for e in client.get(f"/v1/streams/s-{i}/changepoints").json()["events"]
                if e["state"] == "confirmed"
            ]
            until(lambda: set(receiver.got("/h")) >= set(confirmed))
            assert len(confirmed) > 12
            exposed = client.get("/metrics").text
        assert 'moca_webhook_delivered_total{hook="pager"}' in exposed
        processes.signal("serve", signal.SIGTERM)
        assert processes.running["serve"].wait(30) == 0
        assert "did not exit" not in processes.log_of("serve")
    finally:
        processes.stop_all()
        receiver.stop()
