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
from kubernetes_validate import utils

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
VERSIONS = ("1.29", "1.33", "1.37")
# Megabytes of a version, which it would read anew for every object.
utils.schema_contents = functools.cache(utils.schema_contents)
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a tenth of the time


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


def documents(text):
    return [document for document in yaml.load_all(text, LOADER) if document is not None]


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
