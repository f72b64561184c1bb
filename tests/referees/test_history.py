"""A minute of composed faults on each store; `python -m tests.referees.history` runs longer."""

import shutil

import pytest

from tests.referees.history import TOPOLOGIES, storm


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server on this machine")
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_nothing_is_lost_doubled_or_contradicted(tmp_path, topology):
    result = storm(topology, 1, 60, tmp_path)
    assert result.answers > 1000
    if topology == "server":
        assert result.served_in_time, result
