"""The wheels: built, installed where nothing else is, and used as the README does."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.e2e.docs.pages import blocks
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
README = [code for kind, code, _ in blocks(ROOT / "README.md") if kind == "python"]
CLIENT = [code for kind, code, _ in blocks(ROOT / "docs" / "client.md") if kind == "python"]
DETECTOR = next(blocks(ROOT / "docs" / "detector.md"))
PANDAS = "import pandas as pd"  # not installed beside the client
OF_CLASS = "import moca_client\nprint(moca_client.Client.stream, moca_client.AsyncClient.events)\n"
WRONG = "import moca_client\nmoca_client.Client('').model('').versions[0].no_such_member\n"
PIP = ("-m", "pip", "--disable-pip-version-check")
# What `make run` installs beside the service itself.
EXTRAS = re.search(r"-e '\.\[(.*?)\]'", (ROOT / "Makefile").read_text())[1]


# Prints what a package imports at first, and what all of its modules do, but for some of its parts.
IMPORTS = """
import importlib, json, pkgutil, sys
before = set(sys.modules)
top = importlib.import_module(sys.argv[1])
first = {name.partition(".")[0] for name in set(sys.modules) - before}
for found in pkgutil.walk_packages(top.__path__, top.__name__ + "."):
    if found.name.partition(".")[2].partition(".")[0] not in sys.argv[2:]:
        importlib.import_module(found.name)
every = {name.partition(".")[0] for name in set(sys.modules) - before}
known = sys.stdlib_module_names
print(json.dumps([sorted(first - known), sorted(every - known)]))
"""


# A built-in model, where torch is not installed.
LIGHT = """
import importlib.util
from model_core import Detector
detector = Detector("gaussian")
detector.update_many([k % 3 + 20.0 * (k >= 40) for k in range(60)])
print(detector.events[-1].start, importlib.util.find_spec("torch") is not None)
"""


def run(*command, **options):
    done = subprocess.run(
        [str(each) for each in command], capture_output=True, text=True, cwd="/", **options
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pip(*arguments, **options):
    return run(sys.executable, *PIP, "--quiet", *arguments, **options)


def empty_environment(folder):
    """Make a virtual environment without any package; return its interpreter."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    return folder / "bin" / "python"


def installed(python, *wheels):
    """Install wheels and all that they need."""
    pip("--python", python, "install", "--no-compile", "-c", ROOT / "constraints.txt", *wheels)
    return python


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The three wheels by the names of their distributions."""
    folder = tmp_path_factory.mktemp("dist")
    # As `make wheels`, but by this environment instead of one that is made first.
    packages = (ROOT / "deploy" / "packages" / name for name in ("client", "core"))
    release = {**os.environ, "MOCA_RELEASE": "1"}
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", folder, *packages, ROOT, env=release)
    return {path.name.partition("-")[0].replace("_", "-"): path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def client(wheels, tmp_path_factory):
    """Interpreter of an environment with moca-client."""
    python = empty_environment(tmp_path_factory.mktemp("client"))
    return installed(python, wheels["moca-client"])


@pytest.mark.slow
def test_each_file_is_in_one_wheel(wheels):
    assert sorted(wheels) == ["moca-client", "moca-core", "moca-service"]
    names = [name for wheel in wheels.values() for name in ZipFile(wheel).namelist()]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    tops = {
        name: {path.partition("/")[0] for path in ZipFile(wheel).namelist()}
        for name, wheel in wheels.items()
    }
    assert {name: {t for t in of if "dist-info" not in t} for name, of in tops.items()} == {
        "moca-client": {"moca_client"},
        "moca-core": {"model_core"},
        "moca-service": {"service", "training"},
    }


@pytest.mark.slow
def test_the_client_needs_three_packages_and_the_readme_runs_with_it(client, serve):
    there = json.loads(run(sys.executable, *PIP, "--python", client, "list", "--format", "json"))
    names = {each["name"] for each in there}
    of_httpx = {"anyio", "certifi", "h11", "httpcore", "idna", "sniffio", "typing_extensions"}
    assert names - of_httpx == {"httpx", "httpx-sse", "moca-client", "msgspec"}
    extras = ("replay", "plots", "console")
    first, every = json.loads(run(client, "-I", "-c", IMPORTS, "moca_client", *extras))
    assert first == ["moca_client"]
    assert not {"service", "model_core", "torch", "numpy"} & set(every)
    code, shown = next((c, said) for k, c, said in blocks(ROOT / "README.md") if k == "python")
    assert "from moca_client import" in code
    assert run(client, "-I", "-c", code.replace("http://127.0.0.1:8000", serve())) == shown


@pytest.mark.slow
def test_the_readme_and_the_page_of_the_client_are_typed(client, tmp_path):
    pytest.importorskip("mypy")
    for number, code in enumerate([*README, *CLIENT, OF_CLASS]):
        page = tmp_path / f"block{number}.py"
        page.write_text(code.replace(PANDAS, f"{PANDAS}  # type: ignore[import-untyped]"))
        checked = ("-m", "mypy", "--strict", "--config-file=", "--python-executable", client)
        cache = ("--cache-dir", tmp_path / "cache")
        run(sys.executable, *checked, *cache, page)
        wrong = tmp_path / "wrong.py"
        wrong.write_text(code + WRONG)
        with pytest.raises(AssertionError, match='has no attribute "no_such_member"'):
            run(sys.executable, *checked, *cache, wrong)


@pytest.mark.slow
def test_a_checkout_is_installed_by_its_name_alone(tmp_path):
    python = installed(empty_environment(tmp_path / "light"), ROOT)
    assert "serve" in run(python.parent / "moca", "--help")
    assert run(python, "-I", "-c", LIGHT) == "40 False\n"
    packages = next(tmp_path.glob("light/lib/*/site-packages"))
    size = sum(path.stat().st_size for path in packages.rglob("*") if path.suffix != ".pyc")
    assert size < 335e6  # .25 GB of it numba, llvmlite and numpy


def test_modules_of_the_client_are_there_at_first_use():
    code = "import sys, moca_client as c; heavy = {'torch', 'fastapi', 'numpy', 'pandas'}; "
    code += "light = not heavy & set(sys.modules); c.errors.Problem; c.Client; "
    code += "print(light, 'Client' in vars(c))"
    printed = run(sys.executable, "-c", code, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert printed == "True True\n"


@pytest.mark.slow
def test_all_wheels_are_installed_and_removed_without_harm(wheels, tmp_path):
    """With the extras of `make run` the demo draws; what more training needs is named."""
    core = installed(empty_environment(tmp_path / "core"), wheels["moca-core"])
    assert run(core, "-I", "-c", LIGHT) == "40 False\n"
    installed(core, f"{wheels['moca-core']}[torch]")
    _, every = json.loads(run(core, "-I", "-c", IMPORTS, "model_core"))
    assert {"model_core", "numba", "numpy", "safetensors", "torch"} <= set(every)
    _, code, shown = DETECTOR
    assert run(core, "-I", "-c", code) == shown
    service = f"{wheels['moca-service']}[{EXTRAS}]"
    others = wheels["moca-client"], wheels["moca-core"]
    python = installed(empty_environment(tmp_path / "all"), *others, service)
    pip("--python", python, "check")
    before = "import sys, service.worker.worker; print(*sys.modules)"
    modules = run(python, "-I", "-c", before).split()
    assert "moca_client.client" not in modules, "a worker needs no client"
    assert "nile: mean fell by 2.0 sd, 1098 → 814, since 1899" in run(
        python.parent / "moca", "demo", "--once", "--port", free_port(),
        "--data-dir", tmp_path / "data", "--plots-dir", tmp_path / "plots",
    )  # fmt: skip
    names = ["coal-answers.csv", "coal.png", "nile-answers.csv", "nile.png"]
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == names
    history = tmp_path / "history.csv"
    history.write_text("y\n" + "\n".join(str(i % 7) for i in range(300)) + "\n")
    command = [python.parent / "moca", "train", "--data", history]
    refused = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert refused.returncode == 2
    assert "`make install` installs all that training needs" in refused.stderr
    pip("--python", python, "uninstall", "--yes", "moca-service")
    run(python, "-I", "-c", "import moca_client, model_core.filter; moca_client.Client")
    left = run(python, "-I", "-c", "import importlib.util as u; print(u.find_spec('service'))")
    assert left == "None\n"
