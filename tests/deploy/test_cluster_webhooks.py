"""Webhooks, unchanged, on a cluster of three masters."""

import pytest

from tests.service.webhooks.conftest import delivering, receiver, webhooks, writer  # noqa: F401
from tests.service.webhooks.test_delivery import *  # noqa: F403

pytestmark = pytest.mark.slow
