"""Workers that step by compiled kernels, as deployed ones do; `compiles=False` steps eagerly."""

from functools import partial

import pytest


@pytest.fixture
def make_bench(make_bench):
    return partial(make_bench, compiles=True)
