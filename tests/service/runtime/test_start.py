"""Processes that cannot start: one line says why, without a traceback."""

import os
import re
import socket
import subprocess
import sys
import time

import pytest
import redis

from service.store.connection import patiently
from tests.ports import free_port

REFUSED = "redis://127.0.0.1:1"


def run(*arguments):
    command = [sys.executable, "-m", "service.commands.main", *arguments]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MOCA_")}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ)


def test_a_store_that_starts_later_is_waited_for(caplog):
    answers = iter([redis.ConnectionError("refused")] * 3 + [redis.BusyLoadingError("loading"), 7])

    def ask():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert patiently(ask) == 7
    said = [each.getMessage() for each in caplog.records if each.name == "service.store.connection"]
    assert said == [  # each reason once
        "waiting for the store: refused",
        "waiting for the store: loading",
    ]


def test_a_store_that_stays_away_is_given_up():
    def ask():
        raise redis.ConnectionError("refused")

    began = time.monotonic()
    with pytest.raises(redis.ConnectionError):
        patiently(ask, longest_s=0.1)
    assert time.monotonic() - began < 5


@pytest.mark.slow
@pytest.mark.parametrize("command", ["api", "worker"])
def test_a_process_without_its_store_ends_with_one_line(command):
    port = ["--port", "0"] if command == "api" else []
    done = run(command, "--redis-url", REFUSED, *port)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert re.search("^moca: the store cannot be reached: .*refused", done.stderr, re.M)
    assert done.stderr.count("waiting for the store") == 1


def test_an_api_that_waits_for_its_store_refuses_connections():
    """Its clients then try another one, in place of waiting in its queue for as long."""
    port = str(free_port())
    command = [
        sys.executable,
        "-m",
        "service.commands.main",
        "api",
        "--redis-url",
        REFUSED,
        "--port",
        port,
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as api:
        try:
            while "waiting for the store" not in api.stderr.readline():
                assert api.poll() is None
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", int(port)), timeout=5)
        finally:
            api.kill()


def test_a_port_of_metrics_that_is_taken_is_named(valkey_url):
    with socket.create_server(("", 0)) as taken:
        number = taken.getsockname()[1]
        done = run("worker", "--redis-url", valkey_url, "--metrics-port", str(number))
    assert done.returncode == 78
    assert "Traceback" not in done.stderr
    assert f"moca: cannot listen on --metrics-port {number}" in done.stderr


def test_a_backup_that_cannot_be_written_says_where(valkey_url, tmp_path):
    with redis.Redis.from_url(valkey_url) as client:
        client.hset("moca:config", "partitions", 4)
    done = run("backup", str(tmp_path / "none" / "all.moca"), "--redis-url", valkey_url)
    assert done.returncode == 1
    assert done.stderr.strip() == f"moca: {tmp_path / 'none'}: No such file or directory"
