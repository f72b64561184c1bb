"""The manifests are valid under the schemas of Kubernetes, also as kustomize makes them."""

import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
VERSIONS = ("1.29", "1.33", "1.37")
OWN = {"ScaledObject"}  # KEDA's, unknown to Kubernetes
FILES = [file for file in FOLDER.glob("base/*.yaml") if file.name != "kustomization.yaml"]


def documents(text):
    return [document for document in yaml.safe_load_all(text) if document is not None]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_manifest_is_valid(file, version):
    for document in documents(file.read_text()):
        kubernetes_validate.validate(document, version, strict=True)


def test_a_misspelt_field_is_refused():
    (deployment, *_) = documents((FOLDER / "base" / "worker.yaml").read_text())
    deployment["spec"]["replica"] = deployment["spec"].pop("replicas")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("overlay", ["base", "overlays/keda", "overlays/gpu"])
def test_what_kustomize_makes_is_valid_and_complete(overlay):
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on this machine")
    made = subprocess.run(
        ["kubectl", "kustomize", str(FOLDER / overlay)], capture_output=True, text=True, check=True
    )
    found = documents(made.stdout)
    for document in found:
        if document["kind"] not in OWN:
            kubernetes_validate.validate(document, VERSIONS[-1], strict=True)
    kinds = [document["kind"] for document in found]
    assert kinds.count("Deployment") == 2
    assert kinds.count("PodDisruptionBudget") == 2
    assert "NetworkPolicy" in kinds
    assert ("ScaledObject" in kinds) == (overlay == "overlays/keda")
    _settings_lead_somewhere(found)
    by_name = {d["metadata"]["name"]: d for d in found if d["kind"] == "Deployment"}
    (worker,) = by_name["worker"]["spec"]["template"]["spec"]["containers"]
    on_gpu = {"name": "MOCA_DEVICE", "value": "cuda:0"} in worker["env"]
    assert on_gpu == ("nvidia.com/gpu" in worker["resources"]["limits"]) == (overlay[-3:] == "gpu")


def _settings_lead_somewhere(found):
    maps = {d["metadata"]["name"] for d in found if d["kind"] == "ConfigMap"}
    for document in found:
        if document["kind"] != "Deployment":
            continue
        pod = document["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert {each["configMapRef"]["name"] for each in container["envFrom"]} <= maps
        assert pod["securityContext"]["runAsUser"] == 10001
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()


def test_the_worker_scales_on_a_metric_that_there_is():
    (scaled,) = documents((FOLDER / "overlays" / "keda" / "worker.yaml").read_text())
    (trigger,) = scaled["spec"]["triggers"]
    metrics = (FOLDER.parents[1] / "docs" / "metrics.md").read_text()
    assert "moca_partition_lag_observations" in trigger["metadata"]["query"]
    assert "`moca_partition_lag_observations`" in metrics
    assert scaled["spec"]["scaleTargetRef"]["name"] == "worker"
