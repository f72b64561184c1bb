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
EXAMPLES = 60  # of each call: more than 2,000 requests


@pytest.mark.slow
def test_every_call_in_two_thousand_ways(serve, tmp_path):
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        *("--config-file", str(HERE / "schemathesis.toml"), "run", f"{serve()}/openapi.json"),
        *("--max-examples", str(EXAMPLES), "--phases", "examples,coverage,fuzzing"),
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
    assert int(made.replace(",", "")) > 2000
