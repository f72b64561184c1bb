"""What every test of model_core runs under."""

import os
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def vectors() -> Path:
    """Folder of the shared reference vectors, named by MOCA_TEST_VECTORS."""
    folder = os.environ.get("MOCA_TEST_VECTORS")
    if not folder:
        pytest.skip("MOCA_TEST_VECTORS does not name the folder of the reference vectors")
    return Path(folder)
