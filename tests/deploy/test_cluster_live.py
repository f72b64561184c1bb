"""Following observations, unchanged, on a cluster of three masters."""

import pytest

from tests.service.api.conftest import *  # noqa: F403
from tests.service.api.test_live import *  # noqa: F403

# They look into, or cut the connections of, one server.
del test_many_who_follow_cost_one_look  # noqa: F821
del test_a_lost_connection_to_the_store_loses_nothing  # noqa: F821

pytestmark = pytest.mark.slow
