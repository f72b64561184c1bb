"""Following observations on real workers: restarts, other lives, what is retained, late labels."""

import asyncio
import signal
import threading
import time

import httpx
import pytest

from tests.e2e.deployment import Load, create_streams, series
from tests.feeding import Follower
from tests.service.webhooks.test_delivery import until

STREAMS, EACH = 8, 60


class Restless(threading.Thread):
    """One that follows a stream, leaves and comes back, and outlives restarts of the API."""

    def __init__(self, url, stream):
        super().__init__()
        self.follower, self.connections = Follower(url, stream, after="-1"), 0

    def run(self):
        give_up = time.monotonic() + 90
        while len(self.follower.seen) < EACH:
            assert time.monotonic() < give_up
            try:
                with self.follower.connected(timeout=3.0) as messages:
                    self.connections += 1
                    leave = time.monotonic() + 0.7
                    while time.monotonic() < leave and len(self.follower.seen) < EACH:
                        next(messages)
            except (httpx.HTTPError, StopIteration):
                time.sleep(0.05)


@pytest.mark.slow
def test_all_is_seen_once_whatever_restarts(separate, processes):
    """A worker is killed, the API is killed and started again, and those who follow come and go."""
    create_streams(separate, "load", STREAMS)
    following = [Restless(separate, f"load-{i}") for i in range(STREAMS)]
    for thread in following:
        thread.start()
    load = Load(separate, series(STREAMS, EACH), 60, retry=True)

    def kill_api():
        processes.kill("api")
        processes.start("api", "api", "--port", separate.rpartition(":")[2])

    async def later(seconds, step, *arguments):
        await asyncio.sleep(seconds)
        await asyncio.to_thread(step, *arguments)

    async def run():
        kill = later(2.0, processes.kill, "worker-a")
        await asyncio.gather(load.run(), kill, later(4.0, kill_api))

    asyncio.run(run())
    for thread in following:
        thread.join()
    assert load.failures == []
    for i, thread in enumerate(following):
        assert thread.follower.seen == list(enumerate(load.labels[i])), i
        assert thread.follower.gaps == []
        assert thread.follower.ends == []
        scores = [each["log_score"] for each in thread.follower.data]
        assert scores == [load.answers[i, at]["log_score"] for at in range(EACH)]
    assert sum(thread.connections for thread in following) > 3 * STREAMS


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    from tests.e2e.docs.conftest import running

    with running(tmp_path_factory.mktemp("live")) as (_, url):
        yield url


@pytest.fixture
def client(service):
    with httpx.Client(base_url=service, timeout=60) as made:
        yield made


def post(client, stream, labels):
    for first in range(0, len(labels), 32):
        body = [each if isinstance(each, dict) else {"y": each} for each in labels[first:][:32]]
        response = client.post(f"/v1/streams/{stream}/observations", json=body)
        assert response.status_code == 200, response.text


def begun(follower, client, stream, labels):
    """Connect, and see what is posted then."""
    post(client, stream, labels)
    follower.read(len(labels))


def test_the_end_of_a_stream_is_said(service, client):
    post(client, "mortal", [1.0, 2.0])
    follower = Follower(service, "mortal", after="0")
    with follower.connected() as messages:
        while not follower.seen:
            next(messages)
        client.delete("/v1/streams/mortal")
        list(messages)
    assert follower.ends == ["deleted"]
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        follower.read(1)
    # Another of its name, longer than the first was: nobody takes the one for the other.
    post(client, "mortal", [5.0, 6.0, 7.0])
    with pytest.raises(httpx.HTTPStatusError, match="409"):
        follower.read(1)
    anew = Follower(service, "mortal", after="1")
    anew.read(1)
    assert anew.seen == [(2, 7.0)]


def test_one_put_in_its_place_is_another(service, client):
    post(client, "kept", [1.0, 2.0, 3.0])
    blob = client.get("/v1/streams/kept/snapshot").content
    follower = Follower(service, "kept")
    with follower.connected() as messages:
        next(messages)
        kind = {"Content-Type": "application/octet-stream"}
        path = "/v1/streams/kept/snapshot?replace=true"
        assert client.put(path, content=blob, headers=kind).is_success
        list(messages)
    assert follower.ends == ["replaced"]


def test_one_that_expires_has_ended(service, client):
    client.put("/v1/streams/brief", json={"ttl": 1})
    follower = Follower(service, "brief")
    with follower.connected(timeout=40.0) as messages:
        list(messages)
    assert follower.ends == ["deleted"]


def test_what_is_not_retained_is_told(service, client):
    client.put("/v1/streams/short", json={"model": "gaussian", "history": 64})
    follower = Follower(service, "short")
    post(client, "short", [0.0])
    follower.last = "0@1"
    begun(follower, client, "short", [1.0, 2.0])
    post(client, "short", [float(i) for i in range(3, 400)])
    follower.read(1)
    ((start, end),) = follower.gaps
    assert (start, follower.seen[2]) == (3, (end, float(end)))
    assert 400 - 64 - 64 <= end <= 400 - 64  # whole chunks are kept
    follower.read(400 - end - 1)
    assert [seq for seq, _ in follower.seen[2:]] == list(range(end, 400))
    # The id of a gap stands for having been told.
    again = Follower(service, "short")
    again.last = f"{end - 1}@1"
    again.read(1)
    assert (again.gaps, again.seen) == ([], [(end, float(end))])
    everything = Follower(service, "short", after="-1")
    everything.read(64)
    assert everything.gaps == []
    assert [seq for seq, _ in everything.seen] == list(range(336, 400))


def test_the_summary_comes_where_it_is_wanted(service, client):
    client.put("/v1/streams/state", json={"model": "gaussian", "location": 0, "scale": 1})
    follower = Follower(service, "state", state="true")
    with follower.connected() as messages:
        while not follower.states:
            next(messages)
        assert follower.states == [client.get("/v1/streams/state").json()]
        client.put("/v1/streams/state", json={"outlier_rate": 0.03})
        while follower.states[-1]["settings"]["outlier_rate"] != 0.03:
            next(messages)
        post(client, "state", [0.1, 0.2] * 10 + [9.0, 9.1] * 10)
        while follower.states[-1]["seq"] < 40:
            next(messages)
        assert len(follower.seen) == 40  # first what it sums up
        assert follower.states[-1] == client.get("/v1/streams/state").json()
        assert follower.states[-1]["last_event"]["state"] == "confirmed"


def test_labels_to_come_hold_up_what_is_behind_them(service, client):
    client.put("/v1/streams/late", json={"model": "linear"})
    post(client, "late", [{"x": [1.0], "y": 1.0}])
    follower = Follower(service, "late", after="0")
    with follower.connected() as messages:
        post(client, "late", [{"x": [2.0], "pending": True}, {"x": [3.0], "y": 3.0}])
        # A position behind the awaited label is one that the stream has given out.
        other = Follower(service, "late", after="2")
        with other.connected() as others:
            next(others)
            time.sleep(0.5)
            post(client, "late", [{"seq": 1, "y": 2.0}])
            while len(follower.seen) < 2:
                next(messages)
            post(client, "late", [{"x": [4.0], "y": 4.0}])
            while not other.seen:
                next(others)
    assert follower.seen[:2] == [(1, 2.0), (2, 3.0)]
    assert other.seen == [(3, 4.0)]


def test_a_clean_stop_of_everything_is_no_end(serve, processes):
    url = serve()
    with httpx.Client(base_url=url, timeout=60) as client:
        post(client, "a", [0.0])
    follower = Follower(url, "a")
    with follower.connected() as messages:
        next(messages)
        processes.signal("serve", signal.SIGTERM)
        list(messages)
    assert processes.running["serve"].wait(30) == 0
    assert follower.ends == []
    assert "did not exit" not in processes.log_of("serve")
    url = serve()
    with httpx.Client(base_url=url, timeout=60) as client:
        post(client, "a", [1.0])
    follower.read(1)
    assert follower.seen == [(1, 1.0)]
    until(lambda: "Traceback" not in processes.log_of("serve"))
