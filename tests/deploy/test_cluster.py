"""The service's own end-to-end and kill tests, unchanged, on a cluster of three masters."""

import asyncio

import pytest

from tests.e2e.deployment import Load, check_as_uninterrupted, create_streams, series
from tests.e2e.test_backup import test_a_restore_that_is_killed_is_run_again  # noqa: F401
from tests.e2e.test_calls import *  # noqa: F403
from tests.e2e.test_events import *  # noqa: F403
from tests.e2e.test_kill import *  # noqa: F403
from tests.e2e.test_kill import _meanwhile

# About the embedded store, or two deployments beside each other.
del test_the_store_survives_a_kill_of_everything_but_itself  # noqa: F821
del test_a_stream_moves_to_another_deployment_in_the_middle_of_a_series  # noqa: F821

pytestmark = pytest.mark.slow


def test_a_master_is_killed_and_started_again(separate, processes, shared_cluster):
    """What it had accepted is in its file; the others go on meanwhile."""
    _, nodes = shared_cluster
    create_streams(separate, "load", 30)
    load = Load(separate, series(30, 30), 150, retry=True)
    port = next(iter(nodes.running))
    kill, again = (1.0, lambda: nodes.kill(port)), (3.0, lambda: nodes.again(port))
    asyncio.run(_meanwhile(load, kill, again))
    assert max(load.seconds) > 0.5, "nobody noticed"
    check_as_uninterrupted(separate, load)
