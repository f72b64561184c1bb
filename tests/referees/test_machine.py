"""A few runs of the state machine in `make test`; 300 of 60 actions with the slow tests."""

import shutil

import pytest

from tests.referees.machine import ACTIONS, ServiceMachine, hold, serving

pytestmark = [
    pytest.mark.redis,
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server here"),
]
RUNS = {"server": 180, "cluster": 80, "sentinel": 40}
SEED = 1


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """On one server, for all runs of this file."""
    with serving("server", tmp_path_factory.mktemp("machine")) as service:
        yield service


def test_a_few_runs_agree_with_the_model(service):
    hold(service, runs=3, actions=20, seed=SEED)
    assert service.counts["answers compared"] > 20


def test_what_others_post_is_found(service):
    """In the next answer, and in the copy of the log where there is none."""
    machine = type("Machine", (ServiceMachine,), {"service": service})()
    machine.post(slot=0, api=0, count=1, level=0, wait=True)
    path = f"/v1/streams/{machine._streams[0].name}/observations"
    service.ask(0, "POST", path, {200}, json={"y": 1.0}, headers={"Idempotency-Key": "other"})
    with pytest.raises(AssertionError, match="at 2, expected 1"):
        machine.post(slot=0, api=0, count=1, level=0, wait=True)
    other = machine._streams[1].name
    service.ask(1, "POST", f"/v1/streams/{other}/observations", {200}, json=[{"y": 1.0}])
    found = service.log.accepted([machine._streams[0].name, other])
    assert len(found[machine._streams[0].name]) == 3
    assert found[other] == [1.0]


def test_the_first_failure_is_reported(service):
    """Not that of the comparisons at the end, which follows from it."""

    def end(rule):
        machine = type("Machine", (ServiceMachine,), {"service": service})()
        machine._streams[0].accepted.append(0.5)
        try:
            rule()
        finally:
            machine.teardown()

    with pytest.raises(AssertionError, match=r"\[\] in the log, expected \[0.5\]"):
        end(lambda: None)
    with pytest.raises(KeyError):
        end({}.popitem)


@pytest.mark.slow
@pytest.mark.parametrize("topology", RUNS)
def test_runs_agree_with_the_model(tmp_path, topology):
    with serving(topology, tmp_path) as service:
        hold(service, RUNS[topology], ACTIONS, SEED)
        print(dict(service.counts))
        assert service.counts["runs"] >= RUNS[topology]
