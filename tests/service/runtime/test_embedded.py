"""The embedded server: one per folder, whatever dies; nothing acknowledged is lost with it."""

import os
import signal
import subprocess
import sys

import pytest
from redis.exceptions import RedisError

from service.runtime import embedded
from service.runtime.embedded import Embedded, EmbeddedError
from service.store.connection import check_server, connect
from tests.waiting import until

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


def write(store, value):
    with connect(store.url) as client:
        client.set("written", value)


def written(store):
    with connect(store.url) as client:
        return client.get("written")


def run_id(store):
    with connect(store.url) as client:
        return client.info("server")["run_id"]


@pytest.fixture
def killed_owner(tmp_path):
    """A folder whose owner was killed with SIGKILL while its server ran; yields the server's pid.

    The process that takes the server over also stops it.
    """
    command = [sys.executable, "-c", OWNER, str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        pid, url = owner.stdout.readline().split()
        with connect(url) as client:
            client.set("written", "by the first")
        owner.kill()
    return int(pid)


def test_it_is_fit_to_run_on_and_private(store, tmp_path):
    store.start()
    with connect(store.url) as client:
        check_server(client)
        config = client.config_get("append*")
    assert (config["appendonly"], config["appendfsync"]) == ("yes", "everysec")
    assert store.socket.parent.stat().st_mode & 0o777 == 0o700
    assert str(tmp_path) not in str(store.socket)
    assert (tmp_path / "data" / "store").stat().st_mode & 0o777 == 0o700


def test_what_was_written_is_there_after_stop_and_start(store):
    store.start()
    write(store, "before")
    store.stop()
    assert not store.alive()
    assert not store.socket.exists()
    store.start()
    assert written(store) == b"before"


def test_a_second_owner_is_refused_by_name(store):
    store.start()
    second = Embedded(store.data_dir)
    with pytest.raises(EmbeddedError, match=f"already in use by process {os.getpid()}"):
        second.start()
    second.stop()
    assert store.alive()
    assert (store.data_dir / "server.json").exists()


def test_a_killed_server_is_noticed_and_starts_again_with_its_data(store):
    store.start()
    write(store, "acknowledged")
    first = store.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: not store.alive())
    store.start()
    assert store.pid != first
    assert written(store) == b"acknowledged"


def test_the_server_of_a_killed_owner_is_taken_over(store, killed_owner):
    store.start()
    assert store.adopted
    assert store.pid == killed_owner
    assert written(store) == b"by the first"
    store.stop()
    with pytest.raises(RedisError):
        run_id(store)


def test_a_taken_over_server_that_dies_is_noticed_and_replaced(store, killed_owner):
    store.start()
    os.kill(killed_owner, signal.SIGKILL)
    until(lambda: not store.alive())
    store.start()
    assert not store.adopted
    assert store.pid != killed_owner
    assert written(store) == b"by the first"


def test_an_owner_killed_before_it_recorded_the_run_id(store, killed_owner):
    record = store.data_dir / "server.json"
    record.write_bytes(record.read_bytes().split(b',"run_id"')[0] + b',"run_id":""}')
    store.start()
    assert store.adopted
    assert store.pid == killed_owner


def test_another_server_behind_the_recorded_socket_is_not_taken(store, killed_owner, monkeypatch):
    monkeypatch.setattr(embedded, "START_WAIT_S", 0.2)
    record = store.data_dir / "server.json"
    kept = record.read_bytes()
    record.write_bytes(kept.split(b'"run_id"')[0] + b'"run_id":"another"}')
    with pytest.raises(EmbeddedError, match=f"process {killed_owner}"):
        store.start()
    record.write_bytes(kept)
    store.start()
    assert store.pid == killed_owner


def test_a_server_that_cannot_start_says_why(store):
    store.start()
    write(store, "x")
    store.stop()
    (store.data_dir / "store" / "appendonlydir" / "appendonly.aof.manifest").write_text("junk\n")
    with pytest.raises(EmbeddedError, match=r"exited with status 1(.|\n)*manifest"):
        store.start()


def test_folders_that_cannot_be_used_are_refused(store, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedError, match="file"):
        Embedded(tmp_path / "file" / "data").start()
    store.socket.parent.mkdir(mode=0o777)
    store.socket.parent.chmod(0o777)
    with pytest.raises(EmbeddedError, match="private"):
        store.start()
    monkeypatch.setattr(embedded.tempfile, "tempdir", "/" + "t" * 120)
    long = Embedded(tmp_path / ("long" * 40))
    assert len(str(long.socket)) < embedded.SOCKET_PATH_LIMIT
