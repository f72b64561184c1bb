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
from pathlib import Path

import pytest
import yaml

from service.api.routes.subscriptions import HEARTBEAT_S
from service.settings import Settings
from service.store import address

jsonschema = pytest.importorskip("jsonschema")
kubernetes_validate = pytest.importorskip("kubernetes_validate")
pytest.importorskip("cloudcoil.models.keda")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


CHART = ROOT / "deploy" / "helm" / "moca"


VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


DOCUMENT = (ROOT / "docs" / "deployment.md").read_text()


POD = {
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "batch", "operator": "Exists"}],
    "affinity": {"podAffinity": {}},
    "podAnnotations": {"team": "pumps"},
}


OURS = {
    **POD,
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
    "redis": {
        "password": 'of "a\\ test',
        "image": "redis:8.0",
        "sentinels": True,
        "extraConfig": "maxmemory 6gb\n",
        "storage": {"size": "50Gi", "className": "fast"},
        **POD,
    },
    "api": {"tag": "6", "autoscaling": {"enabled": False}, "replicas": 3, **OURS},
    "worker": {
        "keda": {"enabled": True, "maxReplicas": 32, "threshold": 1000000},
        "gpu": {"enabled": True, "memory": "8Gi"},
        **OURS,
    },
    "models": {"image": "registry.example/models:3"},
    "webhooks": {"enabled": True, "hosts": "hooks.example", **OURS},
    "ingress": {"enabled": True, "host": "streams.example", "annotations": {}},
    "monitoring": {
        "enabled": True,
        "labels": {"release": "prometheus"},
        "authorization": {"credentials": {"name": "moca-metrics", "key": "key"}},
        "url": "https://streams.example/",
    },
    "networkPolicy": {
        "extraEgress": [{"to": [{"ipBlock": {"cidr": "192.0.2.7/32"}}], "ports": [{"port": 4318}]}],
        "dns": {"to": [{"namespaceSelector": {}}], "ports": [{"protocol": "UDP", "port": 5353}]},
    },
}


ELSEWHERE = {
    "redis": {"url": "rediss://cache.example:6380/2", "passwordKey": "password"},
    "networkPolicy": {"redisEgress": [{"ports": [{"protocol": "TCP", "port": 6380}]}]},
}


PRODUCTION = {
    "redis": {"sentinels": True},
    "models": {"volume": {"enabled": True}},
    "webhooks": {"enabled": True},
    "ingress": {"enabled": True},
    "monitoring": {"enabled": True},
}
VERSIONS = ("1.29", "1.37")
HELM = shutil.which("helm", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a tenth of the time


def _strict(schema):
    """Refuse fields that a schema does not have."""
    for each in (schema, *schema["$defs"].values()):
        if "properties" in each:
            each["additionalProperties"] = False
    return schema


def _validator(kind):
    """Of a custom resource; a flag of Go's expressions is put where Python's have it."""
    text = json.dumps(kind.model_json_schema()).replace('"^(?i)', '"(?i)^')
    schema = _strict(json.loads(text))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@functools.cache
def custom():
    """Validators of custom resources, whose schemas take seconds to import and to check."""
    from cloudcoil.models.keda.v1alpha1 import ScaledObject
    from cloudcoil.models.prometheus_operator.v1 import PodMonitor, PrometheusRule

    kinds = (ScaledObject, PodMonitor, PrometheusRule)
    return {kind.__name__: _validator(kind) for kind in kinds}


def check(document, version):
    """Against the schema of its kind, of KEDA or the Prometheus Operator where it is theirs."""
    if (validator := custom().get(document["kind"])) is not None:
        validator.validate(document)
    else:
        kubernetes_validate.validate(document, version, strict=True)


def run(*arguments, values=None):
    """What helm prints, or the error with which it refuses."""
    if HELM is None:
        pytest.skip("no helm for this platform")
    command = [HELM, *map(str, arguments), "--values", "-"]
    text = json.dumps(values or {})
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else f"refused: {done.stderr}"


def template(values=None, release="zz", chart=CHART, options=()):
    text = run("template", release, chart, "--namespace", "moca", *options, values=values)
    assert not text.startswith("refused"), text
    return [each for each in yaml.load_all(text, LOADER) if each is not None]


def of_kind(found, kind):
    return {each["metadata"]["name"]: each for each in found if each["kind"] == kind}


def pods(found):
    return {
        each["metadata"]["name"]: each["spec"]["template"]
        for each in found
        if each["kind"] in ("Deployment", "StatefulSet")
    }


def test_whatever_the_values_each_object_is_valid():
    utils = kubernetes_validate.utils  # which would read megabytes anew for every object
    utils.schema_contents = functools.cache(utils.schema_contents)
    for values in ({}, MANY, ELSEWHERE, PRODUCTION):
        for document in template(values):
            for version in VERSIONS:
                check(document, version)
        assert "0 chart(s) failed" in run("lint", "--strict", CHART, values=values)
    wrong = template({})[-1]
    wrong["spec"]["replica"] = 2
    with pytest.raises((kubernetes_validate.ValidationError, jsonschema.ValidationError)):
        check(wrong, VERSIONS[-1])


def test_every_pod_is_hardened_and_the_network_closed():
    found = template(PRODUCTION)
    by_pod = pods(found)
    assert by_pod.keys() == {f"zz-moca-{name}" for name in ("api", "worker", "webhooks", "redis")}
    for pod in (each["spec"] for each in by_pod.values()):
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False  # $MOCA_PORT of a Service is no port
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]
            assert "readinessProbe" in container
    policies = {name: each["spec"] for name, each in of_kind(found, "NetworkPolicy").items()}
    closed = policies["zz-moca-closed"]
    assert ("ingress" in closed, "egress" in closed) == (False, False)
    assert closed["policyTypes"] == ["Ingress", "Egress"]
    labels = closed["podSelector"]["matchLabels"]
    assert labels["app.kubernetes.io/instance"] == "zz"
    (source,) = policies["zz-moca-redis"]["ingress"][0]["from"]
    (rule,) = source["podSelector"]["matchExpressions"]
    assert {"api", "worker", "webhooks"} == set(rule["values"])
    assert set(of_kind(found, "PodDisruptionBudget")) == by_pod.keys()


def test_sentinels_the_ingress_and_the_operator_fit_the_service():
    found = template(PRODUCTION)
    settings = of_kind(found, "ConfigMap")
    place = address.parse(settings["zz-moca"]["data"]["MOCA_REDIS_URL"])
    assert (place.kind, place.name) == ("sentinel", "moca")
    script = settings["zz-moca-redis"]["data"]["start.sh"]  # takes its names from the pod's
    head = script[: script.index("data=/data")]
    shell = f'hostname() {{ echo zz-moca-redis-2; }}\n{head}\necho "$hosts"; echo "$me"'
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)
    hosts, me = done.stdout.splitlines()
    assert hosts.split() == [host for host, _ in place.places]
    assert me == hosts.split()[2]
    redis = pods(found)["zz-moca-redis"]["spec"]
    (apart,) = redis["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    (ingress,) = of_kind(found, "Ingress").values()
    prefix, defaults = "nginx.ingress.kubernetes.io/", Settings()
    said = {key.removeprefix(prefix): v for key, v in ingress["metadata"]["annotations"].items()}
    largest = max(defaults.max_snapshot_bytes, defaults.max_body_bytes)
    assert int(said["proxy-body-size"].removesuffix("m")) << 20 >= largest
    quiet_s = max(defaults.request_deadline_s, HEARTBEAT_S)
    assert int(said["proxy-read-timeout"]) > quiet_s + 5
    assert said["proxy-buffering"] == said["proxy-next-upstream"] == "off"
    files = [ROOT / "deploy/prometheus/rules" / f"{name}.yml" for name in ("recording", "alerts")]
    expected = [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]
    (rule,) = of_kind(found, "PrometheusRule").values()
    names = [[r.get("alert") or r["record"] for r in g["rules"]] for g in rule["spec"]["groups"]]
    assert names == [[r.get("alert") or r["record"] for r in g["rules"]] for g in expected]
    (monitor,) = of_kind(found, "PodMonitor").values()
    ports = {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]}
    for pod in of_kind(found, "Deployment").values():
        (container,) = pod["spec"]["template"]["spec"]["containers"]
        assert {each["name"] for each in container["ports"]} <= ports


@pytest.mark.parametrize(
    ("release", "start"),
    [("1", "moca-1"), ("a" * 44 + "--b", "a" * 44), ("pumps.north", "pumps-north-moca")],
)
def test_names_are_valid_whatever_the_release_is_called(release, start):
    """Kubernetes takes names of Services by RFC 1035; pods of a StatefulSet are hosts."""
    found = template(MANY, release=release)
    for document in found:
        check(document, VERSIONS[-1])
        name = document["metadata"]["name"]
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name), name
        assert len(name) <= (253 if document["kind"] == "NetworkPolicy" else 63), name
        assert re.match(f"{start}(-|$)", name), name
    (redis,) = of_kind(found, "StatefulSet")
    assert len(redis) <= 52


def test_values_come_to_where_they_belong():
    found = template(MANY)
    (settings,) = (each["data"] for each in found if "MOCA_REDIS_URL" in each.get("data", {}))
    assert settings["MOCA_MAX_SNAPSHOT_BYTES"] == "134217728"
    assert settings["MOCA_TRACE_SHARE"] == "0.25"
    assert (settings["MOCA_LOG_LEVEL"], settings["MOCA_REQUIRE_KEYS"]) == ("debug", "false")
    assert settings["MOCA_PARTITIONS"] == "64"
    (secret,) = of_kind(found, "Secret").values()
    assert secret["stringData"] == {"redis_password": MANY["redis"]["password"]}
    by_pod = pods(found)
    images = {
        name: [each["image"] for each in pod["spec"]["containers"]] for name, pod in by_pod.items()
    }
    assert images == {
        "zz-moca-api": ["registry.example:5000/moca:6"],
        "zz-moca-worker": ["registry.example:5000/moca:7-gpu"],
        "zz-moca-webhooks": ["registry.example:5000/moca:7"],
        "zz-moca-redis": ["redis:8.0", "redis:8.0"],
    }
    for name, pod in by_pod.items():
        assert pod["metadata"]["annotations"]["team"] == "pumps"
        assert pod["spec"]["nodeSelector"] == POD["nodeSelector"]
        assert POD["affinity"].items() <= pod["spec"]["affinity"].items()
        assert POD["tolerations"][0] in pod["spec"]["tolerations"]
        assert pod["spec"]["imagePullSecrets"] == MANY["imagePullSecrets"]
        (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "redis")
        assert volume["secret"]["secretName"] == secret["metadata"]["name"]
        if name != "zz-moca-redis":
            (container,) = pod["spec"]["containers"]
            assert container["env"][-1:] == OURS["extraEnv"]
            assert OURS["extraVolumeMounts"][0] in container["volumeMounts"]
            assert OURS["extraVolumes"][0] in pod["spec"]["volumes"]
    (models,) = by_pod["zz-moca-api"]["spec"]["initContainers"]
    assert models["image"] == "registry.example/models:3"
    (scaler,) = of_kind(found, "ScaledObject").values()
    assert scaler["spec"]["triggers"][0]["metadata"]["threshold"] == "1000000"
    assert of_kind(found, "Deployment")["zz-moca-api"]["spec"]["replicas"] == 3
    assert not of_kind(found, "HorizontalPodAutoscaler")
    (monitor,) = of_kind(found, "PodMonitor").values()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (api, others) = monitor["spec"]["podMetricsEndpoints"]
    assert api["authorization"] == MANY["monitoring"]["authorization"]
    assert "authorization" not in others
    rules = json.dumps([*of_kind(found, "PrometheusRule").values()])
    assert "localhost" not in rules
    assert "https://streams.example/v1/changes?" in rules
    (redis,) = (each["data"] for each in found if "redis.conf" in each.get("data", {}))
    assert redis["redis.conf"].endswith("\nmaxmemory 3gb\nmaxmemory 6gb\n")


def test_pods_are_replaced_when_what_they_read_changes():
    def checksums(values):
        return {
            name: pod["metadata"]["annotations"]["checksum/config"]
            for name, pod in pods(template({"webhooks": {"enabled": True}, **values})).items()
        }

    before = checksums({})
    for values, changed in (
        ({"settings": {"MOCA_LOG_LEVEL": "debug"}}, {"api", "worker", "webhooks"}),
        ({"redis": {"extraConfig": "maxmemory 6gb"}}, {"redis"}),
        ({"redis": {"password": "other"}}, {"api", "worker", "webhooks", "redis"}),
        ({"api": {"replicas": 3}}, set()),
    ):
        after = checksums(values)
        assert {name for name in after if after[name] != before[name]} == {
            f"zz-moca-{name}" for name in changed
        }


def test_an_existing_redis_is_used_instead_of_one_of_the_chart():
    found = template(ELSEWHERE)
    assert not of_kind(found, "StatefulSet")
    assert not any("redis" in name for name in of_kind(found, "Service"))
    settings = of_kind(found, "ConfigMap")["zz-moca"]["data"]
    assert settings["MOCA_REDIS_URL"] == ELSEWHERE["redis"]["url"]
    (volume,) = (
        each for each in pods(found)["zz-moca-api"]["spec"]["volumes"] if each["name"] == "redis"
    )
    assert volume["secret"]["secretName"] == "moca-redis"
    assert volume["secret"]["items"] == [{"key": "password", "path": "redis_password"}]
    policies = of_kind(found, "NetworkPolicy")
    assert "zz-moca-redis" not in policies
    egress = policies["zz-moca-to-redis"]["spec"]["egress"]
    assert egress == ELSEWHERE["networkPolicy"]["redisEgress"]


REFUSED = [
    ({"worker": {"replicas": "two"}}, "worker.replicas"),
    ({"worker": {"replica": 2}}, "replica is not allowed"),
    ({"settings": {"MOCA_PARTITION": 8}}, "MOCA_PARTITION is not allowed"),
    ({"settings": {"MOCA_REDIS_URL": "redis://h"}}, "MOCA_REDIS_URL is not allowed"),
    ({"redis": {"url": "redis://u:p@h:1"}}, "redis.url: "),
    ({"redis": {"url": "redis://h:1"}}, "networkPolicy.redisEgress: "),
    ({"redis": {"passwordSecret": ""}}, "redis.passwordSecret: "),
    ({"redis": {"url": "redis://h", "sentinels": True}}, "redis.sentinels"),
    ({"models": {"image": "i", "volume": {"enabled": True}}}, "models.image: "),
    ({"settings": {"MOCA_PARTITIONS": 0}}, "settings.MOCA_PARTITIONS: "),
    ({"settings": {"MOCA_OPEN_ACCESS": True}}, "MOCA_REQUIRE_KEYS or MOCA_OPEN_ACCESS"),
]


def test_a_wrong_value_is_refused_by_its_name():
    for values, message in REFUSED:
        text = run("template", "zz", CHART, values=values)
        assert text.startswith("refused"), values
        assert message in text, text


def test_the_schema_has_the_settings_with_their_types_and_limits():
    stated = json.loads((CHART / "values.schema.json").read_text())
    stated = stated["properties"]["settings"]["properties"]
    for name, setting in Settings.model_json_schema()["properties"].items():
        (rule,) = (each for each in setting.get("anyOf", [setting]) if each["type"] != "null")
        limits = rule.keys() & {"type", "pattern", "minimum", "maximum", "exclusiveMinimum"}
        variable = f"MOCA_{name.upper()}"
        if variable in stated:
            assert stated.pop(variable) == {key: rule[key] for key in limits}, name
    assert stated == {}, "settings that there are none of"


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
    section = DOCUMENT[DOCUMENT.index("\n## Helm\n") :].split("\n## ")[1]
    named = re.findall(r"^\| `([\w.]+)`", section, re.MULTILINE)
    for name in named:
        value = VALUES
        for part in name.split("."):
            assert part in value, name
            value = value[part]
    assert {name.split(".")[0] for name in named} == VALUES.keys()
