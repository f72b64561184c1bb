"""Grids of runs: one folder each, so that a sweep that stopped goes on where it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from training.config import Options, merged


class Cell(NamedTuple):
    """One run of a grid: its folder's name and what it sets."""

    name: str
    settings: Options


def cells(
    hazards: Sequence[float],
    modes: Sequence[str],
    rates: Sequence[float],
    seeds: Sequence[int],
    common: Options,
) -> Iterator[Cell]:
    """Every combination; what is not given stays as the preset has it, and out of the name."""
    axes: tuple[list[tuple[Options, str]], ...] = (
        [({"data": {"hazard": h}, "model": {"hazard": h}}, f"hazard-{h:g}") for h in hazards],
        [({"objective": {"mode": m}}, m) for m in modes],
        [({"optimiser": {"learning_rate": r}}, f"rate-{r:g}") for r in rates],
        [({"seed": s}, f"seed-{s}") for s in seeds],
        [({"name": common["name"]}, common["name"])] if common.get("name") else [],
    )
    unset: list[tuple[Options, str]] = [({}, "")]
    for chosen in product(*(axis or unset for axis in axes)):
        name = "_".join(part for _, part in chosen if part)
        yield Cell(name or "run", merged(common, *(setting for setting, _ in chosen)))


def folder(root: Path, experiment: str, preset: str, cell: Cell) -> Path:
    """Where a cell's run is kept."""
    return root / experiment / preset / cell.name
