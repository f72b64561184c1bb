"""What hangs in a test fails with all that waits, and the rest of the run goes on."""

import os
import subprocess
import sys

import pytest

TESTS = """
import asyncio, signal, time
import pytest
from tests.limits import *

async def stubborn(until):
    while time.monotonic() < until:
        try:
            await asyncio.sleep(until - time.monotonic())
        except asyncio.CancelledError:
            pass

async def test_waits_for_ever():
    asyncio.create_task(asyncio.Event().wait(), name="left-behind")
    await asyncio.Event().wait()

async def test_ends_for_nobody():
    waits = asyncio.create_task(stubborn(time.monotonic() + 3600), name="the-stubborn")
    await waits

def test_comes_after():
    pass
"""


@pytest.mark.parametrize("name", ["test_waits_for_ever", "test_ends_for_nobody"])
def test_a_test_that_hangs_fails_with_its_tasks_and_the_next_one_runs(tmp_path, name):
    (tmp_path / "conftest.py").write_text("from tests.limits import *\n")
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\nmarkers = slow\n")
    command = [sys.executable, "-m", "pytest", "-n", "1", "--timeout", "2", "--timeout-method"]
    command += ["signal", "-p", "no:cacheprovider", "-k", f"{name} or comes_after", str(tmp_path)]
    for plugin in ("xdist.plugin", "pytest_timeout", "pytest_asyncio.plugin"):
        command += ["-p", plugin]
    environment = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "MOCA_TEST_LAST_S": "2",
        "PYTHONPATH": os.getcwd(),
    }
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "Timeout (>2.0s) from pytest-timeout" in said
    if name == "test_waits_for_ever":
        assert "1 failed, 1 passed" in said
        assert "left-behind" in said
    else:  # its loop cannot be closed: the process ends, and is replaced
        assert "2 failed, 1 passed" in said
        assert "the-stubborn" in said
        assert "crashed" in said
