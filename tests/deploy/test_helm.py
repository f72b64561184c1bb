"""The Helm chart: what it deploys is what kustomize does, under the names of a release."""

import json
import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from service.store import address
from tests.deploy.charts import (
    CHART,
    ELSEWHERE,
    MANY,
    MANY_ON,
    OURS,
    POD,
    VALUES,
    merged,
    pods,
    run,
    template,
)
from tests.deploy.manifests import VERSIONS, check, flat, made, of_kind

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
