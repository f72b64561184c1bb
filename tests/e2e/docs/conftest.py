"""A running service for each module that tests what the documentation says."""

import pytest

from tests.e2e.asking import publish
from tests.e2e.deployment import served


@pytest.fixture(scope="module")
def service_url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    publish(folder / "models")
    with served(folder) as (_, url):
        yield url
