"""Referee of speed: `moca bench serve` and `moca bench step`, as ratios within one run.

Only shown: another machine, or a busy one, has other ratios.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.referees.judging import Row, shown

PARTS = ("worker", "api", "store")


def serve(folder: Path) -> dict[str, Any]:
    """Throughput over the echo's, CPU of a request by process, lists, a replay."""
    results = _bench(folder, "serve", "--model", "averaged,gaussian", "--seconds", "12")
    ratios = {}
    for result in results["results"]:
        model, echo_us = result["model"], result["echo"]["us"]["echo"]["median"]
        ratios[f"{model}: throughput over the echo's"] = result["ratio"]["median"]
        for part in PARTS:
            us = result["service"]["us"][part]["median"]
            ratios[f"{model}: CPU of a request over the echo's, {part}"] = us / echo_us
        for lists in result["lists"]:
            for part in PARTS:
                us = lists["us"][part]["median"]
                name = f"{model}: CPU of an observation in lists of {lists['of']}, {part}"
                ratios[f"{name}, over an echo's"] = us / echo_us
        ratios[f"{model}: replay, s"] = result["replay"]["seconds"]["median"]
    return ratios


def step(folder: Path) -> dict[str, Any]:
    """A step beside those of other packages, and late beside early."""
    result = _bench(folder, "step", "--model", "gaussian,averaged", "--rounds", "5")["results"]
    ratios = {
        f"{each['of']} over {each['over']}, {each['streams']} streams": each["median"]
        for each in (*result["lives"], *result["peers"])
    }
    us = {
        (each["by"], each["name"], each["streams"], each["summary"]): each["median"]
        for each in result["steps"]
    }
    for (by, name, streams, summary), compiled_us in us.items():
        if by == "compiled":
            answered = " with its answer" if summary else ""
            title = f"{name}: eager over compiled step{answered}, {streams} streams"
            ratios[title] = us["eager", name, streams, summary] / compiled_us
    return ratios


def judge(now: dict[str, Any], frozen: dict[str, Any]) -> list[Row]:
    return shown(now, frozen)


def _bench(folder: Path, *arguments: str) -> Any:
    path = folder / "bench.json"
    command = [sys.executable, "-m", "service.commands.main", "bench", *arguments]
    subprocess.run([*command, "--json", str(path)], check=True, stdout=subprocess.DEVNULL)
    return json.loads(path.read_text())
