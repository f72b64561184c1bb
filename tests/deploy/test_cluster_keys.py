"""Keys and their rates, unchanged, on a cluster of three masters."""

import pytest

from tests.service.api.conftest import *  # noqa: F403
from tests.service.api.test_keys import *  # noqa: F403

pytestmark = pytest.mark.slow
