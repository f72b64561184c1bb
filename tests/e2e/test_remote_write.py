"""Prometheus remote write into real processes."""

import time

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.calling import ask, history, slug
from tests.remote_write import V1, V2, version_1, version_2

T0 = 1_767_225_600_000  # ms, the begin of a minute
PARTS = ("samples", "histograms", "exemplars")


def labels(run, instance="a", job="ten", name="node_load1"):
    return {"__name__": name, "instance": instance, "job": job, "run": run}


def write(client, *series, headers=V1, **more):
    body = (version_2 if headers is V2 else version_1)(*series, **more)
    return client.post("/v1/prometheus/write", content=body, headers=headers)


def kept(client, stream):
    return [(each["y"], each["time"][11:23], each["elapsed"]) for each in history(client, stream)]


def test_a_rule_makes_the_stream_and_its_settings_can_be_changed(http, prefix):
    write(http, (labels(prefix), [(1.0, T0)])).raise_for_status()
    settings = ask(http, "GET", f"{prefix}a")["settings"]
    assert settings["tags"] == labels(prefix) | {"source": "prometheus"}
    chosen = [settings[name] for name in ("model", "interval", "ttl")]
    assert chosen == ["gaussian", 10.0, 604800.0]
    match = {"match": f'node_load1{{run="{prefix}"}}'}
    streams = http.get("/v1/streams", params=match).json()["streams"]
    assert [row["stream"] for row in streams] == [f"{prefix}a"]
    ask(http, "PUT", f"{prefix}a", json={"interval": 1.0, "tags": {"run": prefix}})
    write(http, (labels(prefix), [(2.0, T0 + 1000), (3.0, T0 + 3500)])).raise_for_status()
    assert [each[2] for each in kept(http, f"{prefix}a")] == [1.0, 1.0, 2.0]
    assert ask(http, "GET", f"{prefix}a")["settings"]["tags"] == {"run": prefix}


def test_what_cannot_be_taken_is_named_and_all_else_is_taken(http, prefix):
    bad = [(1.0, T0), (1.5, T0 + 10_000), (-1.0, T0 + 20_000), (2.0, T0 + 30_000)]
    now = int(time.time() * 1000)
    series = [
        (labels(prefix, "a", "counts"), bad),
        (labels(prefix, "b"), [(3.0, T0)]),
        (labels(prefix, "c") | {"long": "x" * 501}, [(1.0, T0)]),
        (labels(prefix, "d"), [(1.0, 10**17)]),  # a time after the year 9999
        (labels(prefix, "b", name="other"), [(4.0, T0)]),
        (labels(prefix, "e", name="noise"), [(4.0, T0)]),
        (labels(prefix, "f", "nobody"), [(4.0, T0)]),
        (labels(prefix, "g"), [(1.0, now + 3_600_000), (2.0, now)]),  # the first from the future
    ]
    answer = write(http, *series, headers=V2, histograms=[b"\x08\x01"])
    assert (answer.status_code, slug(answer)) == (400, "samples-rejected")
    assert answer.json()["rejected"] == 6
    written = {name: answer.headers[f"x-prometheus-remote-write-{name}-written"] for name in PARTS}
    assert written == {"samples": "6", "histograms": "0", "exemplars": "0"}
    assert [each[0] for each in kept(http, f"{prefix}a")] == [1.0, 2.0]
    assert kept(http, f"{prefix}a")[1][2] == 3.0
    assert [each[0] for each in kept(http, f"{prefix}b")] == [3.0]
    assert [each[0] for each in kept(http, f"{prefix}g")] == [2.0]
    streams = http.get("/v1/streams", params={"prefix": prefix}).json()["streams"]
    assert [row["stream"] for row in streams] == [f"{prefix}{name}" for name in "abg"]


def results(client, match):
    """Values by name and labels."""
    answer = client.get("/v1/prometheus/results", params={"match": match}).raise_for_status()
    families = list(text_string_to_metric_families(answer.text))
    samples = [each for family in families for each in family.samples]
    return {(each.name, *sorted(each.labels.items())): each.value for each in samples}


def test_results_are_those_of_the_last_observation(http, prefix):
    odd = {"note": 'a "b"\\c\nd', "metric": "taken"}
    series = [labels(prefix, "a") | odd, labels(prefix, "b")]
    samples = [(float((i * 7) % 5), T0 + 10_000 * i) for i in range(70)]
    assert write(http, *((each, samples) for each in series)).status_code == 204
    vector = f"{prefix}vector"
    settings = {"model": "gaussian", "location": [0, 0], "scale": [1, 1], "tags": {"run": prefix}}
    ask(http, "PUT", vector, 201, json=settings)
    assert len(results(http, f'{{run="{prefix}"}}')) == 6 * len(series)  # of this one none yet
    ask(http, "POST", f"{vector}/observations", json=[{"y": [1, 2]}] * 3)
    values = results(http, f'{{run="{prefix}"}}')
    outputs = {dict(key[1:]).get("output") for key in values if ("stream", vector) in key}
    assert {"0", "1"} <= outputs
    for each in series:
        stream = f"{prefix}{each['instance']}"
        (last,) = ask(http, "GET", f"{stream}/history?limit=1")["observations"]
        shown = {name: value for name, value in each.items() if name != "__name__"}
        shown |= {"metric": each.get("metric", "node_load1"), "source": "prometheus"}
        key = tuple(sorted((shown | {"stream": stream}).items()))
        predictive = last["predictive"]
        assert values[("moca_forecast", *key)] == predictive["quantiles"]["0.5"][0]
        assert values[("moca_forecast_lower", *key)] == predictive["quantiles"]["0.05"][0]
        assert values[("moca_forecast_upper", *key)] == predictive["quantiles"]["0.95"][0]
        assert values[("moca_anomaly", *key)] == last["anomaly"]
        assert values[("moca_changed_probability", *key)] == last["changed_probability"]
        assert values[("moca_evidence", *key)] == last["evidence"]
