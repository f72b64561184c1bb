"""The embedded server: one per folder, whatever dies; nothing acknowledged is lost with it."""

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from service.commands.main import app
from service.problems import StartupError
from service.runtime import embedded
from service.runtime.embedded import Embedded
from service.runtime.supervisor import StoreKeeper
from service.settings import Settings
from service.store.connection import connect
from service.store.health import check_server
from tests.waiting import PATIENCE_S, ended, until

pytestmark = pytest.mark.redis

OWNER = """
import sys, time
from pathlib import Path
from service.runtime.embedded import Embedded
store = Embedded(Path(sys.argv[1]))
store.start()
print(store.pid, store.url, flush=True)
time.sleep(60)
"""


@pytest.fixture
def store(tmp_path):
    store = Embedded(tmp_path / "data")
    yield store
    store.stop()


def written(store):
    with connect(store.url) as client:
        return client.get("written")


def test_it_is_fit_to_run_on_and_private(store, tmp_path):
    store.start()
    with connect(store.url) as client:
        check_server(client)
        config = client.config_get("append*")
    assert (config["appendonly"], config["appendfsync"]) == ("yes", "everysec")
    assert store.socket.parent.stat().st_mode & 0o777 == 0o700
    assert str(tmp_path) not in str(store.socket)
    assert (tmp_path / "data" / "store").stat().st_mode & 0o777 == 0o700


def test_its_allocator_is_one_that_the_system_has(store, monkeypatch):
    other = find_library("bz2")
    monkeypatch.setattr(embedded, "find_library", {"jemalloc": other}.get)
    store.start()
    assert other in Path(f"/proc/{store.pid}/maps").read_text()


def end(store):
    os.kill(store.pid, signal.SIGKILL)


def end_group(store):
    """As service managers send it: the shell around the server waits for it."""
    os.killpg(os.getpgid(store.pid), signal.SIGTERM)


def end_shell(store):
    """The server lives on: with a second one beside it both would write to the folder."""
    os.kill(store._process.pid, signal.SIGKILL)


@pytest.mark.parametrize("ending", [Embedded.stop, end, end_group, end_shell])
def test_however_it_ends_it_starts_again_with_its_data(store, ending):
    store.start()
    with connect(store.url) as client:
        client.set("written", "acknowledged")
    first = store.pid
    ending(store)
    until(lambda: not store.alive())
    assert ending != Embedded.stop or not store.socket.exists()
    store.start()
    assert store.pid != first
    assert ended(first)
    assert written(store) == b"acknowledged"


def test_a_second_owner_is_refused_by_name(store):
    store.start()
    second = Embedded(store.data_dir)
    with pytest.raises(StartupError, match=f"already in use by process {os.getpid()}"):
        second.start()
    second.stop()
    assert store.alive()
    assert (store.data_dir / "server.json").exists()


@pytest.mark.parametrize("gone", [False, True], ids=["folder stays", "folder is gone"])
def test_a_server_ends_with_its_killed_owner(store, tmp_path, gone):
    """Also in the moment before the next owner; what was acknowledged is on disk."""
    command = [sys.executable, "-c", OWNER, str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        pid, url = owner.stdout.readline().split()
        with connect(url) as client:
            client.set("written", "by the first")
        if gone:
            shutil.rmtree(tmp_path / "data")
        owner.kill()
    if gone:
        until(lambda: ended(int(pid)))
        return
    store.start()
    assert store.pid != int(pid)
    assert ended(int(pid))
    assert written(store) == b"by the first"


def test_stop_ends_the_owner_of_a_folder_and_says_when_there_is_none(tmp_path):
    folder = tmp_path / "data"
    arguments = ["stop", "--data-dir", str(folder)]
    refused = CliRunner().invoke(app, arguments)
    assert (refused.exit_code, "no service runs" in refused.output) == (1, True)
    command = [sys.executable, "-c", OWNER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        pid, _ = owner.stdout.readline().split()
        os.kill(owner.pid, signal.SIGSTOP)
        late = CliRunner().invoke(app, [*arguments, "--wait-s", "0.1"])
        assert (late.exit_code, f"process {owner.pid}" in late.output) == (1, True)
        os.kill(owner.pid, signal.SIGCONT)
        assert owner.wait(PATIENCE_S) == -signal.SIGTERM
    until(lambda: ended(int(pid)))
    assert CliRunner().invoke(app, arguments).exit_code == 1
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        owner.stdout.readline()
        stopped = CliRunner().invoke(app, arguments)
        assert (stopped.exit_code, f"process {owner.pid}" in stopped.output) == (0, True)
        assert owner.wait(PATIENCE_S) == -signal.SIGTERM


def test_a_folder_that_another_process_holds_is_refused_by_its_number(store, monkeypatch):
    store.start()
    pid = store.pid
    left = Embedded(store.data_dir)
    monkeypatch.setattr(embedded, "START_WAIT_S", 0.2)
    left._owner = store._owner  # as if that owner were gone, but not its server
    with pytest.raises(StartupError, match=f"process {pid}"):
        left.start()


def test_a_server_that_cannot_start_says_why(store):
    store.start()
    store.stop()
    (store.data_dir / "store" / "appendonlydir" / "appendonly.aof.manifest").write_text("junk\n")
    with pytest.raises(StartupError, match=r"exited with status 1(.|\n)*manifest"):
        store.start()


def test_folders_that_cannot_be_used_are_refused(store, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="file"):
        Embedded(tmp_path / "file" / "data").start()
    store.socket.parent.mkdir(mode=0o777)
    store.socket.parent.chmod(0o777)
    with pytest.raises(StartupError, match="private"):
        store.start()
    monkeypatch.setattr(embedded.tempfile, "tempdir", "/" + "t" * 120)
    long = Embedded(tmp_path / ("long" * 40))
    assert len(str(long.socket)) < embedded.SOCKET_PATH_LIMIT


def test_a_disk_that_is_full_at_the_start_is_named(tmp_path, monkeypatch):
    """A limit on the size of its files stands for a full disk."""
    keeper, start = StoreKeeper(Settings(data_dir=tmp_path / "data")), subprocess.Popen
    keeper.open()
    with connect(keeper.url) as client:
        client.set("written", "x" * 1000)
    keeper.close()

    def limited(command, **options):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))

        return start(command, **options, restore_signals=False, preexec_fn=limit)

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", limited)
        with pytest.raises(StartupError, match="disk full"):
            keeper.open()
    keeper.close()

    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as patch:
        patch.setattr(Embedded, "_record", Mock(side_effect=full))
        with pytest.raises(StartupError, match="disk full"):
            keeper.open()
    keeper.close()
    keeper.open()
    keeper.close()
