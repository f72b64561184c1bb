"""The Helm chart: valid under the schemas of Kubernetes, hardened, complete, by its values.

Its tools are those of the extra `test-all`.
"""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from base64 import b64decode
from pathlib import Path

import pytest
import yaml

from service.api.sse import HEARTBEAT_S
from service.settings import Settings

kubernetes_validate = pytest.importorskip("kubernetes_validate")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "moca"
VERSIONS = ("1.29", "1.37")
HELM = shutil.which("helm", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a tenth of the time
OURS = {
    "podAnnotations": {"team": "pumps"},
    "podSpec": {"nodeSelector": {"disk": "fast"}, "tolerations": [{"operator": "Exists"}]},
    "extraEnv": [
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "otlp", "key": "token"}}}
    ],
    "extraVolumes": [{"name": "rules", "configMap": {"name": "rules"}}],
    "extraVolumeMounts": [{"name": "rules", "mountPath": "/etc/rules"}],
}
# Values of nearly every kind, each other than its default.
MANY = {
    "image": {
        "repository": "registry.example:5000/moca",
        "tag": "7",
        "gpuTag": "7-gpu",
        "pullPolicy": "Always",
    },
    "imagePullSecrets": [{"name": "registry"}],
    "settings": {
        "MOCA_MAX_SNAPSHOT_BYTES": 1 << 27,
        "MOCA_TRACE_SHARE": 0.25,
        "MOCA_LOG_LEVEL": "debug",
        "MOCA_REQUIRE_KEYS": False,
    },
    "store": {
        "passwordSecret": "own",
        "maxmemory": "5gb",
        "storage": {"size": "50Gi", "className": "fast"},
    },
    "api": {"tag": "6", "autoscaling": {"enabled": False}, "replicas": 3, **OURS},
    "worker": {"gpu": True, **OURS},
    "models": {"image": "registry.example/models:3"},
    "webhooks": {"enabled": True, "hosts": "hooks.example", **OURS},
    "ingress": {"enabled": True, "host": "streams.example"},
    "monitoring": {
        "enabled": True,
        "labels": {"release": "prometheus"},
        "authorization": {"credentials": {"name": "moca-metrics", "key": "key"}},
        "url": "https://streams.example/",
    },
    "networkPolicy": {
        "extraEgress": [{"to": [{"ipBlock": {"cidr": "192.0.2.7/32"}}], "ports": [{"port": 4318}]}],
    },
}
MANAGED = {
    "store": {
        "url": "rediss://cache.example:6380/2",
        "passwordSecret": "own",
        "passwordKey": "password",
    },
    "networkPolicy": {"storeEgress": [{"ports": [{"protocol": "TCP", "port": 6380}]}]},
}


def run(*arguments, values=None):
    """What helm prints, or the error with which it refuses."""
    if HELM is None:
        pytest.skip("no helm for this platform")
    command = [HELM, *map(str, arguments), "--values", "-"]
    text = json.dumps(values or {})
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else f"refused: {done.stderr}"


def template(values=None, release="zz", chart=CHART):
    """The objects of a release by kind and name."""
    text = run("template", release, chart, "--namespace", "moca", values=values)
    assert not text.startswith("refused"), text
    documents = [document for document in yaml.load_all(text, LOADER) if document is not None]
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


def pods(objects):
    return {
        name: document["spec"]["template"]
        for (kind, name), document in objects.items()
        if kind in ("Deployment", "StatefulSet")
    }


@pytest.mark.parametrize("values", [{}, MANY, MANAGED], ids=["defaults", "many", "managed"])
def test_whatever_the_values_each_object_is_valid(values, monkeypatch):
    utils = kubernetes_validate.utils  # which would read megabytes anew for every object
    cached = functools.cache(utils.schema_contents)
    monkeypatch.setattr(utils, "schema_contents", cached)
    for (kind, name), document in template(values).items():
        if kind not in ("PodMonitor", "PrometheusRule"):  # of the Prometheus Operator
            for version in VERSIONS:
                kubernetes_validate.validate(document, version, strict=True)
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name), name
    assert "0 chart(s) failed" in run("lint", "--strict", CHART, values=values)


@pytest.mark.parametrize(
    ("release", "start"),
    [("1", "moca-1"), ("a" * 44 + "--b", "a" * 44), ("pumps.north", "pumps-north-moca")],
)
def test_names_are_valid_whatever_the_release_is_called(release, start):
    """Kubernetes takes names of Services by RFC 1035; pods of a StatefulSet are hosts."""
    for kind, name in template(MANY, release=release):
        assert re.fullmatch(rf"{start}(-[-a-z0-9]*[a-z0-9])?", name), name
        assert len(name) <= {"NetworkPolicy": 253, "StatefulSet": 52}.get(kind, 63), name


def test_every_pod_is_hardened_and_the_network_closed():
    objects = template(MANY)
    assert pods(objects).keys() == {
        f"zz-moca-{name}" for name in ("api", "worker", "webhooks", "valkey")
    }
    for name, template_of_pod in pods(objects).items():
        component = template_of_pod["metadata"]["labels"]["app.kubernetes.io/component"]
        assert name == f"zz-moca-{component}"
        pod = template_of_pod["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False  # $MOCA_PORT of a Service is no port
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"] + pod.get("initContainers", []):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "memory" in container["resources"]["limits"]
    closed = objects["NetworkPolicy", "zz-moca-closed"]["spec"]
    assert closed["podSelector"]["matchLabels"] == {"app.kubernetes.io/instance": "zz"}
    assert "ingress" not in closed
    assert closed["policyTypes"] == ["Ingress", "Egress"]
    assert {port["port"] for rule in closed["egress"] for port in rule["ports"]} == {53}
    (rule,) = objects["NetworkPolicy", "zz-moca-valkey"]["spec"]["ingress"]
    (clients,) = rule["from"][0]["podSelector"]["matchExpressions"]
    assert clients["values"] == ["api", "worker", "webhooks"]


def test_values_come_to_where_they_belong():
    objects = template(MANY)
    settings = objects["ConfigMap", "zz-moca"]["data"]
    assert settings["MOCA_REDIS_URL"] == "redis://zz-moca-valkey:6379/0"
    assert settings["MOCA_MAX_SNAPSHOT_BYTES"] == "134217728"
    assert settings["MOCA_TRACE_SHARE"] == "0.25"
    assert settings["MOCA_REQUIRE_KEYS"] == "false"
    assert settings["MOCA_PARTITIONS"] == "64"
    tags = {"api": "6", "worker": "7-gpu", "webhooks": "7"}
    for component, tag in tags.items():
        pod = pods(objects)[f"zz-moca-{component}"]
        (container,) = pod["spec"]["containers"]
        assert container["image"] == f"registry.example:5000/moca:{tag}"
        assert pod["metadata"]["annotations"]["team"] == "pumps"
        assert OURS["podSpec"].items() <= pod["spec"].items()
        assert pod["spec"]["imagePullSecrets"] == MANY["imagePullSecrets"]
        assert OURS["extraEnv"][0] in container["env"]
        assert OURS["extraVolumeMounts"][0] in container["volumeMounts"]
        assert OURS["extraVolumes"][0] in pod["spec"]["volumes"]
        (models,) = pod["spec"]["initContainers"]
        assert models["image"] == "registry.example/models:3"
    (worker,) = pods(objects)["zz-moca-worker"]["spec"]["containers"]
    assert worker["resources"]["limits"] == {"memory": "2Gi", "nvidia.com/gpu": 1}
    assert {"name": "MOCA_DEVICE", "value": "cuda:0"} in worker["env"]
    assert objects["Deployment", "zz-moca-api"]["spec"]["replicas"] == 3
    assert ("HorizontalPodAutoscaler", "zz-moca-api") not in objects
    (valkey,) = pods(objects)["zz-moca-valkey"]["spec"]["containers"]
    assert "--maxmemory 5gb" in valkey["command"][-1]
    annotations = objects["Ingress", "zz-moca-api"]["metadata"]["annotations"]
    prefix = "nginx.ingress.kubernetes.io/proxy"
    largest = Settings().max_snapshot_bytes
    assert int(annotations[f"{prefix}-body-size"].removesuffix("m")) << 20 >= largest
    quiet_s = max(Settings().request_deadline_s, HEARTBEAT_S)
    assert int(annotations[f"{prefix}-read-timeout"]) > quiet_s + 5
    defaults = template({})
    assert len(b64decode(defaults["Secret", "zz-moca-store"]["data"]["valkey_password"])) > 40
    assert "replicas" not in defaults["Deployment", "zz-moca-api"]["spec"]  # the autoscaler's
    assert ("HorizontalPodAutoscaler", "zz-moca-api") in defaults


def test_prometheus_finds_each_pod_and_has_the_rules():
    objects = template(MANY)
    monitor = objects["PodMonitor", "zz-moca"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (api, others) = monitor["spec"]["podMetricsEndpoints"]
    assert api["authorization"] == MANY["monitoring"]["authorization"]
    assert "authorization" not in others
    for component, endpoint in (("api", api), ("worker", others), ("webhooks", others)):
        (container,) = pods(objects)[f"zz-moca-{component}"]["spec"]["containers"]
        assert endpoint["port"] in {port["name"] for port in container["ports"]}
    rule = objects["PrometheusRule", "zz-moca"]
    assert "localhost" not in json.dumps(rule)
    groups = []
    for name in ("recording", "alerts"):
        text = (ROOT / "deploy" / "prometheus" / "rules" / f"{name}.yml").read_text()
        text = text.replace("http://localhost:8000", "https://streams.example")
        groups += yaml.safe_load(text)["groups"]
    assert rule["spec"]["groups"] == groups


def test_a_change_of_settings_replaces_the_pods_that_read_them():
    def checksums(values):
        return {
            name: pod["metadata"]["annotations"]["checksum/config"]
            for name, pod in pods(template(values)).items()
        }

    before = checksums({})
    assert checksums({"api": {"replicas": 3}}) == before
    after = checksums({"settings": {"MOCA_LOG_LEVEL": "debug"}})
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"zz-moca-api", "zz-moca-worker"}


def test_a_managed_store_is_used_instead_of_one_of_the_chart():
    objects = template(MANAGED)
    assert not any("valkey" in name for _, name in objects)
    assert not any(kind == "Secret" for kind, _ in objects)
    settings = objects["ConfigMap", "zz-moca"]["data"]
    assert settings["MOCA_REDIS_URL"] == MANAGED["store"]["url"]
    (volume,) = (
        volume
        for volume in pods(objects)["zz-moca-api"]["spec"]["volumes"]
        if volume["name"] == "store"
    )
    assert volume["secret"]["secretName"] == "own"
    assert volume["secret"]["items"] == [{"key": "password", "path": "valkey_password"}]
    egress = objects["NetworkPolicy", "zz-moca-clients"]["spec"]["egress"]
    assert egress == MANAGED["networkPolicy"]["storeEgress"]


REFUSED = [
    ({"worker": {"replicas": "two"}}, "worker.replicas"),
    ({"worker": {"replica": 2}}, "replica is not allowed"),
    ({"settings": {"MOCA_REDIS_URL": "redis://h"}}, "settings"),
    ({"settings": {"PARTITIONS": 8}}, "settings"),
    ({"store": {"url": "redis://u:p@h:1"}}, "store.url: "),
    ({"store": {"url": "redis://h:1"}}, "networkPolicy.storeEgress: "),
    ({"settings": {"MOCA_OPEN_ACCESS": True}}, "MOCA_REQUIRE_KEYS or MOCA_OPEN_ACCESS"),
]


def test_a_wrong_value_is_refused_by_its_name():
    for values, message in REFUSED:
        text = run("template", "zz", CHART, values=values)
        assert text.startswith("refused"), values
        assert message in text, text


def test_the_package_the_version_and_the_table_of_values(tmp_path):
    """A package goes where the folders that its links lead to are not."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)
    subprocess.run([HELM, "package", str(CHART), "--destination", str(tmp_path)], check=True)
    (package,) = tmp_path.iterdir()
    with tarfile.open(package) as archive:
        assert [member.name for member in archive if not member.isreg()] == []
    assert template(MANY, chart=package) == template(MANY)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    page = (ROOT / "docs" / "deployment.md").read_text()
    section = page[page.index("\n## Kubernetes\n") :].split("\n## ")[1]
    named = re.findall(r"^\| `([\w.]+)`", section, re.MULTILINE)
    for name in named:
        value = values
        for part in name.split("."):
            assert part in value, name
            value = value[part]
    assert {name.split(".")[0] for name in named} == values.keys()
