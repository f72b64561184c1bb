"""Following observations: bounds, keys, a store or worker that is away, and what is damaged."""

import threading

import httpx
import pytest

from moca_client import Client as MocaClient
from moca_client.errors import Problem
from service.api import sse
from service.store import keys
from service.store.api_keys import Keyring
from service.store.connection import connect
from tests.feeding import Follower
from tests.service.api.conftest import make_key, slug
from tests.waiting import PATIENCE_S, until

PATH = "/v1/streams/a/observations/live"
DETAILS = {
    "hazard",
    "outlier_rate",
    "log_score",
    "changepoint_probability",
    "recent_change_probability",
    "run_length",
}


@pytest.fixture
def start(served, monkeypatch):
    """Serve the application, with heartbeats and looks that do not let one wait."""
    monkeypatch.setattr(sse, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(sse, "INTERVAL_S", 0.02)
    return served


@pytest.fixture
def api(start):
    return start()


def post(api, labels, stream="a", token=None):
    with api.client(token) as client:
        body = [{"y": y} for y in labels]
        response = client.post(f"/v1/streams/{stream}/observations", json=body)
        assert response.status_code == 200, response.text


def refused(url, **asked):
    """The answer to a request that is refused: one that is not has no end."""
    with httpx.stream("GET", url, **asked) as response:
        assert response.status_code != 200
        response.read()
    return response


def test_what_comes_is_sent_in_order_and_once(api):
    post(api, [0.0])
    follower = Follower(api.url, "a")
    with follower.connected() as messages:
        next(messages)
        writing = threading.Thread(target=lambda: [post(api, [i, i + 0.5]) for i in range(1, 60)])
        writing.start()
        while len(follower.seen) < 118:
            next(messages)
        writing.join()
    assert [seq for seq, _ in follower.seen] == list(range(1, 119))
    assert [y for _, y in follower.seen[:4]] == [1, 1.5, 2, 2.5]
    assert follower.gaps == []
    with api.client() as client:
        pages = client.get("/v1/streams/a/history", params={"start": 1, "limit": 1000}).json()
    assert follower.data == pages["observations"]


def test_details_are_sent_to_those_who_ask_for_them(api):
    post(api, range(40))
    plain = Follower(api.url, "a", after="-1")
    full = Follower(api.url, "a", after="-1", detail="full")
    plain.read(40)
    full.read(40)
    with api.client() as client:
        path = "/v1/streams/a/history"
        assert plain.data == client.get(path).json()["observations"]
        page = client.get(path, params={"detail": "full"}).json()["observations"]
    assert full.data == page
    for small, large in zip(plain.data, page, strict=True):
        assert small.keys() < large.keys()
        assert large.keys() - small.keys() <= DETAILS
        assert {name: large[name] for name in small if name != "predictive"} == {
            name: value for name, value in small.items() if name != "predictive"
        }


def test_every_id_resumes_right_after_its_message(api):
    post(api, range(200))
    whole = Follower(api.url, "a", after="-1")
    ids = []
    with whole.connected() as messages:
        while len(ids) < 200:
            message = next(messages)
            ids += [message.id] if message.event else []
    assert [seq for seq, _ in whole.seen] == list(range(200))
    for at in (0, 63, 198):
        # A browser connects again to the same address, with the header: that is the later one.
        by_header, by_query = (
            Follower(api.url, "a", after="-1"),
            Follower(api.url, "a", after=ids[at]),
        )
        by_header.last = ids[at]
        by_position = Follower(api.url, "a", after=str(at))
        for follower in (by_header, by_query, by_position):
            follower.read(199 - at)
            assert follower.seen == whole.seen[at + 1 :]
    nothing_yet = Follower(api.url, "a")
    with nothing_yet.connected() as messages:
        next(messages)
    post(api, [2.0, 3.0])
    nothing_yet.read(2)
    assert nothing_yet.seen == [(200, 2.0), (201, 3.0)]


def test_a_place_that_there_is_not_is_refused(api):
    post(api, [0.0])
    for place in ("1", "7@1", "0@2"):  # an observation, or a life
        response = refused(f"{api.url}{PATH}", params={"after": place})
        assert (response.status_code, slug(response)) == (409, "stream-replaced"), place
        assert response.json()["seq"] == 1


def test_many_who_follow_cost_one_look(start, settings, monkeypatch):
    """Ten who follow one stream: the store is asked as often as for one."""
    monkeypatch.setattr(sse, "INTERVAL_S", 0.1)
    api = start()
    post(api, range(5))
    at_once, changed = [], threading.Event()
    heads = api.app.state.context.observation_hub.store.heads

    def counted(streams):
        at_once.append(len(list(streams)))
        changed.set()
        return heads(streams)

    monkeypatch.setattr(api.app.state.context.observation_hub.store, "heads", counted)
    followers = [Follower(api.url, "a") for _ in range(10)]
    threads = [threading.Thread(target=each.read, args=(1,)) for each in followers]
    for thread in threads:
        thread.start()
    until(lambda: api.metric('moca_subscribers{kind="observations"}') == 10)
    at_once.clear()
    until(lambda: len(at_once) > 3)
    post(api, [9.0])
    for thread in threads:
        thread.join()
    assert set(at_once) == {1}
    assert [each.seen for each in followers] == [[(5, 9.0)]] * 10


def test_a_quiet_worker_means_heartbeats_and_nothing_is_lost(api, worker):
    post(api, [0.0])
    follower = Follower(api.url, "a")
    with follower.connected() as messages:
        next(messages)
        worker.pause()
        late = threading.Thread(target=post, args=(api, [1.0, 2.0]))
        late.start()
        beats = [next(messages) for _ in range(3)]
        assert all(each.comment and each.id is None for each in beats)
        worker.running.set()
        while len(follower.seen) < 2:
            next(messages)
        late.join()
    assert follower.seen == [(1, 1.0), (2, 2.0)]


def test_a_lost_connection_to_the_store_loses_nothing(api, settings):
    post(api, [0.0])
    follower = Follower(api.url, "a")

    def posted(i):
        with api.client() as http:
            response = http.post("/v1/streams/a/observations", json={"y": i, "seq": i})
        return response.status_code in (200, 409)

    with follower.connected() as messages, connect(settings.redis_url) as client:
        next(messages)
        for i in range(1, 6):
            client.client_kill_filter(_type="normal", skipme=True)
            until(lambda i=i: posted(i))
        try:
            while len(follower.seen) < 5:
                next(messages)
        except StopIteration:  # the page that was being read ended with its connection
            follower.read(5 - len(follower.seen))
    assert follower.seen == [(i, i) for i in range(1, 6)]


@pytest.mark.parametrize("path", [PATH, "/v1/events"])
def test_a_revoked_key_ends_its_connection_alone(start, settings, path):
    tokens = {name: make_key(settings.redis_url, name, "read", "write") for name in ("a", "b")}
    api = start(key_cache_s=0.1)
    post(api, [0.0], token=tokens["a"])
    headers = {name: {"Authorization": f"Bearer {token}"} for name, token in tokens.items()}
    with (
        httpx.stream("GET", f"{api.url}{path}", headers=headers["a"], timeout=PATIENCE_S) as one,
        httpx.stream("GET", f"{api.url}{path}", headers=headers["b"], timeout=PATIENCE_S) as two,
    ):
        lines = one.iter_lines(), two.iter_lines()
        assert all(next(each).startswith("retry") for each in lines)
        with connect(settings.redis_url) as store:
            Keyring(store).revoke("a")
        for _ in lines[0]:  # to a clean end: one that is cut raises, one that goes on times out
            pass
        assert [next(lines[1]) for _ in range(12)]
    assert refused(f"{api.url}{path}", headers=headers["a"]).status_code == 401


def test_a_head_that_cannot_be_read_ends_its_connections_only(api, settings):
    post(api, [0.0])
    post(api, [0.0], "b")
    follower, other = Follower(api.url, "a"), Follower(api.url, "b")
    with follower.connected() as messages, other.connected() as others:
        next(messages)
        with connect(settings.redis_url) as store:
            p = keys.partition_of("a", settings.partitions)
            store.hset(keys.heads(p), keys.settled_field("a"), b"nonsense")
        list(messages)
        assert refused(f"{api.url}{PATH}").status_code == 500
        post(api, [1.0], "b")
        while not other.seen:
            next(others)
    assert other.seen == [(1, 1.0)]


def test_an_observation_that_cannot_be_read_is_said_to_who_comes_back_for_it(api, settings):
    post(api, range(40))
    with connect(settings.redis_url) as store:
        p = keys.partition_of("a", settings.partitions)
        blob = store.lindex(keys.tail(p, "a"), 35)
        store.lset(keys.tail(p, "a"), 35, blob[:-9] + bytes([blob[-9] ^ 4]) + blob[-8:])
    follower = Follower(api.url, "a", after="-1")
    with follower.connected() as messages:
        list(messages)
    assert [seq for seq, _ in follower.seen] == list(range(32))
    with MocaClient(api.url) as client, pytest.raises(Problem) as raised:
        list(client.follow("a", after=follower.last, retry_for_s=None))
    assert (raised.value.status, raised.value.type) == (500, "corrupt-state")
    until(lambda: api.metric('moca_subscribers{kind="observations"}') == 0)
    post(api, [40.0])
    follower = Follower(api.url, "a", after="39")
    follower.read(1)
    assert follower.seen == [(40, 40.0)]
