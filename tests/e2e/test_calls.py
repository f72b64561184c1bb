"""Every further call of a stream, over HTTP, against real processes."""

import random
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

BYTES = {"Content-Type": "application/octet-stream"}


@pytest.fixture
def client(emptied):
    with httpx.Client(base_url=emptied, timeout=60) as made:
        yield made


def ask(client, method, path, status=200, **request):
    response = client.request(method, f"/v1/streams/{path}", **request)
    assert response.status_code == status, response.text
    return response.json() if response.content else None


def labels(count, seed=1):
    rng = random.Random(seed)
    return [{"y": rng.gauss(4 * (i // 60 % 2), 1)} for i in range(count)]


def post(client, stream, observations):
    found = []
    for i in range(0, len(observations), 50):
        part = observations[i : i + 50]
        found += ask(client, "POST", f"{stream}/observations", json=part)
    return found


def close(found, expected):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            close(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            close(*pair)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)
    else:
        assert found == expected


def changepoints(client, stream):
    """Changepoints of a stream, once the segmentation in hindsight is there."""
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        found = ask(client, "GET", f"{stream}/changepoints")
        if found["hindsight"]["status"] == "current":
            return found
        time.sleep(0.1)
    raise AssertionError(f"no hindsight: {found['hindsight']}")


def test_a_stream_moves_to_another_deployment_in_the_middle_of_a_series(emptied, serve):
    """Remaining answers are those of the uninterrupted one to 1e-9."""
    seen = labels(300)
    with httpx.Client(base_url=emptied, timeout=60) as client:
        post(client, "pump", seen[:170])
        exported = client.get("/v1/streams/pump/snapshot")
        assert exported.headers["content-type"] == BYTES["Content-Type"]
        expected = post(client, "pump", seen[170:])
        events = changepoints(client, "pump")
    other = serve("other")
    with httpx.Client(base_url=other, timeout=60) as client:
        put = client.put("/v1/streams/pump/snapshot", content=exported.content, headers=BYTES)
        assert (put.status_code, put.json()["seq"]) == (201, 170)
        close(post(client, "pump", seen[170:]), expected)
        found = changepoints(client, "pump")
        assert found["hindsight"].pop("computed") > events["hindsight"].pop("computed")
        close(found, events)
        again = client.put("/v1/streams/pump/snapshot", content=exported.content, headers=BYTES)
        assert again.status_code == 409


def test_what_is_no_snapshot(client):
    for content, headers, status in (
        (b"nonsense", BYTES, 422),
        (b"", BYTES, 422),
        (b"{}", {"Content-Type": "application/json"}, 415),
    ):
        response = client.put("/v1/streams/a/snapshot", content=content, headers=headers)
        assert response.status_code == status
    assert client.get("/v1/streams/a/snapshot").status_code == 404


def test_actions_and_overrides_and_horizons(client):
    ask(client, "PUT", "ad", 201, json={"model": "linear", "warmup": 5, "hazard": 0.02})
    rng = random.Random(3)
    seen = []
    for _ in range(40):
        x = [rng.gauss(0, 1)]
        seen.append({"x": x, "y": 2 * x[0] + rng.gauss(0, 0.1)})
    post(client, "ad", seen)
    offered = {"candidates": [[-1.0], [0.0], [1.5]]}
    for strategy in ("thompson", "optimistic", "greedy"):
        body = {
            **offered,
            "strategy": strategy,
            "seed": 1,
        }  # by chance another is tried now and then
        found = ask(client, "POST", "ad/actions", json=body)
        assert (found["chosen"], found["candidate"]) == (2, [1.5])
    first = ask(client, "POST", "ad/actions", json={**offered, "seed": 5})
    assert ask(client, "POST", "ad/actions", json={**offered, "seed": 5}) == first
    post(client, "level", labels(100))
    told = ask(client, "PUT", "level/run-length", json={"changepoint": 1.0, "seq": 100})
    assert told["seq"] == 99
    (answer,) = post(client, "level", [{"y": 0.0}])
    assert answer["changepoint_probability"] == 1.0
    ahead = ask(client, "POST", "level/predictions", json={"horizon": 10})["predictions"]
    assert [each["ahead"] for each in ahead] == list(range(1, 11))


def test_a_verdict_what_if_and_the_history_of_settings(client):
    post(client, "a", labels(120))
    tried = ask(client, "POST", "a/what-if", json={"settings": {"hazard": 0.2}, "series": True})
    assert len(tried["log_score"]) == 120
    ask(client, "PUT", "a", json={"hazard": 0.001})
    (changed,) = ask(client, "GET", "a/history")["changes"]
    assert (changed["seq"], changed["settings"]) == (120, {"hazard": 0.001})
    found = ask(client, "GET", "a/changepoints")["events"]
    (event,) = [each for each in found if each["state"] == "confirmed"]
    verdict = ask(client, "PUT", f"a/changepoints/{event['id']}", json={"change": False})
    assert (verdict["event"]["state"], verdict["event"]["verdict"]) == ("withdrawn", False)
    assert ask(client, "GET", "a/changepoints")["segmentation"] == [{"start": 0, "end": 120}]
    reported = ask(client, "POST", "a/changepoints", json={"start": 60})
    assert reported["event"]["verdict"] is True
    ask(client, "PUT", "a/changepoints/x", 422, json={"change": False})
    ask(client, "PUT", "a/changepoints/99", 404, json={"change": False})
    stated = [{"run_length": 59, "probability": 1.0}]
    ask(client, "PUT", "a/run-length", json={"belief": stated})
    post(client, "a", labels(1))
    seen = ask(client, "GET", "a/history")["observations"]
    assert [each["belief"] for each in seen[-2:]] == [None, stated]


def test_a_model_moves_while_observations_come(client):
    """200 a second: none fails, and the belief is that of a fresh replay."""
    seen = labels(600, seed=4)
    post(client, "a", seen[:300])
    moved = []

    def move():
        time.sleep(0.5)
        moved.append(client.post("/v1/streams/a/model", json={"model": "gaussian"}))

    with ThreadPoolExecutor() as pool:
        moving = pool.submit(move)
        began = time.monotonic()
        for i, each in enumerate(seen[300:]):
            time.sleep(max(0.0, began + i / 200 - time.monotonic()))
            answer = client.post("/v1/streams/a/observations", json=each)
            assert answer.status_code == 200
        moving.result()
    assert (moved[0].status_code, moved[0].json()["model"]) == (200, "gaussian@1")
    ask(client, "PUT", "b", 201, json={"model": "gaussian"})
    post(client, "b", seen)
    found, expected = ask(client, "GET", "a/run-length"), ask(client, "GET", "b/run-length")
    close(found["belief"], expected["belief"])


def test_streams_expire_and_pinned_ones_have_metrics(client):
    ask(client, "PUT", "brief", 201, json={"ttl": 1})
    ask(client, "PUT", "dial", 201, json={"pinned": True})
    post(client, "dial", labels(60))
    deadline = time.monotonic() + 60
    while client.get("/v1/streams/brief").status_code != 404:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    text = client.get("/metrics").text
    assert 'moca_stream_observations{model="averaged@2",stream="dial"} 60.0' in text
    for name in ("last", "mean", "lower", "upper", "changed_probability", "run_length"):
        assert f'moca_stream_{name}{{model="averaged@2",stream="dial"}}' in text
