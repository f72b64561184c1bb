"""Referee of quality: the tables of `moca evaluate all` on the shared corpora."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.referees.judging import Row, flat

TOLERANCE = 1e-6  # relative above 1: the same filter gives the same figures


def measure(folder: Path) -> dict[str, Any]:
    """All numbers, by their paths in the command's JSON."""
    if not os.environ.get("MOCA_TEST_DATA"):
        raise SystemExit("quality: MOCA_TEST_DATA does not name the folder of the corpora")
    path = folder / "quality.json"
    command = [sys.executable, "-m", "service.commands.main", "evaluate", "all"]
    subprocess.run([*command, "--json", str(path)], check=True, stdout=subprocess.DEVNULL)
    figures = dict(flat(json.loads(path.read_text())))
    del figures["took_s"]
    return figures


def judge(now: dict[str, Any], frozen: dict[str, Any]) -> list[Row]:
    """A row for each number that differs, and one for all."""
    rows = []
    for name, old in frozen.items():
        new = now.get(name)
        if new is None:
            rows.append(Row(name, f"{old:.6g}", "-", False))
        elif abs(new - old) > TOLERANCE * max(1.0, abs(old)):
            rows.append(Row(name, f"{old:.6g}", f"{new:.6g}", False))
    same = len(frozen) - len(rows)
    return [Row("figures that are the same", str(len(frozen)), str(same), not rows), *rows]
