"""The image: what its Dockerfile says, and, where a tool can build it, what it is."""

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
LAST = TEXT[TEXT.rindex("\nFROM ") :]
REQUIREMENTS = ROOT / "deploy" / "requirements"
_spec = importlib.util.spec_from_file_location("image_lock", REQUIREMENTS / "lock.py")
LOCK = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(LOCK)


def test_hadolint_finds_nothing():
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("no hadolint for this platform")
    found = subprocess.run([program, "Dockerfile"], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def test_the_image_runs_without_privileges_and_says_how_it_is():
    assert re.search(r"^USER 10001:10001$", LAST, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK ", LAST, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["moca"\]$', LAST, re.MULTILINE)
    for label in ("title", "version", "revision", "created", "licenses"):
        assert f"org.opencontainers.image.{label}=" in LAST


def test_every_package_that_is_fetched_is_checked_by_its_hash():
    lines = TEXT.replace("\\\n", " ")
    installs = re.findall(r"(?:/pip [^&\"]*?install|\$\{install\})[^&;]*", lines)
    fetched = [each for each in installs if "dist/*.whl" not in each]
    assert len(fetched) == 7
    (once,) = re.findall(r'install="([^"]*)"', lines)
    assert "--require-hashes" in once
    for each in fetched:
        assert "--require-hashes" in each or "${install}" in each, each


def blocks(name):
    return LOCK.blocks_of((REQUIREMENTS / f"{name}.txt").read_text())


@pytest.mark.parametrize("name", ["service", "torch", "cpu", "cuda", "build"])
def test_each_locked_package_has_hashes_and_no_address(name):
    text = (REQUIREMENTS / f"{name}.txt").read_text()
    assert "/" not in text
    for package, block in blocks(name).items():
        hashes = re.findall(r"--hash=(\S+)", block)
        assert hashes, package
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", each) for each in hashes), package


def test_the_locked_versions_are_those_of_the_constraints():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = (line.partition("==") for line in lines if "==" in line)
    versions = {LOCK.normalized(name): version for name, _, version in pins}
    for name in ("service", "torch", "cpu"):
        for package, block in blocks(name).items():
            version = re.match(r"\S+==(\S+)", block)[1]
            assert version == versions[package], f"{package}: deploy/requirements/lock.py update"


def needs_of(name, found):
    """Names of all that a package on this machine needs, and its own."""
    if name in found:
        return found
    found.add(name)
    for each in map(Requirement, metadata.requires(name) or []):
        if each.marker is None or each.marker.evaluate({"extra": ""}):
            needs_of(LOCK.normalized(each.name), found)
    return found


@pytest.mark.parametrize("extras", [[], ["otel"], ["console", "plots"], list(LOCK.EXTRAS)])
def test_what_is_selected_is_complete(extras):
    """All that the installed packages need, but for torch, which has a file of its own."""
    project = (ROOT / "pyproject.toml").read_text()
    roots = LOCK.roots_of(project, extras)
    selected = set(LOCK.blocks_of(LOCK.select((REQUIREMENTS / "service.txt").read_text(), roots)))
    needed = set()
    for root in roots - {"torch"}:
        needs_of(root, needed)
    assert needed <= selected
    assert roots - {"torch"} <= selected
    assert ("opentelemetry-sdk" in selected) == ("otel" in extras)
    assert ("tensorboard" in selected) == ("train" in extras)


def test_torch_for_the_cpu_is_another_file_than_torch_with_cuda():
    """Else pip would take the one with CUDA, whose hash it knows from the index."""
    (torch,), (cpu,) = blocks("torch").values(), blocks("cpu").values()
    assert torch.split()[0] == cpu.split()[0]
    hashes = [set(re.findall(r"--hash=(\S+)", each)) for each in (torch, cpu)]
    assert not hashes[0] & hashes[1]
    assert len(hashes[0]) > 20  # every platform
    cuda = blocks("cuda")
    assert "triton" in cuda
    assert any(name.startswith("nvidia-") for name in cuda)
    assert not cuda.keys() & blocks("service").keys()


def test_everything_has_the_version_of_the_project():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"ARG VERSION={version}" in TEXT
    files = ["docker-compose.yml", "deploy/trial/run.py", "docs/deployment.md"]
    files += [str(each) for each in (ROOT / "deploy" / "kubernetes").rglob("*.yaml")]
    found = {
        (file, tag)
        for file in files
        for tag in re.findall(r"moca-service:([\w.-]+)", (ROOT / file).read_text())
    }
    assert len({file for file, _ in found}) > 5
    wrong = {each for each in found if each[1] not in (f"{version}-cpu", f"{version}-cu130")}
    assert not wrong
    script = (ROOT / "deploy" / "build.sh").read_text()
    assert 'tag="moca-service:$version-$variant"' in script


def test_what_is_copied_is_not_ignored():
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    for line in re.findall(r"^COPY (?!--from)(.*)$", TEXT, re.MULTILINE):
        for source in line.split()[:-1]:
            assert f"!{source}" in kept, source
            assert (ROOT / source).exists(), source


@pytest.fixture
def answering():
    """A server that answers with a status; yields its port and where to set the status."""

    class Handler(BaseHTTPRequestHandler):
        status, asked = 200, []

        def do_GET(self):
            self.asked.append(self.path)
            self.send_response(Handler.status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port, Handler
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("variable", "path"), [("MOCA_PORT", "/livez"), ("MOCA_METRICS_PORT", "/metrics")]
)
def test_health_is_asked_where_the_process_answers(answering, variable, path):
    port, handler = answering
    command = [sys.executable, "-I", str(ROOT / "deploy" / "healthcheck.py")]
    for status, expected in ((200, 0), (500, 1)):
        handler.status = status
        done = subprocess.run(command, env={variable: str(port)}, stderr=subprocess.DEVNULL)
        assert done.returncode == expected
    assert set(handler.asked) == {path}


@pytest.mark.parametrize("port", ["1", "eight"])
def test_nobody_there_is_not_healthy(port):
    command = [sys.executable, "-I", str(ROOT / "deploy" / "healthcheck.py")]
    done = subprocess.run(command, env={"MOCA_PORT": port}, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"http://127.0.0.1:{port}/livez: ")


@pytest.mark.parametrize("host", ["::", "::1", "0.0.0.0", "127.0.0.2", "localhost"])
def test_a_listener_elsewhere_is_queried_there(host):
    command = [sys.executable, "-I", str(ROOT / "deploy" / "healthcheck.py")]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, 0), family=family)
    except OSError as error:
        pytest.skip(f"no {host} on this machine: {error}")
    with listening as at:
        threading.Thread(target=answer_once, args=(at,), daemon=True).start()
        given = {"MOCA_HOST": host, "MOCA_PORT": str(at.getsockname()[1])}
        done = subprocess.run(command, env=given, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def answer_once(listening):
    connection, _ = listening.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")


def test_secrets_are_made_once(tmp_path):
    command = [sys.executable, "-I", str(ROOT / "deploy" / "make_secrets.py"), str(tmp_path)]
    made = subprocess.run([*command, "a", "b"], capture_output=True, text=True, check=True)
    assert made.stdout == "created a\ncreated b\n"
    first = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert first.keys() == {"a", "b"}
    assert all(len(each) >= 40 for each in first.values())
    assert first["a"] != first["b"]
    subprocess.run([*command, "a", "b", "c"], check=True, stdout=subprocess.DEVNULL)
    again = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert again.keys() == {"a", "b", "c"}
    assert {name: again[name] for name in first} == first


def test_secrets_are_made_once_by_runs_at_once_and_after_one_that_was_killed(tmp_path):
    command = [sys.executable, "-I", str(ROOT / "deploy" / "make_secrets.py"), str(tmp_path)]
    names = [f"n{i}" for i in range(200)]
    (tmp_path / ".n0.part").touch(0o444)  # of a run that was killed
    runs = [
        subprocess.Popen([*command, *names], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    made = [line for run in runs for line in run.communicate(timeout=60)[0].splitlines()]
    assert [run.returncode for run in runs] == [0] * 4
    assert sorted(made) == sorted(f"created {name}" for name in names)
    assert {path.name for path in tmp_path.iterdir()} == {".n0.part", *names}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("n*")} == {0o444}


@pytest.mark.parametrize("names", [[], ["../out"], [""], ["a/b"], ["a", ".."]])
def test_secrets_are_made_in_the_folder_only(tmp_path, names):
    folder = tmp_path / "in"
    (folder / "a").mkdir(parents=True)
    command = [sys.executable, "-I", str(ROOT / "deploy" / "make_secrets.py"), str(folder), *names]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "FOLDER NAME" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_secrets_that_cannot_be_written_are_named(tmp_path):
    command = [sys.executable, "-I", str(ROOT / "deploy" / "make_secrets.py")]
    done = subprocess.run([*command, str(tmp_path / "none"), "a"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("make_secrets: ")
    assert "No such file" in done.stderr


def test_the_build_script_says_what_it_takes():
    script = str(ROOT / "deploy" / "build.sh")
    shown = subprocess.run([script, "--help"], capture_output=True, text=True, check=True).stdout
    for option in ("--tool", "--tag", "--variant", "--extras", "--base", "--torch-index"):
        assert option in shown
    wrong = subprocess.run([script, "--colour"], capture_output=True, text=True)
    assert (wrong.returncode, "--colour" in wrong.stderr) == (2, True)


# The console has its charts with their license, and the bill of materials names what is there.
LOOK = """
import json, importlib.metadata as metadata
from service.console import assets
name = assets.plotly_name()
assert name and len(assets.asset(name).content) > 1_000_000, name
assert name.encode() in assets.asset("index.html").content
assert any("LICENSE" in str(file) for file in metadata.files("plotly"))
with open("/opt/moca/sbom.cdx.json") as file:
    bill = json.load(file)
assert bill["bomFormat"] == "CycloneDX"
listed = {each["name"].lower(): each["version"] for each in bill["components"]}
there = {each.metadata["Name"].lower(): each.version for each in metadata.distributions()}
del there["moca-service"]  # what the bill is about
assert listed == there, listed.items() ^ there.items()
assert bill["metadata"]["component"]["name"] == "moca-service"
"""


@pytest.mark.slow
def test_the_image_that_was_built_serves_on_a_read_only_root():
    """With MOCA_TEST_IMAGE, the name of an image, and MOCA_TEST_ENGINE (docker)."""
    image = os.environ.get("MOCA_TEST_IMAGE")
    if image is None:
        pytest.skip("MOCA_TEST_IMAGE names no image")
    engine = os.environ.get("MOCA_TEST_ENGINE", "docker").split()
    inspected = subprocess.run(
        [*engine, "image", "inspect", image], capture_output=True, text=True, check=True
    )
    (found,) = json.loads(inspected.stdout)
    assert found["Config"]["User"] == "10001:10001"
    look = [*engine, "run", "--rm", "--entrypoint", "python", image, "-c", LOOK]
    looked = subprocess.run(look, capture_output=True, text=True, timeout=120)
    assert looked.returncode == 0, looked.stderr
    command = [
        *engine,
        "run",
        "--rm",
        "--read-only",
        "--tmpfs",
        "/tmp",
        "--volume",
        "/data",
        "--cap-drop",
        "ALL",
        image,
        "demo",
        "--once",
        "--plots-dir",
        "/tmp/plots",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert "nile: confirmed change in 18" in done.stdout
