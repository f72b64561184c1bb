"""Supervision, of children and by a clock that are made up.

Real processes that are killed: tests/e2e/test_kill.py.
"""

import os
import re
import signal
import socket
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from service.problems import StartupError
from service.runtime import process, supervisor
from service.runtime.process import (
    EXIT_REFUSED,
    STOP_WAIT_S,
    WORKER_STOP_S,
    RestartBackoff,
    listen,
    url_of,
)
from service.runtime.supervisor import KILL_AFTER_S, TICK_S, Supervisor
from service.settings import Settings
from tests.waiting import Clock


def told(child):
    """What a child was told by its supervisor: to terminate, or killed."""
    calls = [] if child.process is None else [call[0] for call in child.process.method_calls]
    return [name for name in calls if name != "poll"]


class Stage:
    """A supervisor whose children are made up, on a clock that its waits move."""

    def __init__(self, monkeypatch, folder):
        self.clock, self.born, self.buried = Clock(), [], []
        self.steps, self.deaf = [], set()
        store = SimpleNamespace(url="unix:///s", mind=lambda: None, bury=self._bury)
        settings = Settings(workers=2, webhooks_file=folder / "hooks.toml", partitions=5)
        monkeypatch.setattr(supervisor, "StoreKeeper", lambda _: store)
        monkeypatch.setattr(supervisor.subprocess, "Popen", self._popen)
        timed = SimpleNamespace(monotonic=self.clock, sleep=self._sleep)
        monkeypatch.setattr(supervisor, "time", timed)
        monkeypatch.setattr(supervisor, "mark_process_dead", lambda *_: None)
        environ = {"MOCA_WORKERS": "9", "HOME": "/h"}
        self.found = Supervisor(settings, environ, webhook_timeout_s=7.0)
        self.found._life, self.found._metrics_dir = 0, str(folder)
        self.found._socket = SimpleNamespace(fileno=lambda: 1, close=lambda: None)

    def _bury(self, worker_id, verdict):
        self.buried.append((worker_id, verdict))

    def _popen(self, command, env, **_):
        born = Mock(command=command[3:], env=env, pid=0, returncode=None)
        born.poll.side_effect = lambda: born.returncode
        self.born.append(born)
        return born

    @property
    def children(self):
        return [self.found._api, *self.found._workers, *self.found._readers]

    def _sleep(self, seconds):
        """What happens meanwhile: a step of the script; then those end that were told to."""
        assert seconds == TICK_S
        if self.steps:
            self.steps.pop(0)()
            return
        self.clock.advance(seconds)
        for child in self.children:
            killed = "kill" in told(child)
            if killed or (told(child) and child.name not in self.deaf):
                child.process.returncode = -signal.SIGKILL if killed else 0

    def dies(self, name, status):
        child = next(child for child in self.children if child.name == name)
        return lambda: setattr(child.process, "returncode", status)

    def passes(self, seconds):
        return lambda: self.clock.advance(seconds)

    def run(self, *steps):
        self.steps = [*steps, lambda: self.found.stop("enough")]
        return self.found._supervise()

    def stop(self, note, *steps):
        """Start, and stop with `note` called at the end of each child."""
        self.run()
        self.steps, clean_up = [*steps], self.found._clean_up

        def noted(child):
            note(child)
            return clean_up(child)

        self.found._clean_up = noted
        self.found._stop_children()


@pytest.fixture
def stage(monkeypatch, tmp_path):
    return Stage(monkeypatch, tmp_path)


def test_children_get_the_settings_in_their_environment(stage):
    assert stage.run() == 0
    assert [child.command[0] for child in stage.born] == ["api", "worker", "worker", "webhooks"]
    api, one, two, _ = stage.born
    assert api.command[-2:] == ["--listen-fd", "1"]
    assert one.command[-2:] == ["--sharing", "2"]
    assert one.command[4] != two.command[4]
    given = {**api.env}
    assert (given["MOCA_WORKERS"], given["MOCA_PARTITIONS"], given["HOME"]) == ("2", "5", "/h")
    assert (given["MOCA_REDIS_URL"], given["MOCA_METRICS_PORT"]) == ("unix:///s", "0")
    assert os.path.isdir(given["PROMETHEUS_MULTIPROC_DIR"])


@pytest.mark.parametrize(("per_day", "rule"), [(None, "1 in 10,000 obs"), (0.5, r"0\.5 a day")])
def test_the_false_alarms_to_expect_are_logged_at_the_start(monkeypatch, caplog, per_day, rule):
    monkeypatch.setattr(supervisor, "answers", lambda _: True)
    started = Supervisor(Settings(false_alarms_per_day=per_day), {}, webhook_timeout_s=7.0)
    started.url = "http://a"
    with caplog.at_level("INFO"):
        started._announce()
    assert re.search(rule, caplog.text)


def test_a_child_that_keeps_dying_is_started_again_ever_more_slowly(stage):
    starts = []

    def look():
        starts.append(len(stage.born))

    dies = stage.dies("worker 1", 3)
    steps = [dies, stage.passes(0.09), look, stage.passes(0.011), look]
    steps += [dies, stage.passes(0.19), look, stage.passes(0.011), look]
    assert stage.run(*steps) == 0
    assert starts == [4, 5, 5, 6]
    ids = [born.command[4] for born in stage.born if born.command[0] == "worker"]
    assert len(set(ids)) == 4  # each start under another id
    assert [worker_id for worker_id, _ in stage.buried] == [ids[0], ids[2]]


def test_what_a_worker_died_of_is_told_to_the_store(stage):
    worker = stage.found._workers[0]
    statuses = [0, 1, 2, 3, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGSEGV, -signal.SIGABRT]
    for status in statuses:
        stage.found._start(worker)
        worker.process.returncode = status
        stage.found._mind(worker)
    stage.found._start(stage.found._api)
    stage.found._api.process.returncode = 3
    stage.found._mind(stage.found._api)
    verdicts = [verdict for _, verdict in stage.buried]
    assert verdicts == ["unknown"] * 2 + ["failed"] * 2 + ["unknown"] * 2 + ["failed"] * 2


def test_a_child_that_refuses_to_run_ends_the_service(stage):
    assert stage.run(stage.dies("worker 2", EXIT_REFUSED)) == EXIT_REFUSED


def test_a_stop_ends_the_api_then_the_workers_then_webhooks(stage):
    order = []

    def note(child):
        order.append((child.name, [each.name for each in stage.children if told(each)]))

    stage.stop(note)
    assert order == [
        ("api", ["api"]),
        ("worker 1", ["worker 1", "worker 2"]),
        ("worker 2", ["worker 2"]),
        ("webhooks", ["webhooks"]),
    ]


def test_what_does_not_end_is_killed_after_its_time(stage):
    deadline = stage.found.settings.request_deadline_s
    limits = {
        "api": deadline + STOP_WAIT_S,
        "worker 1": WORKER_STOP_S,
        "webhooks": 7.0 + STOP_WAIT_S,
    }
    stage.deaf, took = set(limits), {}
    began = stage.clock.now
    stage.stop(lambda child: took.setdefault(child.name, stage.clock.now - began))
    total = 0.0
    for name, limit in limits.items():
        total += limit + KILL_AFTER_S
        assert total < took[name] <= total + 4 * TICK_S, name
        total = took[name]


def test_a_second_signal_kills_what_ends_and_all_that_comes_later(stage):
    stage.deaf = {child.name for child in stage.children}
    began, orders = stage.clock.now, []
    stage.stop(lambda child: orders.append(told(child)), lambda: stage.found.stop("SIGTERM"))
    assert ["kill" in order for order in orders] == [True] * 4
    assert stage.clock.now - began < 1


# --- at the start -----------------------------------------------------------------------------


def test_backoff_doubles_up_to_its_limit_and_forgets():
    backoff = RestartBackoff()
    assert [backoff.next_s(float(n)) for n in range(4)] == [0.1, 0.2, 0.4, 0.8]
    assert [backoff.next_s(10.0) for _ in range(10)][-1] == 30.0
    assert backoff.next_s(10.0 + 60.0) == 30.0  # not calm for long enough
    assert backoff.next_s(70.0 + 60.001) == 0.1


def test_an_address_that_cannot_be_had_is_named(monkeypatch):
    monkeypatch.setattr(process, "PORT_WAIT_S", 0.05)
    with pytest.raises(StartupError, match=r"192\.0\.2\.1 port 0"):
        listen("192.0.2.1", 0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=f"port {port}"):
            listen("127.0.0.1", port)
    with listen("127.0.0.1", 0) as found:
        assert found.getsockname()[1] > 0
    urls = [url_of(host, 8000) for host in ("127.0.0.1", "0.0.0.0", "::", "example.org")]
    places = ["127.0.0.1", "127.0.0.1", "[::1]", "example.org"]
    assert urls == [f"http://{place}:8000" for place in places]
