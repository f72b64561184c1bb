"""`moca train --data`: from a user's own series to runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from training import experiments, grid, jobs
from training.config import OWN, Options, merged
from training.data import own
from training.data.windows import Series
from training.errors import BadConfig
from training.jobs import Task, Wanted
from training.runs import Run

NAME = re.compile(r"[^/\\.][^/\\]*")  # part of a folder's name
LAGS = 5  # labels before, where there are no inputs and nothing else is said


class Axes(NamedTuple):
    """What makes several runs."""

    modes: Sequence[str] = ()
    rates: Sequence[float] = ()
    seeds: Sequence[int] = ()


def train(wanted: Wanted, settings: Options, axes: Axes, say: Callable[[str], None]) -> list[Run]:
    """Train on `settings["data"]["path"]`; what is left out as too short is said before.

    Runs are kept in RUNS/data/PRESET/, `wanted.preset` being a name. Raises TrainingError.
    """
    if not NAME.fullmatch(wanted.preset):
        raise BadConfig(f"--name: expected part of a folder's name, got {wanted.preset!r}")
    source = own.source(settings)
    found = own.read(source, own.has_classes(experiments.preset(OWN, "quick", settings)))
    settings = merged(
        settings, {"data": {"digest": own.digest(source.path)}}, _inputs(settings, found)
    )
    tasks = []
    for cell in grid.cells((), axes.modes, axes.rates, axes.seeds, settings):
        config = experiments.preset(OWN, "quick", cell.settings)
        run = Run(grid.folder(wanted.runs, OWN, wanted.preset, cell))
        tasks.append(Task(cell.name, config, run))
    # The grid's axes do not touch the data; but an oracle's are checked for switches.
    *_, data = [own.split(source, found, task.config) for task in tasks]
    own.check_scaling(data.scaling, tasks[0].config)
    for line in data.left_out:
        say(f"left out: {line}")
    return jobs.fit(wanted, tasks, lambda _: (data.splits, data.scaling))


def _inputs(settings: Options, found: Sequence[Series]) -> Options:
    """Lags for a model that would have no inputs; BadConfig where none can be had."""
    wanted = experiments.preset(OWN, "quick", settings).model
    has_x = found[0].x is not None
    if wanted.kind == "pcoc":
        if not has_x:
            raise BadConfig("a pcoc model needs input columns (x, or x1, x2, ...), there are none")
        if wanted.lags:
            raise BadConfig("a pcoc model takes no lags: its labels are classes")
        return {}
    if has_x or "lags" in settings.get("model", {}):
        if not (has_x or wanted.lags):
            raise BadConfig("--lags 0: without input columns there is nothing to predict from")
        return {}
    return {"model": {"lags": LAGS}}
