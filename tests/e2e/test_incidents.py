"""Ten streams of 200 that change together are one incident, over HTTP on real processes."""

import json
import random
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import httpx
import pytest

from moca_client import AsyncClient, Client, Incident, InvalidRequest
from service.runtime.embedded import running_url
from service.store import keys
from service.store.connection import connect
from tests.deploy.dashboards import check_columns
from tests.e2e.calling import KNOWN, ask, moca
from tests.e2e.deployment import Processes
from tests.service.webhooks.conftest import Receiver
from tests.waiting import PATIENCE_S, until

START = datetime(2024, 5, 1, 14, 0, tzinfo=UTC)
STREAMS = 200
CHANGED = 10
AT = 60  # observation, at one a minute
LONG = 90


class Service(NamedTuple):
    """A service whose streams have changed, and what its webhook got."""

    processes: Processes
    url: str
    receiver: Receiver


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("incidents")
    hooks = folder / "hooks.toml"
    with (
        Receiver() as receiver,
        Processes(folder, {"MOCA_PARTITIONS": "16"}) as processes,
    ):
        secret = "s" * 32
        hooks.write_text(
            "collect_s = 10\n"
            f'[[hook]]\nname = "pager"\nurl = "{receiver.url}/h"\nsecret = "{secret}"\n'
        )
        url = processes.serve("--webhooks-file", str(hooks), "--webhook-hosts", "http://127.0.0.1")
        with connect(str(running_url(folder / "data"))) as store:
            until(lambda: store.hexists(keys.WEBHOOKS, "pager"))
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
            play(client)
        yield Service(processes, url, receiver)


def play(client):
    """Post minute by minute; `alone` changes by itself 20 minutes before the others."""
    rng = random.Random(7)
    names = [f"host-{i:03}" for i in range(STREAMS)]
    for i, name in enumerate(names):
        tags = {"region": "eu" if i < CHANGED else "us", "rack": str(i % 7)}
        ask(client, "PUT", name, 201, json=KNOWN | {"hazard": 0.002, "tags": tags})
    for first in range(0, LONG, 10):
        items = []
        for i, name in enumerate(names):
            for minute in range(first, first + 10):
                changed = minute >= AT if i < CHANGED else i == 100 and minute >= AT - 20
                time = (START + timedelta(minutes=minute)).isoformat()
                items.append({"stream": name, "y": 4.0 * changed + rng.gauss(0, 1), "time": time})
        for at in range(0, len(items), 1000):
            answer = client.post("/v1/observations", json=items[at : at + 1000])
            assert answer.is_success, answer.text


@pytest.fixture
def client(service):
    with httpx.Client(base_url=service.url, timeout=PATIENCE_S) as client:
        yield client


def incidents(client, **query):
    return client.get("/v1/incidents", params=query).raise_for_status().json()


def test_streams_that_change_together_are_one_incident(client):
    page = incidents(client)
    assert page["fleet"]["streams"] == STREAMS
    (incident,) = page["incidents"]
    assert (incident["streams"], incident["fleet"], incident["up"]) == (CHANGED, STREAMS, CHANGED)
    assert incident["start_time"] == "2024-05-01T15:00:00.000+00:00"
    assert incident["earliest_time"] < incident["start_time"] <= incident["latest_time"]
    assert incident["headline"] == (
        "10 of 200 streams changed at 2024-05-01 15:00 UTC, all of region=eu"
    )
    (mover,) = incident["movers"]
    assert (mover["tag"], mover["value"]) == ("region", "eu")
    assert (mover["changed"], mover["streams"], mover["expected"]) == (10, 10, 0.5)
    assert incident["by_chance"]["per_day"] < 1e-9
    assert sorted(incident["names"]) == [f"host-{i:03}" for i in range(CHANGED)]


def test_an_incident_is_one_webhook(client, service):
    (listed,) = incidents(client)["incidents"]
    calls = service.receiver.calls
    until(lambda: len(calls) == 2)
    messages = {m["type"]: m["data"] for m in (json.loads(body) for _, _, body, _ in calls)}
    assert messages["changepoint.confirmed"]["stream"] == "host-100"
    incident = messages["incident.began"]
    assert {name: incident[name] for name in listed} == listed
    assert {change["stream"] for change in incident["changes"]} == set(listed["names"])


def test_an_incident_is_found_by_its_id_and_has_its_changes(client):
    (listed,) = incidents(client)["incidents"]
    one = client.get(f"/v1/incidents/{listed['id']}").raise_for_status().json()
    assert {name: one[name] for name in listed} == listed
    assert len(one["changes"]) == CHANGED
    assert all(change["explanation"]["kind"] == "mean" for change in one["changes"])
    assert all(change["sentence"].startswith("mean rose by") for change in one["changes"])
    shown = client.get(f"/v1/incidents/{listed['id']}", params={"around": 5}).json()
    assert all(len(change["around"]["values"]) == 10 for change in shown["changes"])
    assert client.get("/v1/incidents/0123456789ab").status_code == 404


def test_changes_name_their_incident_and_what_their_streams_share(client):
    (listed,) = incidents(client)["incidents"]

    def changes(**query):
        return client.get("/v1/changes", params=query | {"state": "confirmed"}).json()

    page = changes(movers=True)
    assert {row["stream"] for row in page["changes"] if row["incident"] == listed["id"]} == set(
        listed["names"]
    )
    assert [row["stream"] for row in page["changes"] if row["incident"] is None] == ["host-100"]
    (mover,) = page["movers"]
    assert (mover["value"], mover["changed"], mover["streams"]) == ("eu", 10, 10)
    assert mover["expected"] == pytest.approx(11 * 10 / STREAMS)
    assert changes(movers=True, match='{region="eu"}')["movers"] == []  # all of them have changed
    assert "movers" not in changes()


def test_the_feed_tells_of_incidents_before_their_changes(client, service):
    (listed,) = incidents(client)["incidents"]
    with Client(service.url) as sync:
        confirmed = []
        for message in sync.events(states=["confirmed"], after="0", incidents=True):
            if isinstance(message, Incident):
                assert (message.id, message.headline) == (listed["id"], listed["headline"])
                confirmed.append(message.id)
            elif message.event.refined_at is None:
                confirmed.append(message.stream)
                if set(listed["names"]) <= set(confirmed):
                    break
        assert confirmed.index(listed["id"]) < min(map(confirmed.index, listed["names"]))
        plain = sync.events(states=["confirmed"], after="0")
        assert not any(isinstance(next(plain), Incident) for _ in range(CHANGED))


def test_the_dashboard_finds_its_columns(client):
    span = {
        "${__from:date:iso}": "2024-05-01T00:00:00.000Z",
        "${__to:date:iso}": "2024-05-02T00:00:00.000Z",
    }
    check_columns(client, "incidents", span, "host-")


def test_filters_and_pages(client):
    before = (START + timedelta(minutes=AT)).isoformat()
    after = (START + timedelta(minutes=AT + 1)).isoformat()
    assert incidents(client, since=before, until=after)["total"] == 1
    assert incidents(client, since=after)["total"] == incidents(client, until=before)["total"] == 0
    assert incidents(client, prefix="host-003")["total"] == 1
    assert incidents(client, match='{region="us"}')["total"] == 0
    assert incidents(client, min_streams=CHANGED + 1)["incidents"] == []
    page = incidents(client, sort="streams", limit=1)
    assert (len(page["incidents"]), page["cursor"]) == (1, None)
    assert incidents(client, min_size=1)["total"] == 1
    assert incidents(client, min_size=1000)["total"] == 0


async def test_clients_list_them(client, service):
    url = service.url
    (listed,) = incidents(client)["incidents"]
    since = START.replace(tzinfo=UTC)
    with Client(url) as sync:
        (row,) = sync.incidents(since=since, prefix="host-", sort="streams", limit=1)
        assert (row.id, row.headline, row.movers[0].value) == (
            listed["id"],
            listed["headline"],
            "eu",
        )
        assert [change.stream for change in sync.incident(row.id).changes] == row.names
        (shown, *_) = sync.incident(row.id, around=3).changes
        assert len(shown.around.values) == 6
        with pytest.raises(InvalidRequest, match="time zone"):
            list(sync.incidents(since=datetime(2024, 5, 1)))  # noqa: DTZ001
    async with AsyncClient(url) as many:
        assert [each.id async for each in many.incidents(min_streams=CHANGED)] == [row.id]


def test_the_command_line_lists_them(client, service):
    (listed,) = incidents(client)["incidents"]
    id_, headline = listed["id"], listed["headline"]

    def told(*arguments):
        return moca(*arguments, at=service.url).output

    ask_ = ("incidents", "--since", "2024-05-01T00:00:00Z")
    assert told(*ask_).splitlines() == [f"{id_}  {headline}"]
    assert told(*ask_, "--min-streams", 11).startswith("no incidents")
    assert told(*ask_, "--min-size", 1000).startswith("no incidents")
    assert json.loads(told(*ask_, "--json"))[0]["id"] == id_
    share = "region=eu: 10 of 10 changed"
    assert share not in told("changes", "--since", "2024-05-01T00:00:00Z", "--csv")
    text = told("incidents", id_)
    assert text.startswith(headline)
    assert f"{share}, 0.5 expected" in text
    assert all(name in text for name in listed["names"])
