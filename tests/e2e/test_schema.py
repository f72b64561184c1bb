"""Requests made from the OpenAPI document: no fault, nothing undocumented, no answer unlike it.

All of schemathesis's checks. Answers that have no end are left to their own tests.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EXAMPLES = 2000


def run(url, tmp_path, examples):
    """Run it; returns how many requests were made."""
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        *("--config-file", str(HERE / "schemathesis.toml"), "run", f"{url}/openapi.json"),
        *("--max-examples", str(examples), "--phases", "examples,coverage,fuzzing"),
        *("--exclude-path-regex", "/(events|live)$", "--seed", "1"),
        *("--continue-on-failure", "--no-color"),
    ]
    environment = {
        **os.environ,
        "SCHEMATHESIS_HOOKS": "tests.e2e.schemathesis_hooks",
        "PYTHONPATH": str(HERE.parents[1]),
    }
    found = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1500
    )
    assert found.returncode == 0, found.stdout[-20_000:]
    (made,) = re.findall(r"([0-9,]+) generated", found.stdout)
    return int(made.replace(",", ""))


def test_every_call_in_a_few_ways(serve, tmp_path):
    assert run(serve(), tmp_path, 1) > 500


@pytest.mark.slow
def test_every_call_in_two_thousand_ways(serve, tmp_path):
    assert run(serve(), tmp_path, 60) > EXAMPLES
