"""The manifests are valid under the schemas of Kubernetes, also as kustomize makes them."""

import copy
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from cloudcoil.models.keda.v1alpha1 import ScaledObject

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
VERSIONS = ("1.29", "1.33", "1.37")
KUBECTL = shutil.which("kubectl", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
FILES = [file for file in FOLDER.glob("base/*.yaml") if file.name != "kustomization.yaml"]


def _strict(schema):
    """Refuse fields that a schema does not have."""
    for each in (schema, *schema["$defs"].values()):
        if "properties" in each:
            each["additionalProperties"] = False
    return schema


KEDA = _strict(ScaledObject.model_json_schema())


def check(document, version):
    """Against the schema of its kind: KEDA's for a ScaledObject, which Kubernetes does not know."""
    if document["kind"] == "ScaledObject":
        jsonschema.validate(document, KEDA, cls=jsonschema.Draft202012Validator)
    else:
        kubernetes_validate.validate(document, version, strict=True)


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
    if KUBECTL is None:
        pytest.skip("no kubectl for this platform")
    made = subprocess.run(
        [KUBECTL, "kustomize", str(FOLDER / overlay)], capture_output=True, text=True, check=True
    )
    found = documents(made.stdout)
    for document in found:
        check(document, VERSIONS[-1])
    kinds = [document["kind"] for document in found]
    assert kinds.count("Deployment") == 2
    assert kinds.count("PodDisruptionBudget") == 2
    assert "NetworkPolicy" in kinds
    assert ("ScaledObject" in kinds) == (overlay == "overlays/keda")
    _settings_lead_somewhere(found)
    by_name = {d["metadata"]["name"]: d for d in found if d["kind"] == "Deployment"}
    (worker,) = by_name["worker"]["spec"]["template"]["spec"]["containers"]
    # KEDA's number must not be put back by each `apply`.
    assert ("replicas" in by_name["worker"]["spec"]) == (overlay != "overlays/keda")
    on_gpu = {"name": "MOCA_DEVICE", "value": "cuda:0"} in worker["env"]
    assert on_gpu == (by_name["worker"]["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0)
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
        assert pod["enableServiceLinks"] is False  # $MOCA_PORT of a Service is no port
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()


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
    metrics = (FOLDER.parents[1] / "docs" / "metrics.md").read_text()
    assert "moca_partition_lag_observations" in trigger["metadata"]["query"]
    assert "`moca_partition_lag_observations`" in metrics
    assert scaled["spec"]["scaleTargetRef"]["name"] == "worker"
