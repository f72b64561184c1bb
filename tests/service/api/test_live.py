"""Following observations: bounds, keys, a store or worker that is away, the end of the process."""

import signal
import threading
import time

import httpx
import pytest

from service.client import Client as MocaClient
from service.client.errors import Problem
from service.store import keys
from service.store.api_keys import Keyring
from service.store.connection import connect
from tests.feeding import Follower
from tests.service.api.conftest import api_of_its_own
from tests.service.api.real import make_key
from tests.service.api.test_events import metric, open_and_stall

PATH = "/v1/streams/a/observations/live"
QUICK = {"service.api.routes.subscriptions.HEARTBEAT_S": 0.2}


def post(api, labels, stream="a", token=None):
    with api.client(token) as client:
        body = [{"y": y} for y in labels]
        response = client.post(f"/v1/streams/{stream}/observations", json=body)
        assert response.status_code == 200, response.text


def until(holds, within_s=10.0):
    give_up = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < give_up, "it did not come to hold"
        time.sleep(0.02)


def to_the_end(messages, within_s=5.0):
    """Read to a clean end, which comes in time: one that is cut raises."""
    give_up = time.monotonic() + within_s
    for _ in messages:
        assert time.monotonic() < give_up, "it goes on"


def refused(url, **asked):
    """The answer to a request that is refused: one that is not has no end."""
    with httpx.stream("GET", url, **asked) as response:
        assert response.status_code != 200
        response.read()
    return response


CONSTANTS = QUICK | {"service.api.sse.observation_hub.INTERVAL_S": 0.05}


@pytest.fixture
def api(real_api):
    return real_api(CONSTANTS)


@pytest.fixture(scope="module")
def kept_api(tmp_path_factory):
    with api_of_its_own(tmp_path_factory.mktemp("api"), CONSTANTS) as found:
        yield found


@pytest.fixture
def used(kept_api):
    """One that other tests called before, without the stream."""
    with kept_api.client() as client:
        client.delete("/v1/streams/a")
    return kept_api


def test_what_comes_is_sent_in_order_and_once(used):
    post(used, [0.0])
    follower = Follower(used.url, "a")
    with follower.connected() as messages:
        next(messages)
        writing = threading.Thread(target=lambda: [post(used, [i, i + 0.5]) for i in range(1, 60)])
        writing.start()
        while len(follower.seen) < 118:
            next(messages)
        writing.join()
    assert [seq for seq, _ in follower.seen] == list(range(1, 119))
    assert [y for _, y in follower.seen[:4]] == [1, 1.5, 2, 2.5]
    assert follower.gaps == []
    with used.client() as client:
        pages = client.get("/v1/streams/a/history", params={"start": 1, "limit": 1000}).json()
    assert follower.data == pages["observations"]


def test_every_id_resumes_right_after_its_message(used):
    post(used, range(200))
    whole = Follower(used.url, "a", after="-1")
    ids = []
    with whole.connected() as messages:
        while len(ids) < 200:
            message = next(messages)
            ids += [message.id] if message.event else []
    assert [seq for seq, _ in whole.seen] == list(range(200))
    for at in (0, 1, 63, 130, 198):
        by_header, by_query = Follower(used.url, "a"), Follower(used.url, "a", after=ids[at])
        by_header.last = ids[at]
        by_position = Follower(used.url, "a", after=str(at))
        for follower in (by_header, by_query, by_position):
            follower.read(199 - at)
            assert follower.seen == whole.seen[at + 1 :]
    both = Follower(used.url, "a", after="-1")
    both.last = ids[198]
    both.read(1)
    assert both.seen == whole.seen[199:]


def test_one_that_had_nothing_yet_resumes_too(used):
    post(used, [0.0, 1.0])
    follower = Follower(used.url, "a")
    with follower.connected() as messages:
        next(messages)
    post(used, [2.0, 3.0])
    follower.read(2)
    assert follower.seen == [(2, 2.0), (3, 3.0)]


@pytest.mark.parametrize("where", ["header", "query"])
def test_bad_places_are_refused_by_name(used, where):
    post(used, [0.0])
    for place in ("x", "-2", "1@", "@1", "1@x", "1.5", "9" * 17, "é", "1@1@1", "٣"):
        raw = place.encode()
        given = {"headers": {b"Last-Event-ID": raw}} if where == "header" else {}
        params = {"after": place} if where == "query" else {}
        response = refused(f"{used.url}{PATH}", params=params, **given)
        assert response.status_code == 422, place
        (error,) = response.json()["errors"]
        assert error["loc"] == ("header.last-event-id" if where == "header" else "query.after")
    for name, value in (("state", "perhaps"), ("start", "0")):
        response = refused(f"{used.url}{PATH}", params={name: value})
        assert response.status_code == 422
        assert response.json()["errors"][0]["loc"] == f"query.{name}"
    for place in ("1", "7@1", "0@2"):  # an observation, or a life, that there is not
        response = refused(f"{used.url}{PATH}", params={"after": place})
        assert response.status_code == 409, place
        assert response.json()["type"].endswith("/stream-replaced")
        assert response.json()["seq"] == 1
    gone = refused(f"{used.url}/v1/streams/nobody/observations/live")
    assert gone.status_code == 404
    assert httpx.post(f"{used.url}{PATH}", json={}).status_code == 405


def test_many_who_follow_cost_one_look(api, settings):
    """Ten who follow one stream: the store is asked as often as for one."""
    post(api, range(5))

    def asked(followers):
        threads = [threading.Thread(target=f.read, args=(1, 20.0)) for f in followers if not f.last]
        for thread in threads:
            thread.start()
        until(lambda: metric(api.url, "moca_live_streams") == len(followers))
        with connect(settings.redis_url) as client:
            before = client.info("commandstats")["cmdstat_hmget"]["calls"]
            time.sleep(1.0)
            found = client.info("commandstats")["cmdstat_hmget"]["calls"] - before
        post(api, [9.0])
        for thread in threads:
            thread.join()
        until(lambda: metric(api.url, "moca_live_streams") == 0)
        return found

    one = asked([Follower(api.url, "a")])
    ten = asked([Follower(api.url, "a") for _ in range(10)])
    nobody = asked([])
    assert 0 < ten < 3 * one  # not ten times as often; the second is never quite one
    assert nobody < one / 2


def test_connections_are_bounded(real_api):
    api = real_api(max_live_streams=2)
    post(api, [0.0])
    first, second = Follower(api.url, "a"), Follower(api.url, "a")
    with first.connected() as one:
        next(one)
        with second.connected() as two:
            next(two)
            response = refused(f"{api.url}{PATH}")
            assert response.status_code == 429
            assert response.json()["type"].endswith("/too-many-event-streams")
            assert "live-observation" in response.json()["detail"]
            assert int(response.headers["retry-after"]) > 0
        until(lambda: metric(api.url, "moca_live_streams") == 1)
        with second.connected() as two:
            next(two)


def test_a_quiet_worker_means_heartbeats_and_nothing_is_lost(api, worker):
    post(api, [0.0])
    follower = Follower(api.url, "a")
    with follower.connected() as messages:
        next(messages)
        worker.running.clear()
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
    with follower.connected() as messages, connect(settings.redis_url) as client:
        next(messages)
        for i in range(1, 6):
            client.client_kill_filter(_type="normal", skipme=True)
            with api.client() as http:
                for _ in range(50):
                    response = http.post("/v1/streams/a/observations", json={"y": i, "seq": i})
                    if response.status_code in (200, 409):
                        break
                    time.sleep(0.1)
        try:
            while len(follower.seen) < 5:
                next(messages)
        except StopIteration:  # the page that was being read ended with its connection
            follower.read(5 - len(follower.seen))
    assert follower.seen == [(i, i) for i in range(1, 6)]


def test_a_consumer_that_takes_nothing_is_disconnected(real_api):
    constants = {"service.api.routes.subscriptions.SEND_TIMEOUT_S": 0.5}
    api = real_api(constants, max_dimension=4096)
    wide = [0.123456789] * 2000
    with api.client() as client:
        for _ in range(16):
            body = [{"y": 1.0, "x": wide}] * 30
            assert client.post("/v1/streams/a/observations", json=body).status_code == 200
    peak = api.peak_bytes()
    with open_and_stall(api.url, f"{PATH}?after=-1") as stalled:
        until(lambda: metric(api.url, "moca_live_streams_dropped_total") == 1)
        stalled.settimeout(5)
        taken = b""
        while chunk := stalled.recv(65536):
            taken += chunk
    assert api.peak_bytes() - peak < 64 << 20
    until(lambda: metric(api.url, "moca_live_streams") == 0)
    whole = taken.rpartition(b"\n\n")[0].split(b"\n\n")
    ids = [each.partition(b"id: ")[2].split(b"\n")[0] for each in whole if b"event: " in each]
    assert len(ids) < 480
    resumed = Follower(api.url, "a")
    resumed.last = ids[-1].decode()
    resumed.read(480 - len(ids), 30.0)
    assert [seq for seq, _ in resumed.seen] == list(range(len(ids), 480))


def test_a_stop_ends_connections_at_once(api):
    post(api, range(100))
    follower = Follower(api.url, "a")
    with open_and_stall(api.url, f"{PATH}?after=-1"), follower.connected() as messages:
        next(messages)
        began = time.monotonic()
        api.process.send_signal(signal.SIGTERM)
        to_the_end(messages)
        assert api.process.wait(30) == -signal.SIGTERM
    assert time.monotonic() - began < 15  # requests would be waited for twice as long
    assert follower.ends == []  # the stream goes on


def test_keys_open_it(real_api, settings):
    writer = make_key(settings.redis_url, "writer", "write")
    api = real_api()
    post(api, [0.0], token=writer)
    with api.client() as client:
        assert client.get(PATH).status_code == 401
    with api.client(writer) as client:
        assert client.get(PATH).status_code == 403


@pytest.mark.parametrize("path", [PATH, "/v1/events"])
def test_a_revoked_key_ends_its_connection(real_api, settings, path):
    tokens = {name: make_key(settings.redis_url, name, "read", "write") for name in ("a", "b")}
    api = real_api(QUICK, key_cache_s=0.4)
    post(api, [0.0], token=tokens["a"])
    headers = {name: {"Authorization": f"Bearer {token}"} for name, token in tokens.items()}
    with (
        httpx.stream("GET", f"{api.url}{path}", headers=headers["a"], timeout=10) as one,
        httpx.stream("GET", f"{api.url}{path}", headers=headers["b"], timeout=10) as two,
    ):
        lines = one.iter_lines(), two.iter_lines()
        assert all(next(each).startswith("retry") for each in lines)
        with connect(settings.redis_url) as store:
            Keyring(store).revoke("a")
        to_the_end(lines[0])
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
            store.hset(keys.heads(p), "a", b"nonsense")
        to_the_end(messages)
        assert refused(f"{api.url}{PATH}").status_code == 500
        post(api, [1.0], "b")
        while not other.seen:
            next(others)
    assert other.seen == [(1, 1.0)]


def test_an_observation_that_cannot_be_read_is_said_to_who_comes_back_for_it(api, settings):
    post(api, range(40))
    with connect(settings.redis_url) as store:
        p = keys.partition_of("a", settings.partitions)
        store.hset(keys.tail(p, "a"), "35", b"nonsense")
    follower = Follower(api.url, "a", after="-1")
    with follower.connected() as messages:
        list(messages)
    assert [seq for seq, _ in follower.seen] == list(range(32))
    with MocaClient(api.url) as client, pytest.raises(Problem, match="35|record") as raised:
        list(client.follow("a", after=follower.last, retry_for_s=None))
    assert (raised.value.status, raised.value.type) == (500, "corrupt-state")
    until(lambda: metric(api.url, "moca_live_streams") == 0)
    post(api, [40.0])
    follower = Follower(api.url, "a", after="39")
    follower.read(1)
    assert follower.seen == [(40, 40.0)]


def test_openapi_describes_the_call(used):
    document = httpx.get(f"{used.url}/openapi.json").json()
    call = document["paths"]["/v1/streams/{stream}/observations/live"]["get"]
    assert list(call["responses"]["200"]["content"]) == ["text/event-stream"]
    named = {each["name"]: each for each in call["parameters"]}
    assert set(named) == {"stream", "Last-Event-ID", "after", "state"}
