"""Events, unchanged, on a cluster of three masters."""

import pytest

from tests.service.api.conftest import *  # noqa: F403
from tests.service.api.test_events import *  # noqa: F403

# It cuts the connections of one server.
del test_a_lost_connection_to_the_store_loses_no_event  # noqa: F821

pytestmark = pytest.mark.slow
