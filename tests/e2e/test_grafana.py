"""What the dashboards ask of the service beside Prometheus: its JSON, and exemplars of changes."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest

from tests.conftest import _binary, running_server
from tests.deploy.dashboards import DASHBOARDS, json_queries, load
from tests.e2e.deployment import wait_ready
from tests.ports import free_port

LABELS = [9.8, 10.4] * 15 + [14.1, 14.6] * 10
QUERIES = [query for path in DASHBOARDS for query in json_queries(load(path))]
CHOSEN = {"$state": "confirmed", "$min_size": "0.5", "$sort": "size"}


def selected(row, column):
    """What a column of the backend parser makes of a row: its path, then its type."""
    value = row
    for name in column["selector"].split("."):
        value = None if value is None else value[name]
    kinds = {"string": str, "number": float, "timestamp": datetime.fromisoformat}
    return None if value is None else kinds[column["type"]](value)


def filled(value):
    now = datetime.now(UTC)
    times = {
        "${__from:date:iso}": now - timedelta(hours=1),
        "${__to:date:iso}": now + timedelta(minutes=1),
    }
    if value in times:
        return times[value].isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return CHOSEN.get(value, value)


@pytest.fixture
def shifted(emptied):
    with httpx.Client(base_url=emptied, timeout=60) as client:
        for stream in ("pump-7", "shop:eu@2"):
            body = [{"y": y} for y in LABELS]
            client.post(f"/v1/streams/{stream}/observations", json=body).raise_for_status()
        yield client


def test_there_are_a_table_and_annotations():
    assert len(QUERIES) == 2


@pytest.mark.parametrize("query", QUERIES, ids=["table", "annotations"])
def test_every_column_is_filled_for_every_stream_that_changed(shifted, query):
    options = query["url_options"]
    assert (query["source"], query["parser"], options["method"]) == ("url", "backend", "GET")
    parameters = {each["key"]: filled(each["value"]) for each in options["params"]}
    answer = shifted.get(query["url"], params=parameters)
    assert answer.status_code == 200, answer.text
    found = answer.json()[query["root_selector"]]
    rows = [row for row in found if row["link"]]  # without the deleted streams of other tests
    assert {row["stream"] for row in rows} == {"pump-7", "shop:eu@2"}
    for row in rows:
        cells = {column["text"]: selected(row, column) for column in query["columns"]}
        assert None not in cells.values(), cells
        if "Size" in cells:
            assert cells["Start"] == "30"
            assert cells["Size"] > 1
            assert 0 < cells["P(start)"] <= 1
        else:
            assert {"time", "title", "text"} == cells.keys()
            assert abs(cells["time"] - datetime.now(UTC)) < timedelta(hours=1)


def test_lists_are_measured_apart(shifted):
    shifted.post("/v1/streams/pump-7/observations", json={"y": 14.2}).raise_for_status()
    text = shifted.get("/metrics").text
    name = 'moca_http_request_duration_seconds_count{method="POST",route="'
    for route in ("/v1/streams/{stream}/observations", "/v1/streams/{stream}/observations (list)"):
        assert f'{name}{route}",status="200"}}' in text


def test_a_worker_of_its_own_has_the_stream_of_the_last_change(processes):
    ports = [free_port(), free_port()]
    with running_server(str(_binary("valkey")), "--appendonly", "no") as redis_url:
        processes.environment["MOCA_REDIS_URL"] = redis_url
        try:
            processes.start("worker", "worker", "--metrics-port", str(ports[0]))
            processes.start("api", "api", "--port", str(ports[1]))
            wait_ready(f"http://127.0.0.1:{ports[1]}")
            with httpx.Client(timeout=60) as client:
                url = f"http://127.0.0.1:{ports[1]}/v1/streams/pump-7/observations"
                client.post(url, json=[{"y": y} for y in LABELS]).raise_for_status()
                accept = {"accept": "application/openmetrics-text;version=1.0.0"}
                text = client.get(f"http://127.0.0.1:{ports[0]}/metrics", headers=accept).text
                api = client.get(f"http://127.0.0.1:{ports[1]}/metrics", headers=accept).text
        finally:
            processes.stop_all()
    counted = 'moca_changepoints_total{model="averaged@2",state="confirmed"} 1.0'
    assert f'{counted} # {{event="1",stream="pump-7"}} 1.0 ' in text
    for page in (text, api):
        assert page.endswith("# EOF\n")
        assert page.count("# EOF") == page.count("\nmoca_build_info{") == 1
