"""Referee of speed: `moca bench serve` and `moca bench step`, as ratios within one run.

Only shown: another machine, or a busy one, has other ratios.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.referees.judging import Row, shown

SINGLE = "single observations"
STEP = "{} streams at once: us"


def serve(folder: Path) -> dict[str, Any]:
    """Throughput over the echo's, CPU of a request by process, lists, a replay."""
    results = _bench(folder, "serve", "--model", "averaged,gaussian", "--seconds", "12")
    ratios = {}
    for model, measures in results.items():
        medians = {name: statistics.median(rounds) for name, rounds in measures.items()}
        echo_us = medians["echo: CPU us, echo"]
        for name, value in medians.items():
            what, _, measure = name.partition(": ")
            part = measure.removeprefix("CPU us, ")
            if part in ("worker", "api", "store"):
                ratios[f"{model}: CPU of {what}, {part}, over an echo's"] = value / echo_us
            elif what.startswith("replay") or name == f"{SINGLE}: per s, over the echo's":
                ratios[f"{model}: {name}"] = value
    return ratios


def step(folder: Path) -> dict[str, Any]:
    """A step of many streams over those of one, and late over early."""
    results = _bench(folder, "step", "--model", "gaussian,averaged", "--rounds", "5")
    ratios = {}
    for model, measures in results.items():
        one_us = statistics.median(measures[STEP.format(1)])
        for name, rounds in measures.items():
            over = one_us if name.endswith(": us") else 1.0
            ratios[f"{model}: {name.removesuffix(': us')}"] = statistics.median(rounds) / over
    return ratios


def judge(now: dict[str, Any], frozen: dict[str, Any]) -> list[Row]:
    return shown(now, frozen)


def _bench(folder: Path, *arguments: str) -> Any:
    path = folder / "bench.json"
    command = [sys.executable, "-m", "service.commands.main", "bench", *arguments]
    subprocess.run([*command, "--json", str(path)], check=True, stdout=subprocess.DEVNULL)
    return json.loads(path.read_text())["results"]
