"""Rules, alerts, dashboards: as they are made, by promtool, and by a Prometheus under load."""

import asyncio
import contextlib
import functools
import json
import math
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml

from service.runtime.embedded import running_url
from service.store import keys
from service.store.connection import connect
from tests.deploy.dashboards import (
    DASHBOARDS,
    PROMETHEUS,
    ROOT,
    json_queries,
    names,
    queries,
    rules,
)
from tests.e2e.calling import KNOWN, ask
from tests.e2e.deployment import Load, Processes, wait_ready
from tests.ports import free_port
from tests.waiting import PATIENCE_S, barring, until

ALERTMANAGER = shutil.which("alertmanager") or shutil.which("prometheus-alertmanager")
CONFIG = ROOT / "deploy" / "alertmanager.yml"
PARTS = ("_bucket", "_sum", "_count")
VARIABLES = {"$__rate_interval": "30s", "$namespace": ".*", "$model": ".*"}
OWN = {"__all", "__rate_interval", "__from", "__to", "__data"}


def needs(name):
    return pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed")


def run(*command):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_generator_writes_both_dashboards(tmp_path):
    run(sys.executable, "-I", ROOT / "deploy" / "grafana" / "dashboards.py", tmp_path / "new")
    written = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "new").iterdir()}
    assert written == {dashboard["uid"]: dashboard for dashboard in DASHBOARDS}


def test_dashboards_are_complete_and_of_the_chosen_deployment():
    for dashboard in DASHBOARDS:
        taken = set()
        panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
        assert len(panels) <= 30
        for panel in dashboard["panels"]:
            at = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(at["x"], at["x"] + at["w"])
                for y in range(at["y"], at["y"] + at["h"])
            }
            assert at["x"] + at["w"] <= 24
            assert not cells & taken, panel["title"]
            taken |= cells
        for panel in panels:
            assert panel["description"].endswith("."), panel["title"]
            defaults = panel["fieldConfig"]["defaults"]
            assert defaults["unit"], panel["title"]
            values = [step["value"] for step in defaults["thresholds"]["steps"]]
            assert values[0] is None, panel["title"]
            assert values[1:] == sorted(set(values[1:])), panel["title"]
            assert panel["targets"], panel["title"]
        defined = {variable["name"] for variable in dashboard["templating"]["list"]}
        assert set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard))) - OWN == defined
        asked = list(queries(dashboard))
        assert len({query.where for query in asked}) == len(asked) > 10
        for query in asked:
            for name in names(query.expr):
                selected = query.expr.count(f'{name}{{namespace=~"$namespace"')
                assert selected == len(re.findall(rf"\b{name}\b", query.expr)), query.where
    assert len([query for dashboard in DASHBOARDS for query in json_queries(dashboard)]) == 3


def test_only_what_is_measured_is_asked_for():
    page = (ROOT / "docs" / "metrics.md").read_text()  # which is made of what is registered
    known = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    known |= {rule["record"] for rule in rules("record")}
    known |= {"up", "ALERTS", "process_cpu_seconds_total"}
    asked = {rule["expr"] for rule in rules("record") + rules("alert")}
    asked |= {query.expr for dashboard in DASHBOARDS for query in queries(dashboard)}
    for name in set().union(*map(names, asked)):
        stem = next((name.removesuffix(part) for part in PARTS if name.endswith(part)), name)
        assert name in known or stem in known, name


def test_every_alert_has_a_test_a_severity_and_a_section_in_the_runbook():
    tests = (PROMETHEUS / "tests" / "alerts.yml").read_text()
    text = (ROOT / "docs" / "monitoring.md").read_text()
    for rule in rules("alert"):
        name = rule["alert"]
        assert re.search(rf'alertname(="|: ){name}\b', tests), name
        section = re.search(rf"^### {name}\n(.*?)(?=^##|\Z)", text, re.M | re.S)
        assert section, f"{name} is not in docs/monitoring.md"
        for part in ("Means", "Users see", "Do"):
            assert f"**{part}**" in section[1], f"{name}: {part}"
        assert rule["annotations"]["runbook"] == f"docs/monitoring.md#{name.lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning")


@pytest.mark.slow
@needs("promtool")
def test_alerts_fire_just_beyond_their_thresholds_and_configurations_are_valid(tmp_path):
    run("promtool", "test", "rules", PROMETHEUS / "tests" / "alerts.yml")
    run("promtool", "check", "rules", "--lint=all", *sorted((PROMETHEUS / "rules").glob("*.yml")))
    for name in ("prometheus.yml", "remote-write.yml"):
        run("promtool", "check", "config", PROMETHEUS / name)
    # Debian builds Prometheus without discovery in Kubernetes: everything else is checked.
    config = yaml.safe_load((PROMETHEUS / "kubernetes.yml").read_text())
    for job in config["scrape_configs"]:
        del job["kubernetes_sd_configs"]
    (tmp_path / "else.yml").write_text(yaml.safe_dump(config))
    run("promtool", "check", "config", tmp_path / "else.yml")
    if shutil.which("amtool"):
        run("amtool", "check-config", CONFIG)


@contextlib.contextmanager
def running(*command, **options):
    process = subprocess.Popen([*map(str, command)], stderr=subprocess.DEVNULL, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.mark.slow
@pytest.mark.skipif(ALERTMANAGER is None, reason="alertmanager is not installed")
def test_a_change_is_an_alert_that_ends_by_feedback_that_it_was_none(serve, tmp_path):
    """`moca serve` posts it to an Alertmanager, in its format."""
    hooks, am = tmp_path / "hooks.toml", free_port()
    alerts = f"http://127.0.0.1:{am}/api/v2/alerts"
    hooks.write_text(f"""
console_url = "http://console"
[[hook]]
name = "am"
format = "alertmanager"
url = "{alerts}"
match = ['{{site="north"}}']
""")
    options = ["--webhooks-file", str(hooks), "--webhook-hosts", "http://127.0.0.1"]
    command = [ALERTMANAGER, f"--config.file={CONFIG}", f"--storage.path={tmp_path / 'am'}"]
    command += [f"--web.listen-address=127.0.0.1:{am}", "--cluster.listen-address="]
    service = serve(*options)
    with (
        running(*command, stdout=subprocess.DEVNULL),
        connect(running_url(tmp_path / "data")) as store,
        httpx.Client(base_url=service, timeout=PATIENCE_S) as client,
    ):
        until(barring(httpx.TransportError, lambda: httpx.get(alerts).is_success))
        until(lambda: store.hexists(keys.WEBHOOKS, "am"))
        for site in ("north", "south"):
            tags = {"site": site, "job": "pumps"}
            ask(client, "PUT", f"pump-{site}", 201, json=KNOWN | {"confirm_after": 4, "tags": tags})
            levels = [0.3 * (-1) ** i + (8.0 if i >= 30 else 0.0) for i in range(60)]
            ask(client, "POST", f"pump-{site}/observations", json=[{"y": y} for y in levels])
        answer = ask(client, "GET", "pump-north/changepoints")["events"]
        (change,) = (each for each in answer if each["state"] == "confirmed")
        (alert,) = until(lambda: httpx.get(alerts).json())
        assert alert["labels"]["stream"] == "pump-north"
        assert (alert["labels"]["site"], alert["labels"]["job"]) == ("north", "pumps")
        place = f"/#/streams/pump-north?at={change['start']}"
        assert alert["generatorURL"] == "http://console" + place
        path = f"pump-north/changepoints/{change['id']}"
        ask(client, "PUT", path, json={"change": False})
        until(lambda: httpx.get(alerts).json() == [])


STREAMS, LENGTH, PER_SECOND = 32, 180, 60.0
MODELS = ("averaged", "gaussian", "poisson", "bernoulli")
WITH_WEBHOOKS = {"moca:webhook_lost:increase15m"}  # by webhook; here are none


def configured(folder: Path, ports: dict[str, list[int]]) -> Path:
    """Write the project's configuration, with ports in place of names, at a pace of a second."""
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    config["global"] = dict.fromkeys(config["global"], "1s")
    config["scrape_configs"] = [j for j in config["scrape_configs"] if j["job_name"] in ports]
    for job in config["scrape_configs"]:
        del job["dns_sd_configs"]
        targets = [f"127.0.0.1:{port}" for port in ports[job["job_name"]]]
        job["static_configs"] = [{"targets": targets}]
    (folder / "rules").mkdir(parents=True)
    for path in (PROMETHEUS / "rules").glob("*.yml"):
        content = yaml.safe_load(path.read_text())
        for group in content["groups"]:
            group.pop("interval", None)
        (folder / "rules" / path.name).write_text(yaml.safe_dump(content))
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    return folder / "prometheus.yml"


class Prometheus:
    """One that runs, asked over HTTP."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def get(self, path, **parameters):
        answer = self.client.get(path, params=parameters).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def now(self, expr):
        series = self.get("/query", query=expr)["result"]
        return [each for each in series if math.isfinite(float(each["value"][1]))]

    def course(self, expr, start, end):
        series = self.get("/query_range", query=expr, start=start, end=end, step=2)["result"]
        return [each for each in series if any(math.isfinite(float(v)) for _, v in each["values"])]

    def value(self, expr) -> float:
        (series,) = self.now(expr)
        return float(series["value"][1])


def labels() -> np.ndarray:
    """Regimes of 30 to 90 observations; row i is of the model MODELS[i % 4]."""
    rng = np.random.default_rng(11)
    rows = []
    for i in range(STREAMS):
        edges = np.cumsum(rng.integers(30, 90, LENGTH // 30))
        regime = np.searchsorted(edges, np.arange(LENGTH), side="right")
        levels = rng.permutation(len(edges) + 1)[regime]
        rows.append({
            "averaged": 20 + 6.0 * levels + rng.normal(size=LENGTH),
            "gaussian": 4.0 * levels + rng.normal(size=LENGTH),
            "poisson": rng.poisson(2 + 9 * levels),
            "bernoulli": rng.random(LENGTH) < 0.1 + 0.8 * (levels % 2),
        }[MODELS[i % 4]])  # fmt: skip
    return np.array(rows, dtype=float)


async def misbehave(url: str, processes: Processes, start_again) -> None:
    """Errors of clients, a reader of events, a worker that stalls, and one that dies."""
    async with (
        httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client,
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
        start_again()
        await asyncio.sleep(10)


@pytest.fixture
def watched(disk_store, processes, tmp_path):
    """A Prometheus after a load, and when that began and ended."""
    processes.environment |= {
        "MOCA_PARTITIONS": "8",
        "MOCA_LEASE_TTL_MS": "1500",
        "MOCA_REDIS_URL": disk_store,
    }
    api_ports = [free_port(), free_port()]
    worker_ports = {"worker-a": free_port(), "worker-b": free_port()}
    port = free_port()
    jobs = {"moca-api": api_ports, "moca-worker": list(worker_ports.values())}
    url = f"http://127.0.0.1:{port}"
    command = [
        shutil.which("prometheus"),
        f"--config.file={configured(tmp_path / 'p', jobs)}",
        f"--storage.tsdb.path={tmp_path / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        *("--enable-feature=exemplar-storage", "--log.level=error"),
    ]

    def start_worker(name: str) -> None:
        options = ("--worker-id", name, "--metrics-port", str(worker_ports[name]))
        processes.start(name, "worker", *options)

    async def load_and_trouble(load: Load, api: str) -> None:
        again = functools.partial(start_worker, "worker-b")
        await asyncio.gather(load.run(), misbehave(api, processes, again))

    for name in worker_ports:
        start_worker(name)
    for api_port in api_ports:
        processes.start(f"api-{api_port}", "api", "--port", str(api_port))
    apis = [f"http://127.0.0.1:{api_port}" for api_port in api_ports]
    for api in apis:
        wait_ready(api)
    with running(*command, stdout=subprocess.DEVNULL):
        until(barring(httpx.TransportError, lambda: httpx.get(f"{url}/-/ready").is_success))
        began = time.time()
        load = Load(apis[0], labels(), PER_SECOND, retry=True)
        with httpx.Client(base_url=apis[1], timeout=PATIENCE_S) as client:
            for i in range(STREAMS):
                settings = {"model": MODELS[i % 4], "hazard": 0.02, "anomaly_alarm": 0.95}
                client.put(f"/v1/streams/load-{i}", json=settings).raise_for_status()
        asyncio.run(load_and_trouble(load, apis[1]))
        assert load.failures == []
        time.sleep(3)  # the last scrapes, and rules on them
        with httpx.Client(base_url=f"{url}/api/v1", timeout=PATIENCE_S) as client:
            yield Prometheus(client), began, time.time()


@pytest.mark.slow
@needs("prometheus")
def test_every_query_of_dashboards_and_rules_returns_data(watched):
    prometheus, began, ended = watched
    empty = []
    for query in (query for dashboard in DASHBOARDS for query in queries(dashboard)):
        expr = query.expr
        for name, value in VARIABLES.items():
            expr = expr.replace(name, value)
        assert "$" not in expr, expr
        if not prometheus.course(expr, began, ended):
            empty.append(query)
    assert empty == []
    missing = {r["record"] for r in rules("record") if not prometheus.now(r["record"])}
    assert missing == WITH_WEBHOOKS
    used = set().union(*(names(rule["expr"]) for rule in rules("alert")))
    missing = {name for name in used if not prometheus.get("/query", query=name)["result"]}
    assert missing == WITH_WEBHOOKS | {"moca_webhook_lag_seconds"}
    loaded = [rule for group in prometheus.get("/rules")["groups"] for rule in group["rules"]]
    assert len(loaded) == len(rules("record")) + len(rules("alert"))
    assert {rule["health"] for rule in loaded} == {"ok"}
    # For the killed worker only; observations wait longer on a busy machine.
    firing = prometheus.course('ALERTS{alertstate="firing"}', began, ended)
    fired = {series["metric"]["alertname"]: series["metric"] for series in firing}
    assert fired["MocaTargetDown"]["job"] == "moca-worker"
    assert fired.keys() <= {"MocaTargetDown", "MocaOldestPending"}
    exemplars = prometheus.get(
        "/query_exemplars", query="moca_changepoints_total", start=began, end=ended
    )
    streams = {e["labels"]["stream"] for series in exemplars for e in series["exemplars"]}
    assert len(streams) > 1
    assert streams <= {f"load-{i}" for i in range(STREAMS)}
    assert prometheus.value("moca:pending_observations") == 0
    assert prometheus.value("sum(moca_owned_partitions)") == 8
    for model in ("averaged", "gaussian"):
        coverage = f'moca:pit:coverage90_1h{{model="{model}"}}'
        assert 0.8 < prometheus.value(coverage) < 1
