"""Calls of one stream, from HTTP through the log and a worker to the answer, on real processes."""

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import httpx

from service.store import keys
from service.store.connection import connect
from tests.e2e.calling import BYTES, KNOWN, ask, close, history, labels, post, slug
from tests.feeding import Follower
from tests.waiting import until

# Body of a post of observations, status, kind of the problem.
BAD = {
    "wrong dimension": ('{"y": [1.0, 2.0]}', 422, "dimension-mismatch"),
    "no number": ('{"y": NaN}', 422, "invalid-field"),
    "unknown field": ('{"y": 1.0, "z": 2}', 422, "invalid-field"),
    "another position": ('{"y": 1.0, "seq": 7}', 409, "seq-conflict"),
    "second of a list": ('[{"y": 1.0}, {"y": [1.0, 2.0]}]', 422, "dimension-mismatch"),
    "not JSON": ('{"y": 1.0', 400, "malformed-body"),
    "deep": ("[" * 10_000 + "]" * 10_000, 400, "malformed-body"),
    "too large": (" " * (9 << 20) + '{"y": 1.0}', 413, "body-too-large"),
}


def stored(redis_url, stream):
    """Everything that the store keeps of a stream."""
    partition = keys.partition_of(stream, 16)
    with connect(redis_url) as redis:
        names = (keys.tail, keys.history, keys.checkpoint, keys.events)
        parts = [redis.hgetall(name(partition, stream)) for name in names]
        return redis.hget(keys.heads(partition), stream), parts


def test_bad_input_is_answered_by_its_problem_and_leaves_the_stream_bitwise(shared, http, prefix):
    stream = f"{prefix}good"
    ask(http, "PUT", stream, 201, json=KNOWN)
    post(http, stream, [float(i % 3) for i in range(40)])
    before = stored(shared.store, stream)
    assert before[0] is not None
    for name, (body, status, kind) in BAD.items():
        headers = {"Content-Type": "application/json"}
        path = f"/v1/streams/{stream}/observations"
        response = http.post(path, content=body, headers=headers)
        assert (response.status_code, slug(response)) == (status, kind), (name, response.text)
        assert response.headers["content-type"] == "application/problem+json"
        if kind == "invalid-field":
            assert response.json()["errors"][0]["loc"], name
    assert http.put(f"/v1/streams/{stream}", json={"warmup": 3}).status_code == 409
    for path in ("", "/run-length", "/changepoints", "/history", "/snapshot"):
        assert slug(http.get(f"/v1/streams/{prefix}nobody{path}")) == "unknown-stream"
    assert stored(shared.store, stream) == before


def test_two_writers_with_the_same_keys_have_one_effect(url, http, prefix):
    answers = ([], [])
    ask(http, "PUT", f"{prefix}race", 201, json=KNOWN)

    def write(into):
        with httpx.Client(base_url=url, timeout=120) as own:
            for i in range(100):
                headers = {"Idempotency-Key": f"key-{i}"}
                body = {"y": float(i % 7)}
                into.append(ask(own, "POST", f"{prefix}race/observations", json=body,
                                headers=headers))  # fmt: skip

    writers = [threading.Thread(target=write, args=(into,)) for into in answers]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    for one, other in zip(*answers, strict=True):
        assert one.pop("duplicate") != other.pop("duplicate")
        assert one == other
    assert [each["y"] for each in history(http, f"{prefix}race")] == [i % 7 for i in range(100)]


def test_a_list_that_is_sent_again_after_its_answer_was_lost_is_applied_once(url, http, prefix):
    stream, path = f"{prefix}list", f"/v1/streams/{prefix}list/observations"
    ask(http, "PUT", stream, 201, json=KNOWN)
    body = json.dumps([{"y": float(i % 5)} for i in range(500)])
    headers = {"Idempotency-Key": "list-1", "Content-Type": "application/json"}
    address = httpx.URL(url)
    connection = HTTPConnection(address.host, address.port)
    connection.request("POST", path, body, headers)
    until(lambda: http.get(f"/v1/streams/{stream}").json().get("seq"))  # a part is applied
    connection.close()
    answers = http.post(path, content=body, headers=headers).json()
    assert [answer["seq"] for answer in answers] == list(range(500))
    assert any(answer["duplicate"] for answer in answers)
    third = http.post(path, content=body, headers=headers).json()
    assert all(answer["duplicate"] for answer in third)
    assert ask(http, "GET", stream)["seq"] == 500
    other = http.post(path, json=[{"y": 1.0}], headers=headers)
    assert (other.status_code, slug(other)) == (422, "key-reused")


def test_a_snapshot_goes_on_elsewhere_as_the_stream_does(http, prefix):
    """Remaining answers are those of the uninterrupted one to 1e-9."""
    seen = labels(200, regime=40)
    here, there = f"{prefix}here", f"{prefix}there"
    ask(http, "PUT", here, 201, json={"model": "gaussian"})
    post(http, here, seen[:110])
    snapshot = http.get(f"/v1/streams/{here}/snapshot")
    assert snapshot.headers["content-type"] == BYTES["Content-Type"]
    expected = post(http, here, seen[110:])
    put = ask(http, "PUT", f"{there}/snapshot", 201, content=snapshot.content, headers=BYTES)
    assert put["seq"] == 110
    close([e | {"stream": here} for e in post(http, there, seen[110:])], expected)
    found, events = (ask(http, "GET", f"{name}/changepoints")["events"] for name in (there, here))
    assert len(events) >= 3
    close(found, events)
    for name, content, headers, status in (
        (there, snapshot.content, BYTES, 409),
        (f"{prefix}no", b"nonsense", BYTES, 422),
        (f"{prefix}no", b"{}", {"Content-Type": "application/json"}, 415),
    ):
        ask(http, "PUT", f"{name}/snapshot", status, content=content, headers=headers)


def test_actions_are_chosen_by_what_was_learned(http, prefix):
    stream = f"{prefix}ad"
    ask(http, "PUT", stream, 201, json={"model": "linear", "warmup": 5, "hazard": 0.02})
    rng = random.Random(3)
    x = [[rng.gauss(0, 1)] for _ in range(40)]
    post(http, stream, [{"x": each, "y": 2 * each[0] + rng.gauss(0, 0.1)} for each in x])
    offered = {"candidates": [[-1.0], [0.0], [1.5]], "seed": 1}
    for strategy in ("thompson", "optimistic", "greedy"):
        answer = ask(http, "POST", f"{stream}/actions", json=offered | {"strategy": strategy})
        assert (answer["chosen"], answer["candidate"]) == (2, [1.5])
        again = ask(http, "POST", f"{stream}/actions", json=offered | {"strategy": strategy})
        assert again == answer


def test_feedback_what_if_and_the_history_of_settings(http, prefix):
    stream = f"{prefix}a"
    ask(http, "PUT", stream, 201, json={"model": "gaussian"})
    post(http, stream, labels(120))
    tried = ask(http, "POST", f"{stream}/what-if",
                json={"settings": {"hazard": 0.2}, "series": True})  # fmt: skip
    assert len(tried["log_score"]) == 120
    ask(http, "PUT", stream, json={"hazard": 0.001})
    (changed,) = ask(http, "GET", f"{stream}/history")["changes"]
    assert (changed["seq"], changed["settings"]) == (120, {"hazard": 0.001})
    current = until(lambda: _in_hindsight(http, stream))
    assert [each["start"] for each in current["segmentation"]] == [0, 60]
    (event,) = [each for each in current["events"] if each["state"] == "confirmed"]
    verdict = ask(http, "PUT", f"{stream}/changepoints/{event['id']}", json={"change": False})
    assert (verdict["event"]["state"], verdict["event"]["verdict"]) == ("withdrawn", False)
    assert ask(http, "GET", f"{stream}/changepoints")["segmentation"] == [{"start": 0, "end": 120}]
    reported = ask(http, "POST", f"{stream}/changepoints", json={"start": 60})
    assert reported["event"]["verdict"] is True
    ask(http, "PUT", f"{stream}/changepoints/99", 404, json={"change": False})
    levels = [0.05, 0.1234561, 0.1234564, 0.9999999]  # each is answered under its own name
    asked = {"quantiles": levels, "horizon": 2}
    found = ask(http, "POST", f"{stream}/predictions", json=asked)["predictions"]
    assert [each["ahead"] for each in found] == [1, 2]
    assert list(map(float, found[1]["predictive"]["quantiles"])) == levels
    belief = [{"run_length": 59, "probability": 1.0}]
    ask(http, "PUT", f"{stream}/run-length", json={"belief": belief})
    post(http, stream, [0.0])
    assert [each["belief"] for each in history(http, stream)[-2:]] == [None, belief]


def _in_hindsight(client, stream):
    found = ask(client, "GET", f"{stream}/changepoints")
    return found if found["hindsight"]["status"] == "current" else None


def test_a_stream_moves_to_another_model_while_observations_come(url, http, prefix):
    """None fails, and the belief is that of a fresh replay."""
    moved, fresh, seen = f"{prefix}a", f"{prefix}b", labels(150, seed=4)
    post(http, moved, seen[:100])
    with ThreadPoolExecutor() as pool, httpx.Client(base_url=url, timeout=120) as own:
        moving = pool.submit(ask, own, "POST", f"{moved}/model", json={"model": "gaussian"})
        for each in seen[100:]:
            ask(http, "POST", f"{moved}/observations", json=each)
        assert moving.result()["model"] == "gaussian"
    ask(http, "PUT", fresh, 201, json={"model": "gaussian"})
    post(http, fresh, seen)
    beliefs = [ask(http, "GET", f"{name}/run-length")["belief"] for name in (moved, fresh)]
    close(*beliefs)


def test_a_stream_expires_and_one_that_follows_it_is_told(url, http, prefix):
    ask(http, "PUT", f"{prefix}brief", 201, json={"ttl": 1})
    follower = Follower(url, f"{prefix}brief")
    with follower.connected(timeout=120.0) as messages:
        list(messages)
    assert follower.ends == ["deleted"]
    ask(http, "GET", f"{prefix}brief", 404)


def holes(count):
    """Labels of three outputs with a shift half-way, of which some or all may be missing."""
    rng = random.Random(1)
    made = []
    for i in range(count):
        level = 5.0 * (i >= count // 2)
        y = [rng.gauss(level, 1), rng.gauss(-level, 1), rng.gauss(100, 20)]
        made.append({"y": [None if rng.random() < 0.25 else value for value in y]})
    return made


def kept(label):
    """A label as the service keeps it: without any output it is missing."""
    return None if set(label["y"]) == {None} else label["y"]


def test_missing_outputs_mean_the_same_however_they_come(url, http, prefix):
    """In lists, one by one, of many streams, as nulls, and late and out of order."""
    count = 50
    seen = holes(count)
    assert any(kept(each) is None for each in seen)
    names = {name: f"{prefix}{name}" for name in ("list", "single", "many", "nulls", "late")}
    settings = {"model": "joint", "warmup": 10, "hazard": 0.02, "max_hypotheses": 16}
    for stream in names.values():
        ask(http, "PUT", stream, 201, json=settings)
    expected = post(http, names["list"], seen)
    items = [{"stream": names["many"], **each} for each in seen]
    lines = "\n".join(map(json.dumps, items[20:]))
    kind = {"Content-Type": "application/x-ndjson"}
    text = http.post("/v1/observations", content=lines, headers=kind)
    assert text.status_code == 200
    first = http.post("/v1/observations", json=items[:20])
    assert first.status_code == 200
    answers = {
        "single": [
            ask(http, "POST", f"{names['single']}/observations", json=each) for each in seen
        ],
        "nulls": post(http, names["nulls"], [kept(each) for each in seen]),
    }
    for name, found in answers.items():
        close([each | {"stream": names["list"]} for each in found], expected, name)
    post(http, names["late"], seen[:31])
    post(http, names["late"], [{"pending": True}] * (count - 31))
    for seq in (33, 31, 32, *range(34, count)):
        post(http, names["late"], [seen[seq] | {"seq": seq}])
    page = history(http, names["list"])
    assert [each["y"] for each in page] == [kept(each) for each in seen]
    for name in ("single", "nulls", "late"):
        found = history(http, names[name])
        assert [each["y"] for each in found] == [each["y"] for each in page], name
        close([e["log_score"] for e in found], [e["log_score"] for e in page], name)
    order = seen[20:] + seen[:20]
    assert [each["y"] for each in history(http, names["many"])] == list(map(kept, order))
    follower = Follower(url, names["list"], after="-1")
    follower.read(count)
    assert follower.seen == [(seq, kept(each)) for seq, each in enumerate(seen)]
    events = ask(http, "GET", f"{names['list']}/changepoints")["events"]
    assert any(e["state"] == "confirmed" and abs(e["start"] - count // 2) <= 2 for e in events)
