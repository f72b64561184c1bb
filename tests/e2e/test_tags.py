"""Tags of streams: set, kept, shown, and selected by, with real processes."""

import json
import random

import httpx
import pytest

from service.client import Client

KNOWN = {"model": "gaussian", "location": 0.0, "scale": 1.0, "hazard": 0.02, "confirm_after": 4}


@pytest.fixture
def client(shared):
    with httpx.Client(base_url=shared[1], timeout=60) as client:
        yield client


@pytest.fixture
def fleet(client):
    """Twelve streams, of which those at the site `north` change their level; site by stream."""
    prefix = f"t{random.randrange(10**9)}-"
    sites = {f"{prefix}{i:02}": "north" if i % 3 == 0 else "south" for i in range(12)}
    for stream, site in sites.items():
        body = KNOWN | {"tags": {"site": site, "number": stream[-2:]}}
        client.put(f"/v1/streams/{stream}", json=body).raise_for_status()
        levels = [0.0] * 30 + [9.0 if site == "north" else 0.0] * 30
        observations = [{"y": level + 0.1 * (i % 7)} for i, level in enumerate(levels)]
        client.post(f"/v1/streams/{stream}/observations", json=observations).raise_for_status()
    return prefix, sites


def test_lists_select_by_tags_page_by_page(client, shared, fleet):
    prefix, sites = fleet
    north = [stream for stream, site in sites.items() if site == "north"]
    query = {"prefix": prefix, "match": '{site="north"}', "limit": 3}
    first = client.get("/v1/streams", params=query).json()
    assert [row["stream"] for row in first["streams"]] == north[:3]
    assert first["streams"][1]["tags"] == {"site": "north", "number": "03"}
    second = client.get("/v1/streams", params=query | {"cursor": first["cursor"]}).json()
    assert [row["stream"] for row in second["streams"]] == north[3:]
    assert second["cursor"] is None
    with Client(shared[1]) as moca:
        either = ['{number="01"}', f'{{stream=~"{prefix}0[5-7]",site!="north"}}']
        found = list(moca.streams(prefix, 2, match=either))
    assert found == [f"{prefix}01", f"{prefix}05", f"{prefix}07"]
    everything = client.get("/v1/streams", params={"prefix": prefix}).json()["streams"]
    assert {row["stream"]: row["tags"]["site"] for row in everything} == sites


def test_changes_have_the_tags_of_their_streams(client, shared, fleet):
    prefix, sites = fleet
    query = {"prefix": prefix, "match": '{site="north"}', "state": "confirmed"}
    page = client.get("/v1/changes", params=query).json()
    streams = {row["stream"] for row in page["changes"]}
    assert streams == {stream for stream, site in sites.items() if site == "north"}
    assert {row["tags"]["site"] for row in page["changes"]} == {"north"}
    with Client(shared[1]) as moca:
        assert {
            row.stream for row in moca.changes(prefix=prefix, match='{site="north"}')
        } == streams
        assert not list(moca.changes(prefix=prefix, match='{site="east"}'))
    table = client.get("/v1/changes", params=query | {"format": "csv"}).text.splitlines()
    assert table[0].endswith(",link,tags")
    assert json.dumps({"number": "00", "site": "north"}).replace('"', '""') in "\n".join(table)


def test_tags_are_replaced_as_a_whole_and_other_settings_leave_them(client, fleet):
    prefix, _ = fleet
    stream = f"/v1/streams/{prefix}01"
    assert client.put(stream, json={"hazard": 0.03}).json()["settings"]["tags"]["site"] == "south"
    changed = client.put(stream, json={"tags": {"site": "east"}}).json()
    assert changed["settings"]["tags"] == {"site": "east"}
    assert client.get(stream).json()["settings"] == changed["settings"]
    assert client.put(stream, json={"tags": {}}).json()["settings"]["tags"] == {}


@pytest.mark.parametrize("path", ["/v1/streams", "/v1/changes"])
def test_a_bad_selector_is_refused_by_name(client, path):
    refused = client.get(path, params={"match": '{a=~"(("}'})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["loc"].startswith("query.match")
    assert "missing )" in refused.json()["detail"]


def test_bad_tags_are_refused_by_name(client):
    refused = client.put("/v1/streams/t", json={"tags": {"stream": "x"}})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["loc"] == "body.tags"
