"""The image's parts and compose: locks, health, secrets, rights; and the image that was built."""

import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from service.commands.options import read_settings
from tests.conftest import _binary, _wait_until_up
from tests.serving import ThreadServer

ROOT = Path(__file__).parents[2]


REQUIREMENTS = ROOT / "deploy" / "requirements"


_spec = importlib.util.spec_from_file_location("image_lock", REQUIREMENTS / "lock.py")


LOCK = importlib.util.module_from_spec(_spec)


_spec.loader.exec_module(LOCK)
HEALTH = [sys.executable, "-I", str(ROOT / "deploy" / "healthcheck.py")]
SECRETS = [sys.executable, "-I", str(ROOT / "deploy" / "make_secrets.py")]


def blocks(name):
    return LOCK.blocks_of((REQUIREMENTS / f"{name}.txt").read_text())


def test_locked_packages_have_hashes_and_the_versions_of_the_constraints():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = (line.partition("==") for line in lines if "==" in line)
    versions = {LOCK.normalized(name): version for name, _, version in pins}
    for name in ("service", "torch", "cpu", "cuda", "build"):
        assert "/" not in (REQUIREMENTS / f"{name}.txt").read_text()
        for package, block in blocks(name).items():
            hashes = re.findall(r"--hash=(\S+)", block)
            assert hashes, package
            assert all(re.fullmatch("sha256:[0-9a-f]{64}", each) for each in hashes), package
            if name in ("service", "torch", "cpu"):
                version = re.match(r"\S+==(\S+)", block)[1]
                assert version == versions[package], (
                    f"{package}: deploy/requirements/lock.py update"
                )
    # Torch for the CPU is another file, or pip would take the one with CUDA.
    (torch,), (cpu,) = blocks("torch").values(), blocks("cpu").values()
    one, other = (set(re.findall(r"--hash=(\S+)", each)) for each in (torch, cpu))
    assert not one & other
    assert not blocks("cuda").keys() & blocks("service").keys()


def needs_of(name, found):
    """Names of all that a package on this machine needs, and its own."""
    if name in found:
        return found
    found.add(name)
    for each in map(Requirement, metadata.requires(name) or []):
        if each.marker is None or each.marker.evaluate({"extra": ""}):
            needs_of(LOCK.normalized(each.name), found)
    return found


def test_what_is_selected_is_complete():
    """All that the installed packages need, but for torch, which has a file of its own."""
    project = (ROOT / "pyproject.toml").read_text()
    text = (REQUIREMENTS / "service.txt").read_text()
    for extras in ([], ["console", "plots"], list(LOCK.EXTRAS)):
        roots = LOCK.roots_of(project, extras)
        selected = set(LOCK.blocks_of(LOCK.select(text, roots)))
        needed = set()
        for root in roots - {"torch"}:
            needs_of(root, needed)
        assert needed | (roots - {"torch"}) <= selected
        assert ("tensorboard" in selected) == ("train" in extras)


def test_everything_has_the_version_of_the_project():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    files = ["docker-compose.yml", "deploy/trial/run.py", "docs/deployment.md"]
    for file in files:
        tags = re.findall(r"moca-service:([\w.-]+)", (ROOT / file).read_text())
        assert tags, file
        assert set(tags) <= {f"{version}-cpu", f"{version}-cu130"}, file


class Answers(BaseHTTPRequestHandler):
    status, asked = 200, []

    def do_GET(self):
        self.asked.append(self.path)
        self.send_response(Answers.status)
        self.end_headers()

    def log_message(self, *_):
        """Stay quiet."""


def test_health_is_asked_where_the_process_answers():
    def healthy(**environment):
        done = subprocess.run(HEALTH, env=environment, capture_output=True, text=True)
        return done.returncode, done.stderr

    with ThreadServer(Answers) as server:
        port = str(server.server_port)
        for variable, path in (("MOCA_PORT", "/livez"), ("MOCA_METRICS_PORT", "/metrics")):
            for Answers.status, expected in ((200, 0), (500, 1)):
                assert healthy(**{variable: port})[0] == expected
                assert Answers.asked.pop() == path
    for port in ("1", "eight"):
        code, said = healthy(MOCA_PORT=port)
        assert code == 1
        assert said.startswith(f"http://127.0.0.1:{port}/livez: ")
    for host in ("::", "0.0.0.0", "127.0.0.2"):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listening = socket.create_server((host, 0), family=family)
        except OSError:
            continue  # there is no such address on this machine
        with listening as at:
            threading.Thread(target=answer_once, args=(at,), daemon=True).start()
            given = {"MOCA_HOST": host, "MOCA_PORT": str(at.getsockname()[1])}
            assert healthy(**given) == (0, ""), host


def answer_once(listening):
    connection, _ = listening.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")


def test_secrets_are_made_once_whatever_runs_at_once_or_was_killed(tmp_path):
    names = [f"n{i}" for i in range(50)]
    (tmp_path / ".n0.part").touch(0o444)  # of a run that was killed
    command = [*SECRETS, str(tmp_path), *names]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    made = [line for run in runs for line in run.communicate(timeout=60)[0].splitlines()]
    assert [run.returncode for run in runs] == [0] * 3
    assert sorted(made) == sorted(f"created {name}" for name in names)
    first = {path.name: path.read_text() for path in tmp_path.glob("n*")}
    assert len(set(first.values())) == len(names)
    assert all(len(each) >= 40 for each in first.values())
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("n*")} == {0o444}
    subprocess.run([*command, "c"], check=True, stdout=subprocess.DEVNULL)
    assert {path.name: path.read_text() for path in tmp_path.glob("n*")} == first
    for wrong in ([], ["../out"], [""], ["a/b"], ["a", ".."]):
        done = subprocess.run([*SECRETS, str(tmp_path / "in"), *wrong], capture_output=True)
        assert done.returncode == 1, wrong
    assert not (tmp_path / "out").exists()
    done = subprocess.run([*SECRETS, str(tmp_path / "none"), "a"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("make_secrets: ")


@pytest.fixture(scope="module")
def composed():
    text = (ROOT / "docker-compose.yml").read_text()
    # Every variable has a default: nothing has to be set before the first `up`.
    assert not re.findall(r"(?<!\$)\$\{\w+\}", text)
    return yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))


def test_services_of_compose_have_no_more_rights_than_they_need(composed):
    services = composed["services"]
    usual = {name for name, service in services.items() if "profiles" not in service}
    watching = {"prometheus", "alertmanager", "alert-log", "grafana"}
    assert usual == {"secrets", "redis", "api", "worker"} | watching
    for name, service in services.items():
        assert "no-new-privileges:true" in service["security_opt"]
        assert "container_name" not in service, "it could not be scaled"
        if name != "grafana":
            assert service["cap_drop"] == ["ALL"], name
            assert service["read_only"] is True
        for port in service.get("ports", []):  # only this machine reaches them
            where = port if isinstance(port, str) else port["host_ip"]
            assert where.startswith("127.0.0.1"), name
    environment = services["api"]["environment"]
    # Pages in browsers of this machine are refused; local callers need no key.
    assert environment["MOCA_OPEN_ACCESS"]
    assert environment["MOCA_HOST_NAMES"] == "localhost"
    assert environment["MOCA_REDIS_PASSWORD_FILE"].startswith("/run/moca/")
    assert "@" not in environment["MOCA_REDIS_URL"]
    config = (ROOT / "deploy" / "redis" / "redis.conf").read_text().splitlines()
    assert {"appendonly yes", "maxmemory-policy noeviction"} <= set(config)
    alerting = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["alerting"]
    (target,) = alerting["alertmanagers"][0]["static_configs"][0]["targets"]
    assert target.partition(":")[0] in services


PASSWORDS = ["with space", "a'b", '"both"', 'b\\"\\x41', "#a#", "$(id)%s", "&/", "\t ends \r\n"]


def test_redis_of_compose_has_the_password_that_the_service_reads(composed, tmp_path, monkeypatch):
    """It is the container's first process, ends when told to, and not without a password."""
    if _binary("redis") is None:
        pytest.skip("no redis-server on this machine")
    (tmp_path / "given.conf").write_text(f"port 0\nunixsocket {tmp_path}/s\ndir {tmp_path}\n")
    redis = composed["services"]["redis"]
    start, ask = redis["command"][-1], redis["healthcheck"]["test"][-1]
    for place, here in (
        (r"/tmp/redis\.conf", "made.conf"),
        (r"/etc/moca/redis\.conf", "given.conf"),
        (r"/run/moca/redis_password", "password"),
    ):
        start, ask = (re.sub(place, f"{tmp_path}/{here}", each) for each in (start, ask))
    start, ask = start.replace("$$", "$"), ask.replace("$$", "$")
    ask = ask.replace("redis-cli", f"redis-cli -s {tmp_path}/s")
    for name in [name for name in os.environ if name.startswith("MOCA_")]:
        monkeypatch.delenv(name)
    file = tmp_path / "password"
    for password in PASSWORDS:
        file.write_bytes(password.encode())
        process = subprocess.Popen(["sh", "-c", start], stdout=subprocess.DEVNULL)
        try:
            given = {"redis_url": f"unix://{tmp_path}/s", "redis_password_file": file}
            _wait_until_up(read_settings(given).redis_url, process)
            if shutil.which("redis-cli"):
                assert subprocess.call(["sh", "-c", ask]) == 0, password
                wrong = ask.replace("/password", "/given.conf")
                assert subprocess.run(["sh", "-c", wrong], capture_output=True).returncode != 0
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
    for password in ("", " \n"):
        file.write_bytes(password.encode())
        done = subprocess.run(["sh", "-c", start], stdout=subprocess.DEVNULL, timeout=60)
        assert done.returncode != 0


@pytest.mark.slow
def test_hadolint_and_the_specification_of_compose_find_nothing(composed):
    compose_spec = pytest.importorskip("compose_spec")
    compose_spec.PyCompose.from_yaml(yaml.safe_dump(composed)).validate()
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("no hadolint for this platform")
    found = subprocess.run([program, "Dockerfile"], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


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
    """With MOCA_TEST_IMAGE, the name of an image, and MOCA_TEST_ENGINE (docker or podman)."""
    image, engine = os.environ.get("MOCA_TEST_IMAGE"), os.environ.get("MOCA_TEST_ENGINE", "docker")
    if image is None:
        pytest.skip("MOCA_TEST_IMAGE names no image")

    def run(*command):
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (found,) = json.loads(run(engine, "image", "inspect", image))
    assert found["Config"]["User"] == "10001:10001"
    run(engine, "run", "--rm", "--entrypoint", "python", image, "-c", LOOK)
    confined = ("--read-only", "--tmpfs", "/tmp", "--volume", "/data", "--cap-drop", "ALL")
    demo = ("demo", "--once", "--plots-dir", "/tmp/plots", "--host", "127.0.0.1", "--port", "0")
    assert "nile: confirmed change in 18" in run(engine, "run", "--rm", *confined, image, *demo)
    trial = [sys.executable, str(ROOT / "deploy" / "trial" / "run.py"), "--engine", engine]
    network = ["--host-network"] if engine == "podman" else []
    assert "10000 applied" in run(*trial, "--image", image, *network)
