"""What docs/security.md says, where no other test shows it."""

import ast
import json
import os
import pickle
import re
from pathlib import Path

import pytest
import yaml

from model_core import artifact
from model_core.errors import BadArtifact
from service.commands.options import SHORT

ROOT = Path(__file__).parent.parent
FILES = [file for part in ("service", "model_core") for file in ROOT.glob(f"{part}/**/*.py")]
CODE_FROM_DATA = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
CALLS = {"eval", "exec", "compile", "__import__"}
DOCUMENT = (ROOT / "docs" / "security.md").read_text()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_nothing_that_serves_makes_code_from_data(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            assert not {alias.name.partition(".")[0] for alias in node.names} & CODE_FROM_DATA
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in CODE_FROM_DATA
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in CALLS, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) != ("torch", "load")
            assert (node.value.id, node.attr) != ("os", "system")
        elif isinstance(node, ast.keyword) and node.arg == "shell":
            raise AssertionError(f"line {node.value.lineno}: a shell")


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_an_artifact_with_code_in_it_is_refused_and_the_code_not_run(tmp_path):
    folder, sprung = tmp_path / "m" / "1", tmp_path / "sprung"
    folder.mkdir(parents=True)
    described = {"format": 1, "kind": "alpaca", "x_dim": 0, "y_dim": 1, "feature_dim": 2}
    (folder / "model.json").write_text(json.dumps(described))
    (folder / "model.safetensors").write_bytes(pickle.dumps(Trap(sprung)))
    with pytest.raises(BadArtifact, match="model.safetensors"):
        artifact.load(folder)
    assert not sprung.exists()
    pickle.loads((folder / "model.safetensors").read_bytes())  # noqa: S301  # it does go off
    assert sprung.exists()


def test_the_manifests_harden_every_pod_and_close_the_network():
    folder = ROOT / "deploy" / "kubernetes" / "base"
    every = [d for file in folder.glob("*.yaml") for d in yaml.safe_load_all(file.read_text())]
    pods = [d["spec"]["template"]["spec"] for d in every if "template" in d.get("spec", {})]
    assert len(pods) == 3
    for pod in pods:
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]
    policies = {d["metadata"]["name"]: d["spec"] for d in every if d["kind"] == "NetworkPolicy"}
    closed = policies["closed"]
    assert (closed["podSelector"], "ingress" in closed, "egress" in closed) == ({}, False, False)
    assert closed["policyTypes"] == ["Ingress", "Egress"]
    (to_redis,) = policies["redis"]["ingress"]
    (source,) = to_redis["from"]
    (rule,) = source["podSelector"]["matchExpressions"]
    assert rule["values"] == ["api", "worker", "webhooks"]


@pytest.mark.parametrize("option", sorted(set(re.findall(r"`(--[a-z-]+)", DOCUMENT))))
def test_options_that_the_page_names_exist(option):
    short = {name for names in SHORT.values() for name in names}
    assert option in short or f"`{option}`" in (ROOT / "docs" / "commands.md").read_text()
