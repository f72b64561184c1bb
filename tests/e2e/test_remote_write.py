"""Prometheus remote write into real processes."""

import random
import threading
import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.api.parsing.series_rules import SeriesRules
from service.errors.base import StartupError
from tests.e2e.deployment import PATIENCE_S, Processes, wait_ready
from tests.ports import free_port
from tests.remote_write import STALE, V1, V2, version_1, version_2

T0 = 1_767_225_600_000  # ms, the begin of a minute
PARTS = ("samples", "histograms", "exemplars")
RULES = """
[[rule]]
match = 'noise'
drop = true

[[rule]]
match = '{job="ten"}'
stream = "{run}:{instance}"
model = "gaussian"
location = 0
scale = 1
interval = 10
tags = {source = "prometheus"}

[[rule]]
match = '{job="counts"}'
stream = "{run}:{instance}"
model = "poisson"
interval = 10
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("write")
    rules, port = folder / "rules.toml", free_port()
    rules.write_text(RULES)
    environment = {"MOCA_PARTITIONS": "16", "MOCA_PROMETHEUS_RULES": str(rules)}
    environment |= {"MOCA_MAX_OBSERVATIONS": "100", "MOCA_MAX_RESULT_STREAMS": "5"}
    found = Processes(folder, environment)
    address = f"http://127.0.0.1:{port}"
    found.start("serve", "serve", "--data-dir", str(folder / "data"), "--port", str(port))
    try:
        wait_ready(address)
        yield address
    finally:
        found.stop_all()


@pytest.fixture
def client(url):
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture
def run():
    return f"w{random.randrange(10**9)}"


def labels(run, instance="a", job="ten", name="node_load1"):
    return {"__name__": name, "instance": instance, "job": job, "run": run}


def write(client, *series, headers=V1):
    body = (version_2 if headers is V2 else version_1)(*series)
    return client.post("/v1/prometheus/write", content=body, headers=headers)


def history(client, stream):
    found = client.get(f"/v1/streams/{stream}/history?start=0&limit=1000").json()["observations"]
    return [(each["y"], each["time"][11:23], each["elapsed"]) for each in found]


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def counted(client, name, **labels):
    given = "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}"
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name + given))


def test_the_first_sample_of_each_interval_counts_once(client, run):
    samples = [(float(i), T0 + 4000 * i) for i in range(8)]  # at 0, 4, 8, 12 ... 28 s
    assert write(client, (labels(run), samples)).status_code == 204
    expected = [(0.0, "00:00:00.000", 1.0), (3.0, "00:00:12.000", 1.0), (5.0, "00:00:20.000", 1.0)]
    assert history(client, f"{run}:a") == expected
    assert write(client, (labels(run), samples)).status_code == 204
    again = [*samples[3:], (9.0, T0 + 29_999), (7.0, T0 + 65_000)]
    assert write(client, (labels(run), again)).status_code == 204
    gap = (7.0, "00:01:05.000", 4.0)
    assert history(client, f"{run}:a") == [*expected, gap]


def test_labels_and_settings_of_a_rule_are_those_of_the_stream(client, run):
    write(client, (labels(run), [(1.0, T0)])).raise_for_status()
    settings = client.get(f"/v1/streams/{run}:a").json()["settings"]
    assert settings["tags"] == labels(run) | {"source": "prometheus"}
    assert (settings["model"], settings["interval"], settings["ttl"]) == (
        "gaussian@1",
        10.0,
        604800.0,
    )
    found = client.get("/v1/streams", params={"match": f'node_load1{{run="{run}"}}'}).json()
    assert [row["stream"] for row in found["streams"]] == [f"{run}:a"]
    changed = {"interval": 1.0, "tags": {"run": run}}
    client.put(f"/v1/streams/{run}:a", json=changed).raise_for_status()
    write(client, (labels(run), [(2.0, T0 + 1000), (3.0, T0 + 3500)])).raise_for_status()
    assert [each[2] for each in history(client, f"{run}:a")] == [1.0, 1.0, 2.0]
    assert client.get(f"/v1/streams/{run}:a").json()["settings"]["tags"] == {"run": run}


def test_values_that_are_no_numbers_leave_a_gap(client, run):
    values = [1.0, STALE, float("inf"), float("-inf"), 2.0]
    samples = [(value, T0 + 10_000 * i) for i, value in enumerate(values)]
    assert write(client, (labels(run), samples)).status_code == 204
    found = [(y, elapsed) for y, _, elapsed in history(client, f"{run}:a")]
    assert found == [(1.0, 1.0), (2.0, 4.0)]


def test_samples_from_the_future_do_not_block_their_stream(client, run):
    now = int(time.time() * 1000)
    series = (labels(run), [(1.0, now + 3_600_000), (2.0, now)])
    answer = write(client, series)
    assert answer.status_code == 400
    assert answer.json()["rejected"] == 1
    assert f"sample with timestamp {now + 3_600_000}: expected at most 600 s" in answer.text
    assert [each[0] for each in history(client, f"{run}:a")] == [2.0]


def test_version_2_says_what_was_written(client, run):
    before = counted(client, "moca_remote_write_ignored_total", kind="histogram")
    series = [(labels(run, instance), [(1.0, T0), (2.0, T0 + 1)]) for instance in "abc"]
    body = version_2(*series, histograms=[b"\x08\x01"])
    answer = client.post("/v1/prometheus/write", content=body, headers=V2)
    assert answer.status_code == 204
    written = {name: answer.headers[f"x-prometheus-remote-write-{name}-written"] for name in PARTS}
    assert written == {"samples": "6", "histograms": "0", "exemplars": "0"}
    assert counted(client, "moca_remote_write_ignored_total", kind="histogram") == before + 3
    for instance in "abc":
        assert [each[0] for each in history(client, f"{run}:{instance}")] == [1.0]


def test_what_cannot_be_taken_is_named_and_all_else_is_taken(client, run):
    bad = [(1.0, T0), (1.5, T0 + 10_000), (-1.0, T0 + 20_000), (2.0, T0 + 30_000)]
    long = labels(run, "c") | {"long": "x" * 501}
    late = [(1.0, 10**17)]  # a time after the year 9999
    series = [
        (labels(run, "a", "counts"), bad),
        (labels(run, "b"), [(3.0, T0)]),
        (long, [(1.0, T0)]),
        (labels(run, "d"), late),
        (labels(run, "b", name="other"), [(4.0, T0)]),
        (labels(run, "e", name="noise"), [(4.0, T0)]),
        (labels(run, "f", "nobody"), [(4.0, T0)]),
    ]
    answer = write(client, *series, headers=V2)
    assert answer.status_code == 400
    problem = answer.json()
    assert problem["type"].endswith("/samples-rejected")
    assert problem["rejected"] == 5
    assert "5 of 10 samples cannot be taken" in problem["detail"]
    assert answer.headers["x-prometheus-remote-write-samples-written"] == "5"
    assert [each[0] for each in history(client, f"{run}:a")] == [1.0, 2.0]
    assert history(client, f"{run}:a")[1][2] == 3.0
    assert [each[0] for each in history(client, f"{run}:b")] == [3.0]
    prefix = {"prefix": f"{run}:"}
    assert len(client.get("/v1/streams", params=prefix).json()["streams"]) == 2


@pytest.mark.parametrize(
    ("headers", "content", "status", "slug"),
    [
        (V1 | {"Content-Type": "application/json"}, b"{}", 415, "unsupported-media-type"),
        (V1 | {"Content-Type": V1["Content-Type"] + ";proto=x.Y"}, b"", 415, "unsupported-media"),
        (V1 | {"Content-Encoding": "gzip"}, b"", 415, "unsupported-encoding"),
        (V1, b"nonsense", 400, "malformed-body"),
        (V1, version_2(({"a": "b"}, [(1.0, T0)]))[:-3], 400, "malformed-body"),
        (V1, b"\xff\xff\xff\xff\x0f", 413, "body-too-large"),  # declares 4 GiB
        (V1, version_1(({"a": "b"}, [(1.0, T0)] * 101)), 413, "body-too-large"),
        (V1, version_1(*[({"a": "b"}, [])] * 101), 413, "body-too-large"),
    ],
)
def test_bodies_that_are_no_remote_write_are_refused(client, headers, content, status, slug):
    answer = client.post("/v1/prometheus/write", content=content, headers=headers)
    assert answer.status_code == status
    assert slug in answer.json()["type"]


def test_labels_of_2_0_must_be_among_the_symbols(client):
    from service.api.parsing import remote_write
    from tests.remote_write import packed

    request = remote_write._CLASS["Request2"]()
    request.timeseries.add().labels_refs.extend([7, 8])
    answer = client.post("/v1/prometheus/write", content=packed(request), headers=V2)
    assert answer.status_code == 400
    assert "number of symbols" in answer.json()["detail"]
    assert write(client).status_code == 204  # nothing in it


def results(client, match):
    """Values by name and labels."""
    answer = client.get("/v1/prometheus/results", params={"match": match}).raise_for_status()
    families = list(text_string_to_metric_families(answer.text))
    samples = [each for family in families for each in family.samples]
    found = {(each.name, *sorted(each.labels.items())): each.value for each in samples}
    assert len(found) == len(samples)
    return found


def test_results_are_those_of_the_last_observation(client, run):
    odd = {"note": 'a "b"\\c\nd', "metric": "taken"}
    series = [labels(run, instance) | (odd if instance == "a" else {}) for instance in "abcde"]
    for i in range(130):  # beyond what is sealed
        samples = [(float((i * 7) % 5), T0 + 10_000 * i)]
        assert write(client, *((each, samples) for each in series)).status_code == 204
    found = results(client, f'{{run="{run}"}}')
    assert len(found) == 5 * len(series)
    for each in series:
        stream = f"{run}:{each['instance']}"
        (last,) = client.get(f"/v1/streams/{stream}/history?limit=1").json()["observations"]
        shown = {name: value for name, value in each.items() if name != "__name__"}
        shown |= {"metric": each.get("metric", "node_load1"), "source": "prometheus"}
        key = tuple(sorted((shown | {"stream": stream}).items()))
        predictive = last["predictive"]
        assert found[("moca_forecast_mean", *key)] == predictive["mean"][0]
        assert found[("moca_forecast_lower", *key)] == predictive["quantiles"]["0.05"][0]
        assert found[("moca_forecast_upper", *key)] == predictive["quantiles"]["0.95"][0]
        assert found[("moca_anomaly", *key)] == last["anomaly"]
        assert found[("moca_changed_probability", *key)] == last["changed_probability"]


def test_outputs_have_a_label_and_more_streams_than_the_limit_are_refused(client, run):
    vector = f"{run}-vector"
    settings = {"model": "gaussian", "location": [0, 0], "scale": [1, 1], "tags": {"run": run}}
    client.put(f"/v1/streams/{vector}", json=settings).raise_for_status()
    assert results(client, f'{{run="{run}"}}') == {}  # nothing was observed yet
    client.post(f"/v1/streams/{vector}/observations", json=[{"y": [1, 2]}] * 3).raise_for_status()
    found = results(client, f'{{run="{run}"}}')
    outputs = {dict(key[1:]).get("output") for key in found if key[0] == "moca_forecast_mean"}
    assert outputs == {"0", "1"}
    write(client, *((labels(run, each), [(1.0, T0)]) for each in "abcde")).raise_for_status()
    refused = client.get("/v1/prometheus/results", params={"match": f'{{run="{run}"}}'})
    assert refused.status_code == 422
    assert "expected at most 5 streams (max_result_streams)" in refused.json()["detail"]
    assert len(results(client, f'{{run="{run}",stream!="{vector}"}}')) == 5 * 5


def test_results_keep_tags_that_their_own_labels_hide(client, run):
    vector = f"{run}-odd"
    stream_tags = {"run": run, "output": "o", "exported_output": "e", "__meta": "m"}
    settings = {"model": "gaussian", "location": [0, 0], "scale": [1, 1], "tags": stream_tags}
    client.put(f"/v1/streams/{vector}", json=settings).raise_for_status()
    client.post(f"/v1/streams/{vector}/observations", json=[{"y": [1, 2]}] * 3).raise_for_status()
    keys = [dict(key[1:]) for key in results(client, f'{{run="{run}"}}')]
    assert keys
    for key in keys:
        assert key.pop("output", None) in {None, "0", "1"}
        assert key.pop("exported_exported_output") == "o"
        assert key == {"run": run, "exported_output": "e", "stream": vector}


def test_nothing_is_lost_or_doubled_when_workers_and_the_api_are_killed(separate, processes):
    """A writer that sends again what was not acknowledged, as Prometheus does."""
    url, seconds = separate, 60_000
    series = [{"__name__": "load", "instance": f"i{i}", "job": "node"} for i in range(12)]
    sent, stop = [], threading.Event()

    def send():
        with httpx.Client(base_url=url, timeout=30) as client:
            for step in range(60):
                batch = [(each, [(float(step), T0 + seconds * step)]) for each in series]
                while not stop.is_set():
                    try:
                        answer = write(client, *batch)
                    except httpx.HTTPError:
                        stop.wait(0.05)
                        continue
                    if answer.status_code == 204:
                        sent.append(step)
                        break
                    assert answer.status_code == 503, answer.text
                    stop.wait(0.05)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        for name, steps in (("worker-a", 10), ("api", 20), ("worker-b", 35)):
            wait_for(lambda steps=steps: len(sent) >= steps)
            processes.kill(name)
            port = url.rpartition(":")[2]
            again = ("api", "--port", port) if name == "api" else ("worker", "--worker-id", name)
            processes.start(name, *again)
        thread.join(120)
    finally:
        stop.set()
        thread.join()
    assert len(sent) == 60
    with httpx.Client(base_url=url, timeout=60) as client:
        wait_ready(url)
        streams = [row["stream"] for row in client.get("/v1/streams").json()["streams"]]
        assert len(streams) == 12
        for stream in streams:
            found = history(client, stream)
            assert [each[0] for each in found] == [float(step) for step in range(60)]
            assert {each[2] for each in found} == {1.0}


def test_rules_that_cannot_be_used_stop_the_start(tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nmatch = "{"')
    with pytest.raises(StartupError, match=r"rule\.0\.match: .* expected a selector"):
        SeriesRules(rules, None)


def test_what_telegraf_and_vector_send_is_taken(client, run):
    """As their configurations in docs/prometheus.md make them send; see their serializers."""
    sent = V1 | {"X-Prometheus-Remote-Write-Version": "0.1.0"}
    # Telegraf: a field is a series, its name comes last, and series have no order.
    tags = {"run": run, "job": "ten", "host": "a"}
    telegraf = version_1(
        *(
            ({"instance": field, **tags, "__name__": f"cpu_{field}"}, [(2.5, T0)])
            for field in ("user", "idle")
        )
    )
    # Vector: labels sorted, one sample of each metric in a batch.
    vector = version_1(({"__name__": "host_load1", "instance": "load", **tags}, [(0.5, T0 + 1)]))
    for body in (telegraf, vector):
        answer = client.post("/v1/prometheus/write", content=body, headers=sent)
        assert answer.status_code == 204, answer.text
    for stream, y in (("user", 2.5), ("idle", 2.5), ("load", 0.5)):
        history = client.get(f"/v1/streams/{run}:{stream}/history").raise_for_status().json()
        assert [each["y"] for each in history["observations"]] == [y]
        assert client.get(f"/v1/streams/{run}:{stream}").json()["settings"]["tags"]["host"] == "a"
