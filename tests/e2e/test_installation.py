"""The packages that `make run` installs are enough for what it starts."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.needed import needed
from tests.ports import free_port

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# Hides modules from imports and from searches, in every process that Python starts.
HIDE = """
import sys
from importlib.machinery import PathFinder


class Seen(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.partition(".")[0] in {hidden!r}
        return None if hidden else PathFinder.find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Seen
"""


@pytest.fixture
def moca(tmp_path):
    """Run `moca` with only the packages that `make run` installs."""
    extras = re.search(r"-e '\.\[(.*?)\]'", (ROOT / "Makefile").read_text())[1].split(",")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    there = needed(sum((optional[extra] for extra in extras), project["dependencies"]))
    own = {"service", "model_core", "training", "tests"}
    hidden = {
        name
        for name, owners in packages_distributions().items()
        if name not in own and not {canonicalize_name(each) for each in owners} & there
    }
    assert {"pyarrow", "tensorboard", "pytest"} <= hidden
    assert not {"torch", "numba", "plotly", "matplotlib", "redis"} & hidden
    folder = tmp_path / "hidden"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HIDE.format(hidden=sorted(hidden)))
    path = os.pathsep.join([str(folder), str(ROOT)])
    given = {"PYTHONPATH": path, "MOCA_PARTITIONS": "8"}

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "service.commands.main", *arguments],
            env={**os.environ, **given},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
        )

    return run


def test_the_demo_runs_and_draws_and_what_is_missing_is_named(moca, tmp_path):
    places = ["--data-dir", str(tmp_path / "data"), "--plots-dir", str(tmp_path / "plots")]
    done = moca("demo", "--once", "--port", str(free_port()), *places)
    assert done.returncode == 0, done.stdout + done.stderr
    names = ["coal-answers.csv", "coal.png", "nile-answers.csv", "nile.png"]
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == names
    assert "nile: confirmed change in 1899" in done.stdout
    history = tmp_path / "history.csv"
    history.write_text("y\n" + "\n".join(str(i % 7) for i in range(300)) + "\n")
    done = moca("train", "--data", str(history))
    assert done.returncode == 2
    assert "`make install` installs all that training needs" in done.stderr
    assert "Traceback" not in done.stderr
