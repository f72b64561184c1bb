"""Writers that repeat themselves, race, or do not wait for their answer: one effect each."""

import http.client
import json
import threading
import time

import httpx
import pytest


@pytest.fixture
def client(emptied):
    with httpx.Client(base_url=emptied, timeout=60) as found:
        yield found


def test_two_writers_race_with_the_same_keys(client):
    answers = ([], [])

    def write(into: list) -> None:
        with httpx.Client(base_url=client.base_url, timeout=60) as own:
            for i in range(150):
                headers = {"Idempotency-Key": f"key-{i}"}
                body = {"y": float(i % 7)}
                found = own.post("/v1/streams/race/observations", json=body, headers=headers)
                assert found.status_code == 200, found.text
                into.append(found.json())

    writers = [threading.Thread(target=write, args=(each,)) for each in answers]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(answers[0]) == len(answers[1]) == 150
    for one, other in zip(*answers, strict=True):
        assert one["duplicate"] != other["duplicate"]
        assert {**one, "duplicate": None} == {**other, "duplicate": None}
    assert client.get("/v1/streams/race").json()["seq"] == 150


def test_a_list_is_sent_again_after_its_answer_was_lost(client):
    items = [{"y": float(i % 5)} for i in range(500)]
    body = json.dumps(items)
    headers = {"Idempotency-Key": "list-1", "Content-Type": "application/json"}
    url = client.base_url
    connection = http.client.HTTPConnection(url.host, url.port)
    connection.request("POST", "/v1/streams/list/observations", body, headers)
    while not client.get("/v1/streams/list").json().get("seq"):
        time.sleep(0.01)  # until a part of it is applied
    connection.close()
    again = client.post("/v1/streams/list/observations", content=body, headers=headers)
    assert again.status_code == 200
    answers = again.json()
    assert [answer["seq"] for answer in answers] == list(range(500))
    assert any(answer["duplicate"] for answer in answers), "nothing was applied before"
    third = client.post("/v1/streams/list/observations", content=body, headers=headers).json()
    assert all(answer["duplicate"] for answer in third)
    assert client.get("/v1/streams/list").json()["seq"] == 500
    other = client.post("/v1/streams/list/observations", json=[{"y": 1.0}], headers=headers)
    assert other.status_code == 422
    assert other.json()["type"].endswith("/key-reused")


def test_an_expected_position_is_checked(client):
    path = "/v1/streams/ordered/observations"
    assert client.post(path, json={"y": 1.0, "seq": 0}).status_code == 200
    conflict = client.post(path, json={"y": 1.0, "seq": 0})
    assert conflict.status_code == 409
    assert conflict.json()["seq"] == 1
