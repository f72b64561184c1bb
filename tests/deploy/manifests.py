"""Manifests as kustomize and Helm make them, and their check against the schemas of Kubernetes."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
VERSIONS = ("1.29", "1.33", "1.37")


def tool(name):
    """Path of a program of the test extra, which not every platform has."""
    path = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if path is None:
        pytest.skip(f"no {name} for this platform")
    return path


def _strict(schema):
    """Refuse fields that a schema does not have."""
    for each in (schema, *schema["$defs"].values()):
        if "properties" in each:
            each["additionalProperties"] = False
    return schema


def _schema(kind):
    """Of a custom resource; a flag of Go's expressions is put where Python's have it."""
    text = json.dumps(kind.model_json_schema()).replace('"^(?i)', '"(?i)^')
    return _strict(json.loads(text))


@functools.cache
def custom():
    """Schemas of custom resources; they take seconds to import."""
    from cloudcoil.models.keda.v1alpha1 import ScaledObject
    from cloudcoil.models.prometheus_operator.v1 import PodMonitor, PrometheusRule

    kinds = (ScaledObject, PodMonitor, PrometheusRule)
    return {kind.__name__: _schema(kind) for kind in kinds}


def check(document, version):
    """Against the schema of its kind, of KEDA or the Prometheus Operator where it is theirs."""
    if (schema := custom().get(document["kind"])) is not None:
        jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)
    else:
        kubernetes_validate.validate(document, version, strict=True)


def documents(text):
    return [document for document in yaml.safe_load_all(text) if document is not None]


def made(overlay):
    """Documents that kustomize makes."""
    command = [tool("kubectl"), "kustomize", str(FOLDER / overlay)]
    return documents(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def of_kind(found, kind):
    return {each["metadata"]["name"]: each for each in found if each["kind"] == kind}


def flat(groups):
    """As text without line breaks, which kustomize puts elsewhere."""
    text = json.dumps(groups, sort_keys=True).replace("\\n", " ")
    return re.sub(" +", " ", text)
