"""The image: what its Dockerfile says, and, where a tool can build it, what it is."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
LAST = TEXT[TEXT.rindex("\nFROM ") :]


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


def test_every_package_comes_from_the_constraints():
    installs = re.findall(r"pip [^&]*?install[^&]*", TEXT.replace("\\\n", " "))
    assert len(installs) == 4
    pinned = [each for each in installs if "-c constraints.txt" in each or "--no-deps" in each]
    assert pinned == installs


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
def test_whoever_listens_elsewhere_is_asked_there(host):
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
    assert made.stdout == "made a\nmade b\n"
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
    assert sorted(made) == sorted(f"made {name}" for name in names)
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
