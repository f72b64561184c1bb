"""Streams at a glance, against real processes."""

import random

import httpx
import pytest

from service.client import Client


@pytest.fixture
def url(emptied):
    return emptied


def post(client, stream, labels):
    for first in range(0, len(labels), 50):
        body = [{"y": y} for y in labels[first : first + 50]]
        response = client.post(f"/v1/streams/{stream}/observations", json=body)
        assert response.status_code == 200, response.text


def labels(count, seed):
    rng = random.Random(seed)
    return [round(rng.gauss(10 if i < count // 2 else 14, 0.5), 3) for i in range(count)]


def test_it_says_what_each_stream_says(url):
    """Last labels are those of the history, wherever chunks were sealed; the rest the summary's."""
    lengths = {"pump-1": 3, "pump-2": 70, "pump-3": 129, "pump-4": 200, "pump-5": 1}
    with httpx.Client(base_url=url, timeout=60) as client:
        for i, (name, length) in enumerate(lengths.items()):
            post(client, name, labels(length, i))
        client.put("/v1/streams/empty", json={})
        client.put("/v1/streams/short", json={"model": "gaussian", "history": 5})
        post(client, "short", [1.0, None, *([2.0] * 30), None, 3.5])
        post(client, "wide", [[1.0, 2.0], [3.0, 4.0]])
        post(client, "gone", [1.0])
        assert client.delete("/v1/streams/gone").status_code == 204
        page = client.get("/v1/overview?labels=64").json()
        assert (page["total"], page["cursor"]) == (8, None)
        found = {each["stream"]: each for each in page["streams"]}
        assert list(found) == sorted([*lengths, "empty", "short", "wide"])
        for name, length in lengths.items():
            assert found[name]["labels"] == labels(length, list(lengths).index(name))[-64:]
            summary = client.get(f"/v1/streams/{name}").json()
            alike = found[name].keys() & summary.keys()
            assert {key: found[name][key] for key in alike} == {k: summary[k] for k in alike}
        assert found["pump-4"]["regime_length"] == 200 - found["pump-4"]["regime_start"]
        assert found["pump-4"]["last_event"]["state"] == "confirmed"
        assert found["empty"]["labels"] == []
        assert found["short"]["labels"] == [2.0, 2.0, 2.0, None, 3.5]
        assert found["wide"]["labels"] == [1.0, 3.0]


def test_pages_and_the_client(url):
    with httpx.Client(base_url=url, timeout=60) as client:
        items = [{"stream": f"{kind}-{i:02d}", "y": 1.0} for kind in ("a", "b") for i in range(30)]
        assert all(e["status"] == 200 for e in client.post("/v1/observations", json=items).json())
        for query, field in (("limit=101", "limit"), ("labels=65", "labels"), ("x=1", "x")):
            refused = client.get(f"/v1/overview?{query}")
            assert refused.status_code == 422
            assert refused.json()["errors"][0]["loc"] == f"query.{field}"
    with Client(url) as client:
        seen, cursor = [], None
        while True:
            page = client.overview("b-", limit=7, labels=0, cursor=cursor)
            assert page.total == 30
            assert all(each.labels == [] for each in page.streams)
            seen += [each.stream for each in page.streams]
            if (cursor := page.cursor) is None:
                break
    assert seen == [f"b-{i:02d}" for i in range(30)]


def listed(client, **query):
    """Ids of all pages of the overview."""
    seen, cursor = [], None
    while True:
        page = client.overview(limit=4, labels=1, cursor=cursor, **query)
        seen += [each.stream for each in page.streams]
        assert len(page.streams) == 4 or page.cursor is None
        if (cursor := page.cursor) is None:
            assert page.total == len(seen)
            return seen


def test_search_anywhere_and_orders(url):
    names = [f"{site}-pump-{i}" for site in ("north", "south") for i in range(5)]
    changed = names[1::3]
    with httpx.Client(base_url=url, timeout=60) as http:
        for i, name in enumerate(names):
            post(http, name, labels(40, i))
        for i, name in enumerate(changed):  # in this order
            post(http, name, [30.0 + (k % 3) / 5 for k in range(30)])
            post(http, name, [20.0 + (i * k % 5) / 5 for k in range(3)])
        http.put("/v1/streams/empty", json={}).raise_for_status()
        by_name = {each["stream"]: each for each in http.get("/v1/overview").json()["streams"]}
        refused = [
            http.get("/v1/overview?sort=size").json()["errors"][0],
            http.get("/v1/overview?sort=change&cursor=abc").json()["errors"][0],
        ]
        assert [each["loc"] for each in refused] == ["query.sort", "query.cursor"]
        cursor = http.get("/v1/overview?sort=change&limit=1").json()["cursor"]
        wrong = http.get("/v1/overview", params={"sort": "changed_probability", "cursor": cursor})
        assert "got one of sort=change" in wrong.json()["errors"][0]["detail"]
        newest = [
            row["stream"] for row in http.get("/v1/changes?state=confirmed").json()["changes"]
        ]
    with Client(url) as client:
        assert listed(client, contains="pump-3") == ["north-pump-3", "south-pump-3"]
        assert listed(client, contains="th-p") == names
        assert listed(client, prefix="south", contains="p-1") == ["south-pump-1"]
        assert listed(client, contains="PUMP") == []
        sure = listed(client, sort="changed_probability")
        values = [by_name[name]["changed_probability"] or -1 for name in sure]
        assert values == sorted(values, reverse=True)
        assert sorted(sure) == sorted(by_name)
        assert sure[-1] == "empty"
        recent = listed(client, sort="change")
        order = [name for name in dict.fromkeys(newest) if name in by_name]
        assert recent == order + sorted(by_name.keys() - set(order))
        assert listed(client, sort="change", contains="south") == [
            name for name in recent if "south" in name
        ]
