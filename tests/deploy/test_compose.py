"""docker-compose.yml is valid under the Compose specification, and says what it has to."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import compose_spec
import pytest
import yaml

from service.commands.options import read_settings
from tests.conftest import _binary, _wait_until_up

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def composed():
    text = (ROOT / "docker-compose.yml").read_text()
    # Every variable has a default: nothing has to be set before the first `up`.
    assert not re.findall(r"(?<!\$)\$\{\w+\}", text)
    return yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))


def test_the_specification_accepts_it(composed):
    compose_spec.PyCompose.from_yaml(yaml.safe_dump(composed)).validate()


def test_the_specification_refuses_what_is_wrong(composed):
    wrong = {**composed, "services": {"api": {"image": "a", "ports": ["eight"]}}}
    with pytest.raises(ValueError, match="port"):
        compose_spec.PyCompose.from_yaml(yaml.safe_dump(wrong)).validate()


def test_the_services_are_there(composed):
    services = composed["services"]
    usual = {name for name, service in services.items() if "profiles" not in service}
    watching = {"prometheus", "alertmanager", "alert-log", "grafana"}
    assert usual == {"secrets", "redis", "api", "worker"} | watching
    assert services["worker-gpu"]["profiles"] == ["gpu"]
    assert services["demo"]["profiles"] == ["demo"]
    (device,) = services["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])


def test_nothing_runs_with_more_rights_than_it_needs(composed):
    for name, service in composed["services"].items():
        assert service["cap_drop"] == ["ALL"] or name == "grafana", name
        assert "no-new-privileges:true" in service["security_opt"]
        assert "container_name" not in service, "it could not be scaled"
        if name != "grafana":
            assert service["read_only"] is True


def test_only_this_machine_reaches_what_is_published(composed):
    for name, service in composed["services"].items():
        for port in service.get("ports", []):
            where = port if isinstance(port, str) else port["host_ip"]
            assert where.startswith("127.0.0.1"), name


def test_pages_in_browsers_of_this_machine_do_not(composed):
    """A name of theirs that resolves to this machine is refused; local callers need no key."""
    environment = composed["services"]["api"]["environment"]
    assert environment["MOCA_OPEN_ACCESS"]
    assert environment["MOCA_HOST_NAMES"] == "localhost"


def test_no_password_is_in_the_file(composed):
    """Passwords are files of a volume that containers read."""
    services = composed["services"]
    assert services["api"]["environment"]["MOCA_REDIS_PASSWORD_FILE"].startswith("/run/moca/")
    assert "/run/moca/redis_password" in services["redis"]["command"][-1]
    assert "@" not in services["api"]["environment"]["MOCA_REDIS_URL"]


@pytest.mark.parametrize("line", ["appendonly yes", "maxmemory-policy noeviction"])
def test_redis_keeps_what_it_accepted(line):
    for place in ("redis", "kubernetes/base"):
        assert line in (ROOT / "deploy" / place / "redis.conf").read_text().splitlines()


def redis_commands():
    """What starts Redis and asks how it is, as a shell gets it: by compose and by Kubernetes."""
    redis = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["redis"]
    commands = redis["command"][-1], redis["healthcheck"]["test"][-1]
    yield "compose", [each.replace("$$", "$") for each in commands]
    manifest = next(
        yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "base" / "redis.yaml").read_text())
    )
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    probe = container["readinessProbe"]["exec"]["command"][-1]
    yield "kubernetes", [container["command"][-1], probe]


@contextlib.contextmanager
def redis_of(commands, folder, password):
    """Start Redis as it is started there; yields its process, and what asks how it is."""
    if _binary("redis") is None:
        pytest.skip("no redis-server on this machine")
    (folder / "given.conf").write_text(f"port 0\nunixsocket {folder}/s\ndir {folder}\n")
    (folder / "password").write_bytes(password.encode())
    places = (
        (r"/tmp/redis\.conf", "made.conf"),
        (r"/etc/moca/redis\.conf", "given.conf"),
        (r"/run/(secrets/)?moca/redis_password", "password"),
    )
    for place, here in places:
        commands = [re.sub(place, f"{folder}/{here}", each) for each in commands]
    start, ask = commands
    process = subprocess.Popen(["sh", "-c", start], stdout=subprocess.DEVNULL)
    try:
        yield process, ask.replace("redis-cli", f"redis-cli -s {folder}/s")
    finally:
        process.kill()
        process.wait()


each_way = pytest.mark.parametrize("commands", [pytest.param(c, id=n) for n, c in redis_commands()])


@each_way
def test_redis_ends_when_it_is_told_to(commands, tmp_path):
    """The first process of the container is Redis itself: a shell there would keep SIGTERM."""
    with redis_of(commands, tmp_path, "of-a-test") as (process, _):
        _wait_until_up(f"unix://:of-a-test@{tmp_path}/s", process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


@each_way
@pytest.mark.parametrize(
    "password",
    ["with space", "a'b", '"both"', "'a' 'b'", 'b\\"\\x41', "#a#", "$(id)%s", "&/", "\t ends \r\n"],
)
def test_redis_has_the_password_that_the_service_reads(commands, password, tmp_path, monkeypatch):
    with redis_of(commands, tmp_path, password) as (process, ask):
        for name in list(os.environ):
            if name.startswith("MOCA_"):
                monkeypatch.delenv(name)
        given = {"redis_url": f"unix://{tmp_path}/s", "redis_password_file": tmp_path / "password"}
        url = read_settings(given).redis_url
        _wait_until_up(url, process)
        assert shutil.which("redis-cli") is None or subprocess.call(["sh", "-c", ask]) == 0
        wrong = subprocess.run(
            ["sh", "-c", ask.replace("/password", "/given.conf")], capture_output=True
        )
        assert wrong.returncode != 0


@each_way
@pytest.mark.parametrize("password", ["", " \n"])
def test_redis_does_not_start_without_a_password(commands, password, tmp_path):
    with redis_of(commands, tmp_path, password) as (process, _):
        assert process.wait(10) != 0


@pytest.mark.slow
def test_the_trial_finds_nothing_wrong():
    """With MOCA_TEST_IMAGE; MOCA_TEST_ENGINE is docker, or podman on the network of the host."""
    image, engine = os.environ.get("MOCA_TEST_IMAGE"), os.environ.get("MOCA_TEST_ENGINE", "docker")
    if image is None:
        pytest.skip("MOCA_TEST_IMAGE names no image")
    command = [sys.executable, str(ROOT / "deploy" / "trial" / "run.py"), "--engine", engine]
    command += ["--image", image, *(["--host-network"] if engine == "podman" else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert "10000 applied" in done.stdout
