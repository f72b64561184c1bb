"""Series that do not ship with the service; tests that need them are skipped without."""

import importlib.util
import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data():
    """The folder with tcpd.json and its like."""
    folder = os.environ.get("MOCA_TEST_DATA")
    if not folder or not (Path(folder) / "tcpd.json").exists():
        pytest.skip("MOCA_TEST_DATA is not set to a folder that holds tcpd.json")
    return Path(folder)


@pytest.fixture(scope="session")
def benchmark_score(data):
    """The benchmark's own scores, from the script beside the data."""
    script = data.parent / "bench" / "tcpd_score.py"
    if not script.exists():
        pytest.skip(f"there is no {script.name} in ../{script.parent.name} beside MOCA_TEST_DATA")
    spec = importlib.util.spec_from_file_location("tcpd_score", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.score
