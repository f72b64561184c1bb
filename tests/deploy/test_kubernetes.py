"""The manifests are valid under the schemas of Kubernetes, also as kustomize makes them."""

import copy
import re
import tomllib
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from service.api.routes.subscriptions import HEARTBEAT_S
from service.settings import Settings
from service.store import address
from tests.deploy.manifests import FOLDER, VERSIONS, check, documents, flat, made, of_kind

ROOT = Path(__file__).parents[2]
PATCHES = {FOLDER / "components/redis-sentinel" / name for name in ("redis.yaml", "service.yaml")}
FILES = [
    file
    for folder in ("base", "components/*")
    for file in sorted(FOLDER.glob(f"{folder}/*.yaml"))
    if file.name != "kustomization.yaml" and file not in PATCHES
]
OVERLAYS = ["base", "overlays/keda", "overlays/gpu", "overlays/production"]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_each_manifest_is_valid(file, version):
    for document in documents(file.read_text()):
        check(document, version)


def test_a_misspelt_field_is_refused():
    (deployment, *_) = documents((FOLDER / "base" / "worker.yaml").read_text())
    deployment["spec"]["replica"] = deployment["spec"].pop("replicas")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, VERSIONS[-1], strict=True)


@pytest.fixture(scope="module")
def production():
    return made("overlays/production")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_kustomize_makes_is_valid_and_complete(overlay):
    found = made(overlay)
    for document in found:
        check(document, VERSIONS[-1])
    deployments = of_kind(found, "Deployment")
    everything = overlay == "overlays/production"
    assert set(deployments) == {"api", "worker"} | ({"webhooks"} if everything else set())
    budgets = {"api", "worker"} | ({"webhooks", "redis"} if everything else set())
    assert set(of_kind(found, "PodDisruptionBudget")) == budgets
    assert of_kind(found, "NetworkPolicy")
    assert bool(of_kind(found, "ScaledObject")) == (overlay == "overlays/keda")
    assert {each["metadata"].get("namespace", "moca") for each in found} == {"moca"}
    _settings_lead_somewhere(found)
    (worker,) = deployments["worker"]["spec"]["template"]["spec"]["containers"]
    # KEDA's number must not be put back by each `apply`.
    assert ("replicas" in deployments["worker"]["spec"]) == (overlay != "overlays/keda")
    on_gpu = {"name": "MOCA_DEVICE", "value": "cuda:0"} in worker["env"]
    assert on_gpu == (deployments["worker"]["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0)
    assert on_gpu == ("nvidia.com/gpu" in worker["resources"]["limits"]) == (overlay[-3:] == "gpu")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_image_has_this_version(overlay):
    pods = [
        each["spec"]["template"]["spec"]
        for each in made(overlay)
        if each["kind"] in ("Deployment", "StatefulSet")
    ]
    images = {
        container["image"]
        for pod in pods
        for container in (*pod["containers"], *pod.get("initContainers", []))
    }
    own = {image for image in images if image.startswith("moca-service")}
    variants = {"cpu", "cu130"} if overlay == "overlays/gpu" else {"cpu"}
    assert own == {f"moca-service:{VERSION}-{variant}" for variant in variants}
    assert all(re.search(r":\d+\.\d+", image) for image in images)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_trained_models_have_a_way_to_each_pod(overlay):
    found = made(overlay)
    deployments = of_kind(found, "Deployment")
    for name in ("api", "worker"):
        pod = deployments[name]["spec"]["template"]["spec"]
        (volume,) = (each for each in pod["volumes"] if each["name"] == "models")
        if overlay == "overlays/production":
            assert volume["persistentVolumeClaim"]["claimName"] in of_kind(
                found, "PersistentVolumeClaim"
            )
            assert volume.keys() == {"name", "persistentVolumeClaim"}
            assert not pod.get("initContainers")
        else:
            (copy_models,) = pod["initContainers"]
            (mount,) = copy_models["volumeMounts"]
            assert mount["name"] == "models"
            assert copy_models["command"] == ["cp", "-R", "/models/.", mount["mountPath"]]


def test_the_rules_of_the_operator_are_those_of_prometheus(production):
    files = [ROOT / "deploy/prometheus/rules" / f"{name}.yml" for name in ("recording", "alerts")]
    expected = [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]
    (rule,) = documents((FOLDER / "components/monitoring/rules.yaml").read_text())
    assert rule["spec"]["groups"] == expected
    (rule,) = of_kind(production, "PrometheusRule").values()
    assert flat(rule["spec"]["groups"]) == flat(expected)


def test_the_operator_scrapes_each_port_with_metrics(production):
    """Under the jobs that the rules ask for."""
    (monitor,) = of_kind(production, "PodMonitor").values()
    (wanted,) = monitor["spec"]["selector"]["matchExpressions"]
    ports = {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]}
    for name, deployment in of_kind(production, "Deployment").items():
        template = deployment["spec"]["template"]
        assert template["metadata"]["labels"][wanted["key"]] in wanted["values"]
        (container,) = template["spec"]["containers"]
        (port,) = container["ports"]
        assert port["name"] in ports, name
    for each in monitor["spec"]["podMetricsEndpoints"]:
        (job,) = (rule for rule in each["relabelings"] if rule["targetLabel"] == "job")
        assert job["replacement"] == "moca-$1"


def test_the_ingress_lets_through_what_the_service_takes(production):
    (ingress,) = of_kind(production, "Ingress").values()
    prefix, defaults = "nginx.ingress.kubernetes.io/", Settings()
    said = {key.removeprefix(prefix): v for key, v in ingress["metadata"]["annotations"].items()}
    largest = max(defaults.max_snapshot_bytes, defaults.max_body_bytes)
    assert int(said["proxy-body-size"].removesuffix("m")) << 20 >= largest
    quiet_s = max(defaults.request_deadline_s, HEARTBEAT_S)
    assert int(said["proxy-read-timeout"]) > quiet_s + 5
    assert said["proxy-buffering"] == said["proxy-next-upstream"] == "off"
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    service = of_kind(production, "Service")[path["backend"]["service"]["name"]]
    assert path["backend"]["service"]["port"]["name"] in {
        port["name"] for port in service["spec"]["ports"]
    }
    assert ingress["spec"]["tls"][0]["hosts"] == [rule["host"]]


def test_redis_behind_sentinels_survives_a_node(production):
    redis = of_kind(production, "StatefulSet")["redis"]["spec"]
    (settings,) = (
        each["data"]
        for each in of_kind(production, "ConfigMap").values()
        if "MOCA_REDIS_URL" in each["data"]
    )
    found = address.parse(settings["MOCA_REDIS_URL"])
    assert (found.kind, found.name) == ("sentinel", "moca")
    assert found.places == [(f"redis-{i}.redis", 26379) for i in range(redis["replicas"])]
    assert settings["MOCA_REQUIRE_KEYS"] == "true"
    pod = redis["template"]["spec"]
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert [each["name"] for each in pod["containers"]] == ["redis", "sentinel"]
    assert of_kind(production, "PodDisruptionBudget")["redis"]["spec"]["maxUnavailable"] == 1
    service = of_kind(production, "Service")["redis"]["spec"]
    assert service["publishNotReadyAddresses"] is True
    assert {each["port"] for each in service["ports"]} == {6379, 26379}
    (config,) = (each for each in pod["volumes"] if each["name"] == "config")
    script = of_kind(production, "ConfigMap")[config["configMap"]["name"]]["data"]
    assert script.keys() == {"redis.conf", "start.sh"}


def _settings_lead_somewhere(found):
    maps = {d["metadata"]["name"] for d in found if d["kind"] == "ConfigMap"}
    for document in found:
        if document["kind"] != "Deployment":
            continue
        pod = document["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert {each["configMapRef"]["name"] for each in container["envFrom"]} <= maps
        assert pod["securityContext"]["runAsUser"] == 10001
        assert pod["enableServiceLinks"] is False  # $MOCA_PORT of a Service is no port
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()


def test_what_is_wrong_for_the_operator_is_refused():
    for name, wrong in (
        ("podmonitor", lambda spec: spec["podMetricsEndpoints"][0].update(intervall="1s")),
        ("rules", lambda spec: spec["groups"][0]["rules"][0].update(expression="up")),
        ("rules", lambda spec: spec["groups"][0].pop("name")),
    ):
        (document,) = documents((FOLDER / "components/monitoring" / f"{name}.yaml").read_text())
        wrong(document["spec"])
        with pytest.raises(jsonschema.ValidationError):
            check(document, VERSIONS[-1])


def test_the_scaler_is_valid_and_what_is_wrong_in_it_is_refused():
    (scaled,) = documents((FOLDER / "overlays" / "keda" / "worker.yaml").read_text())
    check(scaled, "KEDA")
    for change in (
        lambda spec: spec.update(pollInterval=15),
        lambda spec: spec["fallback"].pop("replicas"),
        lambda spec: spec["triggers"][0]["metadata"].update(threshold=500),
        lambda spec: spec.pop("scaleTargetRef"),
    ):
        wrong = copy.deepcopy(scaled)
        change(wrong["spec"])
        with pytest.raises(jsonschema.ValidationError):
            check(wrong, "KEDA")


def test_the_worker_scales_on_a_metric_that_there_is():
    (scaled,) = documents((FOLDER / "overlays" / "keda" / "worker.yaml").read_text())
    (trigger,) = scaled["spec"]["triggers"]
    metrics = (FOLDER.parents[1] / "docs" / "monitoring.md").read_text()
    assert "moca_partition_lag_observations" in trigger["metadata"]["query"]
    assert "`moca_partition_lag_observations`" in metrics
    assert scaled["spec"]["scaleTargetRef"]["name"] == "worker"
