"""What hangs in a test fails with all that waits, and the rest of the run goes on."""

import os
import subprocess
import sys

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


def test_tests_that_hang_fail_with_their_tasks_and_the_next_one_runs(tmp_path):
    (tmp_path / "conftest.py").write_text("from tests.limits import *\n")
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\nmarkers = slow\n")
    command = [sys.executable, "-m", "pytest", "-n", "1", "--timeout", "2", "--timeout-method"]
    command += ["signal", "-p", "no:cacheprovider", str(tmp_path)]
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
    assert "left-behind" in said
    # The loop of the second cannot be closed: its process ends, and is replaced for the third.
    assert "the-stubborn" in said
    assert "crashed" in said
    assert "1 passed" in said
    for name in ("test_waits_for_ever", "test_ends_for_nobody"):
        assert f"FAILED test_some.py::{name}" in said
