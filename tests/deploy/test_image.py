"""The image and compose: versions, health, rights, passwords; and the image that was built."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from service.commands.options import read_settings
from tests.clusters import valkey, wait_until_up
from tests.serving import Quiet, ThreadServer
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HEALTH = [sys.executable, "-I", str(ROOT / "deploy" / "healthcheck.py")]


def needed(requirements):
    """Names of distributions that some requirements bring along, themselves included."""
    seen, left = set(), [Requirement(text) for text in requirements]
    while left:
        one = left.pop()
        key = (canonicalize_name(one.name), frozenset(one.extras))
        if key in seen:
            continue
        seen.add(key)
        with contextlib.suppress(PackageNotFoundError):  # of another platform
            for below in map(Requirement, requires(one.name) or []):
                environments = [{"extra": extra} for extra in (*one.extras, "")]
                if below.marker is None or any(map(below.marker.evaluate, environments)):
                    left.append(below)
    return {name for name, _ in seen}


def test_every_package_of_the_image_has_one_version():
    """Those of the defaults of the Dockerfile, and of every process of the service."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if line[0] != "#"}
    requirements = list(PROJECT["dependencies"])
    for extra in ("console", "plots", "parquet", "otel", "frames", "train"):
        requirements += PROJECT["optional-dependencies"][extra]
    missing = needed(requirements) - pinned
    assert {name for name in missing if not name.startswith(("nvidia-", "cuda-"))} == set()


class Answers(Quiet):
    status, asked = 200, []

    def do_GET(self):
        self.asked.append(self.path)
        self.answer(Answers.status)


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
    code, printed = healthy(MOCA_PORT="1")
    assert code == 1
    assert printed.startswith("http://127.0.0.1:1/livez: ")
    Answers.status = 200
    for host in ("::", "127.0.0.2"):
        with (
            contextlib.suppress(OSError),  # there is no such address on this machine
            ThreadServer(Answers, host=host) as server,
        ):
            environment = {"MOCA_HOST": host, "MOCA_PORT": str(server.server_port)}
            assert healthy(**environment) == (0, ""), host


@pytest.fixture(scope="module")
def services():
    """The services of compose, each variable with its default."""
    text = (ROOT / "docker-compose.yml").read_text()
    # Every variable has a default: nothing has to be set before the first `up`.
    assert not re.findall(r"(?<!\$)\$\{\w+\}", text)
    return yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))["services"]


def test_services_of_compose_have_no_more_rights_than_they_need(services):
    usual = {name for name, service in services.items() if "profiles" not in service}
    watching = {"prometheus", "alertmanager", "grafana"}
    assert usual == {"prepare", "valkey", "api", "worker"} | watching
    for name, service in services.items():
        assert "no-new-privileges:true" in service["security_opt"]
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"] is (name != "grafana"), name
        for port in service.get("ports", []):  # only this machine reaches them
            assert port.startswith("127.0.0.1:"), name
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (ROOT / source).exists(), volume
    environment = services["api"]["environment"]
    # Pages in browsers of this machine are refused; local callers need no key.
    assert environment["MOCA_OPEN_ACCESS"]
    assert environment["MOCA_HOST_NAMES"] == "localhost"
    assert environment["MOCA_REDIS_PASSWORD_FILE"].startswith("/run/moca/")
    assert "@" not in environment["MOCA_REDIS_URL"]
    prometheus = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    (target,) = prometheus["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    assert target.partition(":")[0] in services


def placed(command, folder, **programs):
    """Return a command of compose for this machine: its folders and programs elsewhere."""
    for name, program in programs.items():
        command = command.replace(name.replace("_", "-"), program)
    command = re.sub(r"(?<![\w/])/(run/moca|data|grafana|dashboards)\b", rf"{folder}/\1", command)
    return command.replace("$$", "$").replace("python ", f"{sys.executable} ")


def test_passwords_and_dashboards_are_made_and_valkey_has_the_password(
    services, tmp_path, monkeypatch
):
    """The first start makes them, the next leaves passwords; a store without one does not start."""
    for name in ("run/moca", "data", "dashboards"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "grafana").symlink_to(ROOT / "deploy" / "grafana")
    prepare = placed(services["prepare"]["command"][0], tmp_path)
    folder = tmp_path / "run" / "moca"
    (folder / "grafana_password").touch()  # of a start that was killed
    passwords = []
    for _ in range(2):
        subprocess.run(["sh", "-euc", prepare], check=True)
        passwords.append({path.name: path.read_text() for path in folder.iterdir()})
    assert passwords[0] == passwords[1]
    assert passwords[0].keys() == {"valkey_password", "grafana_password"}
    assert all(len(text.strip()) >= 40 for text in passwords[0].values())
    assert len(list((tmp_path / "dashboards").iterdir())) == 2
    for name in [name for name in os.environ if name.startswith("MOCA_")]:
        monkeypatch.delenv(name)
    service = services["valkey"]
    socket_path = f"{tmp_path}/s"
    server = f"{valkey()} --port 0 --unixsocket {socket_path}"
    start = placed(service["command"][-1], tmp_path, valkey_server=server)
    file = folder / "valkey_password"
    process = subprocess.Popen(["sh", "-c", start], stdout=subprocess.DEVNULL)
    try:
        options = {"redis_url": f"unix://{socket_path}", "redis_password_file": file}
        wait_until_up(read_settings(options).redis_url, process)
        if shutil.which("redis-cli"):
            client = f"redis-cli -s {socket_path}"
            ask = placed(service["healthcheck"]["test"][-1], tmp_path, valkey_cli=client)
            assert subprocess.call(["sh", "-c", ask]) == 0
            wrong = ask.replace("valkey_password", "grafana_password")
            assert subprocess.run(["sh", "-c", wrong], capture_output=True).returncode != 0
        process.send_signal(signal.SIGTERM)  # it is the container's first process
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
    for password in ("", "two words"):
        file.write_text(password)
        done = subprocess.run(["sh", "-c", start], capture_output=True, timeout=PATIENCE_S)
        assert done.returncode != 0


@pytest.mark.slow
def test_hadolint_finds_nothing():
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("no hadolint for this platform")
    done = subprocess.run([program, "Dockerfile"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


# The console has its charts.
LOOK = """
from service.console import assets
name = assets.plotly_name()
assert name and assets.ConsoleFiles().lookup_path(name)[1].st_size > 1_000_000, name
assert name in assets.page()
"""


@pytest.mark.slow
def test_the_image_that_was_built_serves_on_a_read_only_root():
    """With MOCA_TEST_IMAGE, the name of an image, and MOCA_TEST_ENGINE (docker or podman)."""
    image = os.environ.get("MOCA_TEST_IMAGE")
    engine = os.environ.get("MOCA_TEST_ENGINE", "docker")
    if image is None:
        pytest.skip("MOCA_TEST_IMAGE names no image")

    def run(*command):
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (described,) = json.loads(run(engine, "image", "inspect", image))
    assert described["Config"]["User"] == "10001:10001"
    run(engine, "run", "--rm", "--entrypoint", "python", image, "-c", LOOK)
    confined = ("--read-only", "--tmpfs", "/tmp", "--volume", "/data", "--cap-drop", "ALL")
    demo = ("demo", "--once", "--plots-dir", "/tmp/plots", "--host", "127.0.0.1", "--port", "0")
    assert "nile: mean fell by 2.0 sd" in run(engine, "run", "--rm", *confined, image, *demo)
    # A worker that waits for its store handles no signals yet; it stops at once all the same.
    store = ("--env", "MOCA_REDIS_URL=redis://127.0.0.1:1/0")
    container = run(engine, "run", "--detach", *confined, *store, image, "worker").strip()
    run(engine, "stop", "-t", "60", container)  # else it is killed, with another status
    assert run(engine, "wait", container).strip() == "0"
    run(engine, "rm", "--volumes", container)
