"""Calls of one stream, from HTTP through the log and a worker to the answer, on real processes."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import httpx

from tests.answers import close
from tests.e2e.calling import KNOWN, ask, history, labels, post, slug
from tests.feeding import Follower
from tests.waiting import PATIENCE_S, until


def test_two_writers_with_the_same_keys_have_one_effect(url, http, prefix):
    answers = ([], [])
    ask(http, "PUT", f"{prefix}race", 201, json=KNOWN)

    def write(into):
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as own:
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


def test_a_stream_moves_to_another_model_while_observations_come(url, http, prefix):
    """None fails, and the belief is that of a fresh replay."""
    moved, fresh, seen = f"{prefix}a", f"{prefix}b", labels(150, seed=4)
    post(http, moved, seen[:100])
    with ThreadPoolExecutor() as pool, httpx.Client(base_url=url, timeout=PATIENCE_S) as own:
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
    with follower.connected() as messages:
        list(messages)
    assert follower.ends == ["deleted"]
    ask(http, "GET", f"{prefix}brief", 404)
