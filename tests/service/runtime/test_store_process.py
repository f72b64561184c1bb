"""The number of partitions that `moca serve` works with: stated, of the store, or few."""

import pytest

from service.errors.base import StartupError
from service.runtime.store_process import StoreKeeper
from service.settings import Settings
from service.store.connection import fix_partitions


@pytest.fixture
def opened(redis_client, redis_url, tmp_path):
    def opened(**stated):
        keeper = StoreKeeper(Settings(redis_url=redis_url, data_dir=tmp_path, **stated))
        return keeper.open().partitions

    return opened


@pytest.mark.parametrize(("workers", "partitions"), [(1, 8), (2, 8), (4, 16), (32, 128)])
def test_a_new_store_has_few(opened, workers, partitions):
    assert opened(workers=workers) == partitions


def test_a_store_keeps_its_own(opened, redis_client):
    fix_partitions(redis_client, 64)
    assert opened() == 64
    assert opened(workers=32) == 64


def test_a_stated_number_is_that_of_a_new_store_and_no_other(opened):
    assert opened(partitions=5) == 5
    assert opened() == 5
    with pytest.raises(StartupError, match="created with 5 partitions, got 8"):
        opened(partitions=8)
