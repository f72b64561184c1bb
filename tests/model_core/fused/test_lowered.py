"""What the interpreter runs also becomes machine code of a GPU, which nothing here can run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("model", "kernels"),
    [("gaussian", 2), ("alpaca", 4), pytest.param("alpaca-known", 4, marks=pytest.mark.slow)],
)
def test_kernels_become_machine_code_once_for_all_sizes_of_tables(model, kernels, tmp_path):
    """A step with a summary and one without; of ALPaCA also what goes before it and after it."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("lowered.py")), model],
        env={**kept, "PYTHONPATH": path, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    starts = 4 if kernels == 2 else 12
    assert done.stdout.split() == [str(kernels), str(starts)]
