"""A minute of composed faults; `python -m tests.e2e.storm` runs longer ones."""

import shutil

import pytest

from tests.e2e.storm import HEALED_WITHIN_S, LONGEST_WAIT_S, storm


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server on this machine")
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_lost_doubled_or_contradicted(tmp_path, seed):
    result = storm(seed, 60, tmp_path)
    assert result.answers > 1000
    assert result.longest_wait_s < LONGEST_WAIT_S
    assert result.healed_s < HEALED_WITHIN_S
