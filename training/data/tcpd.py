"""The Turing Change Point Dataset: series whose change points several people marked."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NamedTuple

FILE = "tcpd.json"


class Series(NamedTuple):
    """One series: values [n_obs][n_dim], nan where missing; change points of each annotator."""

    name: str
    values: list[list[float]]
    annotations: dict[str, list[int]]


def load(folder: Path) -> list[Series]:
    """Every series of `tcpd.json`, by name.

    The file holds `{name: {"values": [n_dim][n_obs], "annotations": {annotator: [position]}}}`;
    positions count from 0.
    """
    found = json.loads((folder / FILE).read_text())
    return [
        Series(name, _rows(found[name]["values"]), found[name]["annotations"])
        for name in sorted(found)
    ]


def _rows(columns: list[list[float | None]]) -> list[list[float]]:
    rows = zip(*columns, strict=True)
    return [[math.nan if value is None else float(value) for value in row] for row in rows]
