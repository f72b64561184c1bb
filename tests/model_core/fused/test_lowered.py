"""What the interpreter runs also becomes machine code of a GPU, which nothing here can run."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_a_kernel_becomes_machine_code_once_for_all_sizes_of_tables(tmp_path):
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("lowered.py"))],
        env={**kept, "PYTHONPATH": path, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "4"]  # with a summary and without
