"""The packages that `make run` installs are enough for what it starts."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.ports import free_port

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# Hides modules from imports and from searches, in every process that Python starts.
HIDE = """
import sys
from importlib.machinery import PathFinder

HIDDEN = frozenset({hidden!r}.split())


class Seen(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            return None
        return PathFinder.find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Seen
"""


def needed(requirements):
    """Names of distributions that some requirements bring along, themselves included."""
    found, left = set(), [Requirement(each) for each in requirements]
    while left:
        one = left.pop()
        wanted = [{"extra": extra} for extra in (*one.extras, "")]
        key = (canonicalize_name(one.name), tuple(one.extras))
        if key in found or (one.marker is not None and not one.marker.evaluate({"extra": ""})):
            continue
        found.add(key)
        try:
            rest = [Requirement(each) for each in requires(one.name) or []]
        except PackageNotFoundError:  # of another platform
            continue
        for each in rest:
            if each.marker is None or any(each.marker.evaluate(extra) for extra in wanted):
                each.marker = None
                left.append(each)
    return {name for name, _ in found}


@pytest.fixture
def moca(tmp_path):
    """Run `moca` with only what `make run` installs."""
    extras = re.search(r"-e '\.\[(.*?)\]'", (ROOT / "Makefile").read_text())[1].split(",")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    there = needed(sum((optional[each] for each in extras), project["dependencies"]))
    hidden = {
        module
        for module, owners in packages_distributions().items()
        if module.isidentifier()
        and module not in {"service", "model_core", "training", "tests"}
        and not {canonicalize_name(each) for each in owners} & there
    }
    assert {"pyarrow", "tensorboard", "pytest"} <= hidden
    assert not {"torch", "numba", "plotly", "matplotlib", "redis"} & hidden
    folder = tmp_path / "hidden"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HIDE.format(hidden=" ".join(sorted(hidden))))
    path = os.pathsep.join([str(folder), str(ROOT)])
    given = {"PYTHONPATH": path, "MOCA_PARTITIONS": "8", "MOCA_NO_KERNELS": "true"}

    def run(*arguments):
        code = "from service.commands.main import main; main()"
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, **given},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
        )

    return run


def test_the_demo_runs_and_draws(moca, tmp_path):
    places = ["--data-dir", str(tmp_path / "data"), "--plots-dir", str(tmp_path / "plots")]
    done = moca("demo", "--once", "--port", str(free_port()), *places)
    assert done.returncode == 0, done.stdout + done.stderr
    names = ["coal-answers.csv", "coal.png", "nile-answers.csv", "nile.png"]
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == names
    assert "nile: confirmed change in 1899" in done.stdout


def test_a_missing_extra_is_named_with_its_command(moca, tmp_path):
    history = tmp_path / "history.csv"
    history.write_text("y\n" + "\n".join(str(i % 7) for i in range(300)) + "\n")
    done = moca("train", "--data", str(history))
    assert done.returncode == 2
    assert "pip install 'moca-service[train]'" in done.stderr
    assert "Traceback" not in done.stderr
