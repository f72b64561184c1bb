"""What docs/security.md says, where neither another test nor a rule of ruff shows it.

That nothing makes code from data is checked by `make check`: see `[tool.ruff.lint]`.
"""

import json
import os
import pickle
import tomllib
from pathlib import Path

import pytest

from model_core import artifact
from model_core.errors import BadArtifact

ROOT = Path(__file__).parent.parent


class Trap:
    """Makes a folder when it is unpickled."""

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


def test_ruff_looks_for_code_from_data():
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "S" in lint["select"]
    assert not {"S102", "S301", "S302", "S307", "S602", "S604", "S605"} & set(lint["ignore"])
    banned = lint["flake8-tidy-imports"]["banned-api"]
    assert {"pickle", "marshal", "shelve", "joblib", "torch.load"} <= banned.keys()
    exempt = lint["per-file-ignores"]
    for path in exempt.keys() - {"tests/**"}:
        assert not any(rule.startswith(("S", "TID")) for rule in exempt[path]), path
