"""Calls of one stream, from HTTP through the log and a worker to the answer, on real processes."""

import json
from http.client import HTTPConnection

import httpx

from tests.e2e.calling import KNOWN, ask, slug
from tests.feeding import Follower
from tests.waiting import until


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


def test_a_stream_expires_and_one_that_follows_it_is_told(url, http, prefix):
    ask(http, "PUT", f"{prefix}brief", 201, json={"ttl": 1})
    follower = Follower(url, f"{prefix}brief")
    with follower.connected() as messages:
        list(messages)
    assert follower.ends == ["deleted"]
    ask(http, "GET", f"{prefix}brief", 404)
