"""Overload and a loud key, for seconds: what must not be, however busy the machine is."""

import pytest

from tests.referees.overload import LOUD, loud_key, overload


@pytest.mark.slow
def test_under_overload_requests_are_answered_or_refused_and_none_is_lost():
    measured = overload(seconds=6, times=3)
    print(measured)
    assert measured.wrong() == []
    assert measured.accepted > 0
    assert measured.refused > measured.accepted / 10
    assert measured.recovery_s < 30
    assert measured.probed_p99_s > 0
    assert measured.probed_refused_p99_s > 0


@pytest.mark.slow
def test_a_key_over_its_rate_is_refused_and_others_are_not():
    measured = loud_key(seconds=4, times=10)
    print(measured)
    assert measured.wrong() == []
    assert measured.accepted <= 5 * LOUD + 1
    assert measured.refused > measured.accepted
