"""The Helm chart: what it deploys is what kustomize does, under the names of a release."""

import json
import re
import subprocess
import tarfile
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from service.settings import Settings
from service.store import address
from tests.deploy.manifests import FOLDER, VERSIONS, check, documents, flat, made, of_kind, tool

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "moca"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DOCUMENT = (ROOT / "docs" / "deployment.md").read_text()
# Settings that the chart sets itself, or for which the image has a place.
OWN = {
    "MOCA_REDIS_URL", "MOCA_REDIS_PASSWORD_FILE", "MOCA_DATA_DIR", "MOCA_MODELS_DIR", "MOCA_HOST",
    "MOCA_PORT", "MOCA_WORKERS", "MOCA_DEVICE", "MOCA_METRICS_PORT", "MOCA_WEBHOOKS_FILE",
    "MOCA_WEBHOOK_HOSTS",
}  # fmt: skip
# Values by the overlay of kustomize that deploys the same.
OVERLAYS = {
    "base": {},
    "overlays/keda": {"worker": {"keda": {"enabled": True}}},
    "overlays/gpu": {"worker": {"gpu": {"enabled": True}}},
    "overlays/production": {
        "redis": {"sentinels": True},
        "models": {"volume": {"enabled": True}},
        "webhooks": {"enabled": True},
        "ingress": {"enabled": True},
        "monitoring": {"enabled": True},
    },
}
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
# Another value for nearly all that there are.
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


# All parts on, with the values that they have.
MANY_ON = {
    "redis": {"sentinels": True},
    "worker": {"keda": {"enabled": True}},
    "webhooks": {"enabled": True},
    "ingress": {"enabled": True},
    "monitoring": {"enabled": True},
}


def merged(one, other):
    """Values of both; those of the other win."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return other
    both = {key: merged(one[key], other[key]) for key in one.keys() & other.keys()}
    return one | other | both


def run(*arguments, values=None):
    """What helm prints, or the error with which it refuses."""
    done = subprocess.run(
        [tool("helm"), *map(str, arguments), "--values", "-"],
        input=json.dumps(values or {}),
        capture_output=True,
        text=True,
    )
    return done.stdout if done.returncode == 0 else f"refused: {done.stderr}"


def template(values=None, release="zz", chart=CHART, options=()):
    text = run("template", release, chart, "--namespace", "moca", *options, values=values)
    assert not text.startswith("refused"), text
    return documents(text)


def pods(found):
    return {
        each["metadata"]["name"]: each["spec"]["template"]
        for each in found
        if each["kind"] in ("Deployment", "StatefulSet")
    }


def plain(node, rename):
    """A part of a document without what Helm adds, its names as the files have them."""
    if isinstance(node, list):
        return [plain(each, rename) for each in node]
    if not isinstance(node, dict):
        return rename(node) if isinstance(node, str) else node
    left = {
        key: plain(value, rename)
        for key, value in node.items()
        if key not in ("app.kubernetes.io/instance", "checksum/config", "helm.sh/resource-policy")
    }
    for key in ("matchLabels", "annotations"):
        if left.get(key) == {} != node[key]:  # nothing else was in it
            del left[key]
    if left.get("initContainers") == []:  # kustomize leaves an empty list
        del left["initContainers"]
    if isinstance(left.get("volumes"), list):  # and moves them
        left["volumes"].sort(key=lambda volume: volume["name"])
    return left


def by_name(found, rename):
    """Documents by kind and name; a namespace is made beside a chart."""
    objects = {}
    for each in found:
        if each["kind"] != "Namespace":
            for key in ("labels", "namespace"):
                each["metadata"].pop(key, None)
            document = plain(each, rename)
            if document["kind"] == "PrometheusRule":
                document["spec"] = flat(document["spec"]["groups"])
            objects[document["kind"], document["metadata"]["name"]] = document
    return objects


def of_kustomize(text):
    return re.sub(r"^(moca|redis)-[a-z0-9]{10}$", r"\1", text)


def of_helm(text):
    return re.sub(r"\bzz-moca$", "moca", text.replace("zz-moca-", ""))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_chart_deploys_what_kustomize_does(overlay):
    expected = by_name(made(overlay), of_kustomize)
    found = by_name(template(OVERLAYS[overlay]), of_helm)
    assert found.keys() == expected.keys()
    for key, document in found.items():
        assert document == expected[key], key


@pytest.mark.parametrize(
    ("release", "start"),
    [
        ("1", "moca-1"),
        ("1.moca", "moca-1-moca"),
        ("pumps.north", "pumps-north-moca"),
        ("a" * 53, "a" * 46),
        ("a" * 44 + "--b", "a" * 44),
        ("a" * 45 + ".b", "a" * 45),
        ("a" * 41 + ".moca", "a" * 41 + "-moca"),
        ("moca", "moca"),
    ],
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


def test_the_secret_of_a_password_is_not_the_one_that_users_create():
    found = template({"redis": {"password": "p"}}, release="moca")
    (secret,) = of_kind(found, "Secret")
    assert secret != VALUES["redis"]["passwordSecret"]
    for pod in pods(found).values():
        (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "redis")
        assert volume["secret"]["secretName"] == secret


def test_sentinels_stay_on_nodes_of_their_own_beside_another_affinity():
    def affinity(own):
        found = template({"redis": {"sentinels": True, "affinity": own}})
        return pods(found)["zz-moca-redis"]["spec"]["affinity"]

    apart = affinity({})["podAntiAffinity"]
    node = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}
    assert affinity(node) == {**node, "podAntiAffinity": apart}
    other = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    assert affinity(other) == other


def _texts(node, skipped):
    """Values that are strings, a number in place of each; `skipped`: those of a fixed form."""
    if isinstance(node, dict):
        found = {
            key: _texts(value, skipped)
            for key, value in node.items()
            if isinstance(value, str | dict) and key not in skipped
        }
        return {key: value for key, value in found.items() if value != {}}
    return "1"


def test_a_value_that_looks_like_a_number_stays_a_string():
    skipped = {"url", "prometheusUrl", "pullPolicy", "size", "resources", "memory", "password"}
    texts = _texts(VALUES, skipped | {"settings", "extraConfig"})
    assert texts["networkPolicy"] == {"metricsNamespace": "1"}  # as an example
    several = merged(texts, MANY_ON)
    made_claim = {"existingClaim": ""}
    for values in (
        several,
        merged(several, {"models": {"image": "", "volume": {"enabled": True}}}),
        merged(several, {"models": {"image": "", "volume": {"enabled": True, **made_claim}}}),
    ):
        for document in template(values):
            check(document, VERSIONS[-1])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", [{}, MANY, ELSEWHERE, OVERLAYS["overlays/production"]])
def test_whatever_the_values_each_object_is_valid(values, version):
    for document in template(values):
        check(document, version)


def test_lint_finds_nothing():
    for values in ({}, MANY, ELSEWHERE):
        assert "0 chart(s) failed" in run("lint", "--strict", CHART, values=values)


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


def test_every_process_takes_the_url_of_a_secret():
    """As documented; Kubernetes prefers `env` to `envFrom`."""
    values = yaml.safe_load(re.search(r"```yaml\n(redis: .*?)```", DOCUMENT, re.DOTALL)[1])
    by_pod = pods(template(merged(values, {"webhooks": {"enabled": True}})))
    assert by_pod.keys() == {"zz-moca-api", "zz-moca-worker", "zz-moca-webhooks"}
    for pod in by_pod.values():
        (container,) = pod["spec"]["containers"]
        (url,) = (each for each in container["env"] if each["name"] == "MOCA_REDIS_URL")
        assert url["valueFrom"] == {"secretKeyRef": {"name": "moca-redis", "key": "url"}}
        # A password of a file beside one in the URL is refused.
        assert not any(each["name"] == "redis" for each in container["volumeMounts"])


def test_a_redis_without_a_password_has_no_secret():
    found = template({"redis": {"url": "redis://h:1", "passwordSecret": ""}, **_no_policies()})
    assert not any(
        "secret" in volume for pod in pods(found).values() for volume in pod["spec"]["volumes"]
    )
    assert "MOCA_REDIS_PASSWORD_FILE" not in of_kind(found, "ConfigMap")["zz-moca"]["data"]
    assert not of_kind(found, "NetworkPolicy")


def _no_policies():
    return {"networkPolicy": {"enabled": False}}


def test_sentinels_have_the_names_that_the_service_is_given(tmp_path):
    """start.sh takes them from the name of the pod."""
    found = template({"redis": {"sentinels": True}})
    settings = of_kind(found, "ConfigMap")
    places = address.parse(settings["zz-moca"]["data"]["MOCA_REDIS_URL"]).places
    script = settings["zz-moca-redis"]["data"]["start.sh"]
    head = script[: script.index("data=/data")]
    shell = f'hostname() {{ echo zz-moca-redis-2; }}\n{head}\necho "$hosts"; echo "$me"'
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)
    hosts, me = done.stdout.splitlines()
    assert hosts.split() == [host for host, _ in places]
    assert me == hosts.split()[2]
    (redis,) = of_kind(found, "StatefulSet").values()
    assert {name for host in hosts.split() for name in host.split(".")[1:]} == {
        redis["spec"]["serviceName"]
    }


def test_releases_share_no_name_and_select_no_pod_of_another():
    one, other = template(MANY, release="one"), template(MANY, release="other")
    names = [{(d["kind"], d["metadata"]["name"]) for d in found} for found in (one, other)]
    assert not names[0] & names[1]
    for policy in of_kind(one, "NetworkPolicy").values():
        chosen = policy["spec"]["podSelector"]["matchLabels"]
        assert chosen["app.kubernetes.io/instance"] == "one"
    for document in one:
        selector = document["spec"].get("selector") if "spec" in document else None
        if selector and document["kind"] != "PrometheusRule":
            labels = selector.get("matchLabels", selector)
            assert labels["app.kubernetes.io/instance"] == "one"


class _Cluster(BaseHTTPRequestHandler):
    """As much of the API of Kubernetes as Helm's `lookup` of a Deployment needs."""

    replicas = {"zz-moca-api": 7, "zz-moca-worker": 0}
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        name = self.path.split("?")[0].removeprefix("/apis/apps/v1/namespaces/moca/deployments/")
        if self.path.split("?")[0] == "/apis/apps/v1":
            kind = {"name": "deployments", "kind": "Deployment", "namespaced": True}
            answer = {"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": [kind]}
        elif name in self.replicas:
            answer = {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": name},
                "spec": {"replicas": self.replicas[name]},
            }
        else:
            answer = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}
        body = json.dumps(answer).encode()
        self.send_response(answer.get("code", 200))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        """Nothing: helm's own errors are shown."""


@pytest.fixture
def cluster():
    with ThreadingHTTPServer(("127.0.0.1", 0), _Cluster) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_an_upgrade_leaves_the_number_of_pods_to_the_autoscaler(cluster):
    """A manifest without `replicas` after one with them would set 1."""
    values = {"worker": {"keda": {"enabled": True}}}
    live = ("--dry-run=server", "--is-upgrade", "--kube-apiserver", cluster)

    def numbers(values):
        found = of_kind(template(values, options=live), "Deployment")
        return {name: each["spec"]["replicas"] for name, each in found.items()}

    assert numbers(values) == _Cluster.replicas
    for each in of_kind(template(values), "Deployment").values():  # no cluster to ask
        assert "replicas" not in each["spec"]
    fixed = {"api": {"autoscaling": {"enabled": False}}}
    assert set(numbers(fixed).values()) == {2}


def test_the_objects_of_kustomize_are_deleted_without_namespace_and_volumes():
    """By the command that is documented for a move to the chart."""
    (command,) = re.findall(r"^kubectl kustomize (\S+) \| (awk .*) \|", DOCUMENT, re.MULTILINE)
    overlay = command[0].removeprefix("deploy/kubernetes/")
    text = subprocess.run(
        [tool("kubectl"), "kustomize", str(FOLDER / "overlays/production")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert (FOLDER / overlay).is_dir()
    left = subprocess.run(
        ["sh", "-c", command[1]], input=text, capture_output=True, text=True, check=True
    ).stdout
    kept = ("Namespace", "PersistentVolumeClaim")
    assert documents(left) == [each for each in documents(text) if each["kind"] not in kept]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"worker": {"replicas": "two"}}, "worker.replicas: Invalid type. Expected: integer"),
        ({"worker": {"replica": 2}}, "worker: Additional property replica is not allowed"),
        ({"settings": {"MOCA_PARTITION": 8}}, "Additional property MOCA_PARTITION is not allowed"),
        ({"settings": {"MOCA_REDIS_URL": "redis://h"}}, "property MOCA_REDIS_URL is not allowed"),
        ({"image": {"pullPolicy": "always"}}, 'must be one of the following: "", "Always"'),
        ({"redis": {"url": "http://h"}}, "redis.url: Does not match pattern"),
        ({"redis": {"url": "redis://u:p@h:1"}}, "redis.url: expected a URL without a password"),
        ({"redis": {"url": "redis://h:1"}}, "networkPolicy.redisEgress: expected the egress rules"),
        ({"redis": {"passwordSecret": ""}}, "redis.passwordSecret: expected the name of a secret"),
        ({"redis": {"url": "rediss://h:1?a=b&password=p"}}, "got one in its query"),
        ({"redis": {"url": "redis+sentinel://h/m?sentinel_password=p"}}, "got one in its query"),
        ({"redis": {"url": "redis://h", "sentinels": True}}, "expected none with redis.sentinels"),
        ({"redis": {"url": "redis://h", "extraConfig": "a b"}}, "or redis.extraConfig, which"),
        ({"networkPolicy": {"redisEgress": [{}]}}, "redisEgress: expected none without redis.url"),
        (
            {"models": {"image": "i", "volume": {"enabled": True}}},
            "models.image: expected none with models.volume.enabled",
        ),
        ({"settings": {"MOCA_LOG_LEVEL": "loud"}}, "settings.MOCA_LOG_LEVEL: Does not match"),
        ({"settings": {"MOCA_PARTITIONS": 0}}, "settings.MOCA_PARTITIONS: Must be greater than"),
        ({"settings": {"MOCA_ACCESS_LOG": False}}, "settings.MOCA_ACCESS_LOG: Invalid type"),
        (
            {"settings": {"MOCA_OPEN_ACCESS": True}},
            "settings: expected MOCA_REQUIRE_KEYS or MOCA_OPEN_ACCESS, got both",
        ),
        ({"worker": {"resources": {"limits": {"memory": "2GB"}}}}, "Does not match pattern"),
        ({"ingress": {"annotations": {"a": 1}}}, "ingress.annotations.a: Invalid type"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(values, message):
    text = run("template", "zz", CHART, values=values)
    assert text.startswith("refused")
    assert message in text


def test_the_schema_knows_each_value_and_no_other():
    def known(node):
        if "properties" not in node or node.get("additionalProperties") is not False:
            return None
        return {key: known(each) for key, each in node["properties"].items()}

    def compare(schema, values, path):
        assert schema.keys() == values.keys(), path
        for key, each in schema.items():
            if each is not None:
                compare(each, values[key], f"{path}.{key}")

    every = known(SCHEMA)
    del every["global"]  # which Helm adds for the charts of a chart
    del every["enabled"]  # by which another chart includes this one
    settings = every.pop("settings")
    compare(every, {key: each for key, each in VALUES.items() if key != "settings"}, "values")
    variables = {f"MOCA_{name.upper()}" for name in Settings.model_fields}
    assert settings.keys() == variables - OWN
    assert variables >= OWN


def test_the_schema_has_the_types_and_limits_of_settings():
    expected = {}
    for name, setting in Settings.model_json_schema()["properties"].items():
        (rule,) = (each for each in setting.get("anyOf", [setting]) if each["type"] != "null")
        limits = rule.keys() & {"type", "pattern", "minimum", "maximum", "exclusiveMinimum"}
        expected[f"MOCA_{name.upper()}"] = {key: rule[key] for key in limits}
    stated = SCHEMA["properties"]["settings"]["properties"]
    assert stated == {name: expected[name] for name in stated}


def test_the_chart_may_be_part_of_another(tmp_path):
    """Under a condition, which is a value of the part."""
    parent = tmp_path / "parent"
    (parent / "charts").mkdir(parents=True)
    subprocess.run(["cp", "-RL", str(CHART), str(parent / "charts")], check=True)
    part = {"name": "moca", "version": "0.1.0", "condition": "moca.enabled"}
    chart = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": [part]}
    (parent / "Chart.yaml").write_text(yaml.safe_dump(chart))
    assert template({"moca": {"enabled": True}}, chart=parent) == template({})
    assert not template({"moca": {"enabled": False}}, chart=parent)


def test_the_version_is_that_of_the_project():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)


def test_a_packaged_chart_has_the_files_that_links_lead_to(tmp_path):
    """A package goes where the other folders are not."""
    command = [tool("helm"), "package", str(CHART), "--destination", str(tmp_path)]
    subprocess.run(command, capture_output=True, check=True)
    (package,) = tmp_path.iterdir()
    with tarfile.open(package) as archive:
        links = [member.name for member in archive if not member.isreg()]
        inside = archive.extractfile("moca/files/redis.conf").read()
    assert not links
    assert inside == (FOLDER / "base" / "redis.conf").read_bytes()
    assert template(MANY, chart=package) == template(MANY)


def test_the_notes_name_what_is_there(tmp_path):
    """Helm shows them only after it has installed something."""
    note = '{{ dict "notes" (include (print .Template.BasePath "/NOTES.txt") .) | toYaml }}'
    subprocess.run(["cp", "-RL", str(CHART), str(tmp_path)], check=True)
    (tmp_path / "moca/templates/notes.yaml").write_text(f"kind: Notes\n{note}\n")

    def notes(values):
        found = template(values, chart=tmp_path / "moca")
        return next(each["notes"] for each in found if each["kind"] == "Notes")

    usual = notes({})
    assert "kubectl -n moca create secret generic moca-redis --from-file=redis_password" in usual
    assert "exec deploy/zz-moca-api -- moca keys create" in usual
    assert "port-forward service/zz-moca-api 8000:80" in usual
    many = notes(MANY)
    assert "secret" not in many
    assert "https://streams.example/" in many
    assert "webhook" not in many
    assert "No webhook is called" in notes({"webhooks": {"enabled": True}})
    there = notes(ELSEWHERE)
    assert "moca-redis has the password of rediss://cache.example:6380/2 in password" in there


def test_the_table_of_values_is_complete():
    section = DOCUMENT[DOCUMENT.index("\n## Helm\n") :].split("\n## ")[1]
    named = re.findall(r"^\| `([\w.]+)`", section, re.MULTILINE)
    for name in named:
        value = VALUES
        for part in name.split("."):
            assert part in value, name
            value = value[part]
    assert {name.split(".")[0] for name in named} == VALUES.keys()


def test_documented_installations_are_complete():
    """An image that a cluster can pull, the namespace of the secret, and pods to `exec` in."""
    texts = (DOCUMENT, (ROOT / "README.md").read_text())
    commands = [line for text in texts for line in re.findall(r"helm install [^`\n]+", text)]
    assert len(commands) == 2
    for command in commands:
        for part in (" -n moca", " --wait", " --set image.repository="):
            assert part in command, command
