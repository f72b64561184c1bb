"""A kill at each step: a few in `make test`, more with the slow tests; all by the command."""

import pytest

from tests.referees.each_step import AFTER, TARGETS, Point, hold_each, refereeing


@pytest.mark.redis
@pytest.mark.slow
def test_kills_at_calls_of_everyone_leave_no_trace():
    with refereeing() as referee:
        kills = {target: hold_each(referee, target, stride=23, first=2) for target in TARGETS}
    print(kills)
    assert min(kills.values()) >= 1
    assert sum(kills.values()) >= 12


@pytest.mark.redis
def test_a_kill_of_a_worker_leaves_no_trace():
    with refereeing() as referee:
        assert referee.hold(Point("worker", 30, AFTER))
