"""What a process does at its start: its store, plugins, password; one line where it ends."""

import os
import re
import socket
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import redis
from typer.testing import CliRunner

from model_core import artifact
from service.commands.main import app
from service.commands.options import read_settings
from service.problems import StartupError
from service.runtime.process import import_plugins
from service.runtime.supervisor import StoreKeeper
from service.settings import Settings
from service.store import connection
from service.store.connection import connect, patiently
from service.store.health import fix_partitions
from tests.clusters import running_server, valkey
from tests.ports import free_port
from tests.waiting import PATIENCE_S, Clock

REFUSED = "redis://127.0.0.1:1"


def run(*arguments, **environ):
    command = [sys.executable, "-m", "service.commands.main", *arguments]
    bare = {name: value for name, value in os.environ.items() if not name.startswith("MOCA_")}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, env={**bare, **environ}
    )


def test_a_store_that_starts_later_is_waited_for_and_each_reason_said_once(caplog, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=clock))
    stopped = SimpleNamespace(is_set=lambda: False, wait=clock.advance)
    refused, loading = redis.ConnectionError("refused"), redis.BusyLoadingError("loading")
    ask = Mock(side_effect=[refused, refused, refused, loading, 7])
    assert patiently(ask, stopped=stopped) == 7
    said = [each.getMessage() for each in caplog.records if each.name == connection.__name__]
    assert [line.rpartition(": ")[2] for line in said] == ["refused", "loading"]
    asked = []

    def never():
        asked.append(clock.now)
        raise redis.ConnectionError("refused")

    with pytest.raises(redis.ConnectionError):
        patiently(never, longest_s=1.0, stopped=stopped)
    assert asked[-1] - asked[0] == pytest.approx(1.0 + connection.START_PAUSE_S)
    stopped.is_set = lambda: True
    with pytest.raises(redis.ConnectionError):
        patiently(never, stopped=stopped)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["api", "worker"])
def test_a_process_without_its_store_ends_with_one_line(command):
    port = ["--port", "0"] if command == "api" else []
    done = run(command, "--redis-url", REFUSED, *port)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert re.search("^moca: .*refused", done.stderr, re.M)


def test_an_api_that_waits_for_its_store_refuses_connections():
    """Its clients then try another one, in place of waiting in its queue for as long."""
    port = str(free_port())
    command = [sys.executable, "-m", "service.commands.main", "api"]
    command += ["--redis-url", REFUSED, "--port", port]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as api:
        try:
            while "waiting for the store" not in api.stderr.readline():
                assert api.poll() is None
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", int(port)), timeout=PATIENCE_S)
        finally:
            api.kill()


@pytest.mark.slow
def test_a_port_of_metrics_that_is_taken_is_named(valkey_url):
    with socket.create_server(("", 0)) as taken:
        number = taken.getsockname()[1]
        done = run("worker", "--redis-url", valkey_url, "--metrics-port", str(number))
    assert done.returncode == 78
    assert "Traceback" not in done.stderr
    assert f"--metrics-port {number}" in done.stderr


# --- the number of partitions: stated, of the store, or few -----------------------------------


@pytest.fixture
def opened(valkey_url, tmp_path):
    def opened(**stated):
        keeper = StoreKeeper(Settings(redis_url=valkey_url, data_dir=tmp_path, **stated))
        return keeper.open().partitions

    return opened


def test_a_new_store_has_few_partitions_and_keeps_its_own(opened, valkey_url):
    for workers, partitions in ((1, 4), (2, 8), (3, 12), (32, 128)):
        with connect(valkey_url) as client:
            client.flushall()
        assert opened(workers=workers) == partitions
        assert opened(workers=1) == partitions
    with connect(valkey_url) as client:
        client.flushall()
        fix_partitions(client, 5)
    assert opened() == opened(partitions=5) == 5
    with pytest.raises(StartupError, match="5 partitions, got 8"):
        opened(partitions=8)


# --- passwords and plugins --------------------------------------------------------------------


def test_commands_reach_a_store_with_a_password(tmp_path):
    file = tmp_path / "password"
    file.write_text("p@ss:/w\n")
    with running_server(valkey()) as url:
        with connect(url) as client:
            client.config_set("requirepass", "p@ss:/w")
        given = {"MOCA_REDIS_URL": url}
        assert CliRunner().invoke(app, ["keys", "list"], env=given).exit_code == 1
        given["MOCA_REDIS_PASSWORD_FILE"] = str(file)
        listed = CliRunner().invoke(app, ["keys", "list"], env=given)
        assert listed.exit_code == 0
        assert "p@ss" not in listed.output


def test_passwords_that_cannot_be_used_are_refused(tmp_path, capsys):
    file = tmp_path / "password"
    for url, content, says in (
        (None, "x", "--redis-url"),
        ("redis://h", "", "empty"),
        ("redis://:old@h", "n3w", "already"),
        ("redis://h", None, "No such file"),
    ):
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_text(content)
        with pytest.raises(BaseException) as ended:  # noqa: PT011  # of the command line
            read_settings({"redis_url": url, "redis_password_file": file})
        assert getattr(ended.value, "exit_code", None) == 2
        said = capsys.readouterr().err
        assert says in said
        assert "n3w" not in said


MODULES = {
    "fine": "from model_core import artifact\nartifact.register('fine', print)\n",
    "half": "raise ValueError('half done')",
    "leaving": "import sys\nsys.exit(0)",
    "unreadable": "def",
    "taken": "from model_core import artifact\nartifact.register('alpaca', print)",
}


def test_plugins_register_their_kinds_and_one_that_cannot_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(artifact, "_BUILDERS", dict(artifact._BUILDERS))
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    before = artifact.kinds()
    import_plugins(" , ")
    assert artifact.kinds() == before
    import_plugins(" fine,, json ,fine")
    assert set(artifact.kinds()) == {*before, "fine"}
    for name in ("half", "leaving", "unreadable", "taken", "nothing_of_it", "not a name", ".dot"):
        with pytest.raises(StartupError, match=f"'{re.escape(name)}'"):
            import_plugins(f"fine,{name}")
    for name in MODULES:
        sys.modules.pop(name, None)
