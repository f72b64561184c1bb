"""Every query of dashboards and rules, asked of a Prometheus that watches a service under load.

With MOCA_PICTURES=docs/images the pictures of docs/monitoring.md are drawn anew.
"""

import asyncio
import os
import shutil
import signal
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.conftest import _binary, running_server
from tests.deploy import pictures
from tests.deploy.dashboards import DASHBOARDS, load, names, queries, rules
from tests.deploy.live import Prometheus, configured, finite, running_prometheus
from tests.e2e.deployment import Load, Processes, wait_ready
from tests.ports import free_port

PROGRAM = shutil.which("prometheus")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="prometheus is not installed"),
]
MODELS = ("averaged", "gaussian", "poisson", "bernoulli")
STREAMS, LENGTH, PER_SECOND = 32, 220, 60.0
PICTURE_BYTES = 200_000


def labels_of() -> np.ndarray:
    """Regimes of 30 to 90 observations; row i is of the model MODELS[i % 4]."""
    rng = np.random.default_rng(11)
    found = np.empty((STREAMS, LENGTH))
    for i in range(STREAMS):
        edges = np.cumsum(rng.integers(30, 90, LENGTH // 30))
        regime = np.searchsorted(edges, np.arange(LENGTH), side="right")
        levels = rng.permutation(len(edges) + 1)[regime]
        found[i] = {
            "averaged": 20 + 6.0 * levels + rng.normal(size=LENGTH),
            "gaussian": 4.0 * levels + rng.normal(size=LENGTH),
            "poisson": rng.poisson(2 + 9 * levels),
            "bernoulli": rng.random(LENGTH) < 0.1 + 0.8 * (levels % 2),
        }[MODELS[i % 4]]
    return found


def create(url: str) -> None:
    """Make the streams; those of the first two models are pinned."""
    with httpx.Client(base_url=url, timeout=60) as client:
        for i in range(STREAMS):
            body = {"model": MODELS[i % 4], "hazard": 0.02, "pinned": i % 4 < 2}
            client.put(f"/v1/streams/load-{i}", json=body).raise_for_status()


async def misbehave(url: str, processes: Processes, start_worker_b) -> None:
    """Errors of clients, a reader of events, a worker that stalls, and one that dies."""
    async with (
        httpx.AsyncClient(base_url=url, timeout=60) as client,
        client.stream("GET", "/v1/events") as events,
    ):
        events.raise_for_status()
        for _ in range(5):
            await client.post("/v1/streams/load-0/observations", json={"y": "none"})
            await client.post("/v1/streams/listed/observations", json=[{"y": 1.0}, {"y": 2.0}])
            await asyncio.sleep(2)
        processes.signal("worker-a", signal.SIGSTOP)
        await asyncio.sleep(4)  # longer than its leases
        processes.signal("worker-a", signal.SIGCONT)
        await asyncio.sleep(6)
        processes.kill("worker-b")
        await asyncio.sleep(45)  # alerts wait for half a minute
        start_worker_b()
        await asyncio.sleep(10)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A Prometheus after the load, and when that began and ended."""
    folder = tmp_path_factory.mktemp("live")
    processes = Processes(folder, {"MOCA_PARTITIONS": "8", "MOCA_LEASE_TTL_MS": "1500"})
    ports, workers = [free_port(), free_port()], [free_port(), free_port()]
    config = configured(folder / "prometheus", ports, workers)
    with running_server(str(_binary("valkey")), "--appendonly", "yes") as redis_url:
        processes.environment["MOCA_REDIS_URL"] = redis_url

        def worker(name: str, port: int) -> None:
            processes.start(name, "worker", "--worker-id", name, "--metrics-port", str(port))

        try:
            worker("worker-a", workers[0])
            worker("worker-b", workers[1])
            for port in ports:
                processes.start(f"api-{port}", "api", "--port", str(port))
            urls = [f"http://127.0.0.1:{port}" for port in ports]
            for url in urls:
                wait_ready(url)
            with running_prometheus(str(PROGRAM), config) as prometheus:
                began = time.time()
                load = Load(urls[0], labels_of(), PER_SECOND, retry=True)
                create(urls[1])
                again = lambda: worker("worker-b", workers[1])  # noqa: E731
                asyncio.run(_both(load, misbehave(urls[1], processes, again)))
                assert load.failures == []
                assert len(load.answers) == STREAMS * LENGTH
                time.sleep(3)  # the last scrapes, and rules on them
                yield prometheus, began, time.time()
        finally:
            processes.stop_all()


async def _both(load: Load, rest) -> None:
    await asyncio.gather(load.run(), rest)


def test_every_query_of_every_dashboard_returns_data(watched):
    prometheus, began, ended = watched
    empty = [
        query
        for path in DASHBOARDS
        for query in queries(load(path))
        if not prometheus.ask(query, began, ended)
    ]
    assert empty == []


WITH_WEBHOOKS = {"moca:webhook_lost:increase15m"}  # by webhook; here are none


def test_every_recorded_rule_has_data_now(watched):
    prometheus, _, _ = watched
    missing = [
        rule["record"]
        for rule in rules("record")
        if not any(finite(each["value"][1]) for each in prometheus.now(rule["record"]))
    ]
    assert set(missing) == WITH_WEBHOOKS


def test_what_alerts_look_at_is_there(watched):
    prometheus, _, _ = watched
    used = set().union(*(names(rule["expr"]) for rule in rules("alert")))
    missing = {name for name in used if not prometheus.now(name)}
    assert missing == WITH_WEBHOOKS | {"moca_webhook_lag_seconds"}


def test_prometheus_keeps_the_streams_of_changes_as_exemplars(watched):
    prometheus, began, ended = watched
    name = "moca_changepoints_total"
    found = prometheus.get("/query_exemplars", query=name, start=began, end=ended)
    labels = [one["labels"] for series in found for one in series["exemplars"]]
    assert {each["stream"] for each in labels} <= {f"load-{i}" for i in range(STREAMS)}
    assert len(labels) > 1
    assert all("stream" not in series["seriesLabels"] for series in found)


def test_rules_are_evaluated_without_an_error(watched):
    prometheus, _, _ = watched
    groups = prometheus.get("/rules")["groups"]
    found = [rule for group in groups for rule in group["rules"]]
    assert len(found) == len(rules("record")) + len(rules("alert"))
    assert {rule["health"] for rule in found} == {"ok"}


def test_alerts_fired_for_the_killed_worker_alone(watched):
    prometheus, began, ended = watched
    found = prometheus.course('ALERTS{alertstate="firing"}', began, ended, 1)
    fired = {each["metric"]["alertname"]: each["metric"] for each in found}
    assert fired["MocaTargetDown"]["job"] == "moca-worker"
    assert fired.keys() <= {"MocaTargetDown", "MocaOldestPending"}  # the latter on a busy machine


def test_numbers_agree_with_what_was_sent(watched):
    prometheus, _, _ = watched
    assert _value(prometheus, 'sum(moca_observations_total{outcome="applied"})') > 0
    assert _value(prometheus, "moca:pending_observations") == 0
    assert _value(prometheus, "min(moca_redis_append_only)") in (0, 1)
    assert _value(prometheus, 'min(moca_redis_append_only{job="moca-api"})') == 1
    assert _value(prometheus, "sum(moca_owned_partitions)") == 8
    assert _value(prometheus, "moca:fenced_commits:increase10m") > 0
    assert _value(prometheus, "max(max_over_time(moca_oldest_pending_seconds[10m]))") > 0.5
    assert len(prometheus.now('process_cpu_seconds_total{job="moca-worker"}')) == 2
    for model in ("averaged@1", "gaussian@1"):
        assert 0.8 < _value(prometheus, f'moca:pit:coverage90_1h{{model="{model}"}}') < 1


def _value(prometheus: Prometheus, expr: str) -> float:
    (found,) = prometheus.now(expr)
    return float(found["value"][1])


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_picture_of_each_dashboard_is_drawn(watched, path, tmp_path):
    prometheus, began, ended = watched
    folder = Path(os.environ.get("MOCA_PICTURES", tmp_path))
    file = folder / f"{path.stem.replace('moca', 'dashboard')}.png"
    pictures.draw(load(path), prometheus, (began, ended), file)
    assert 10_000 < file.stat().st_size < PICTURE_BYTES
