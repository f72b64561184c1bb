"""Experiments by name: presets, sources, and ablations: the runs of one question."""

from __future__ import annotations

import math
import tomllib
from importlib import import_module
from importlib.resources import files
from types import ModuleType
from typing import Any

from training.config import OWN, Config, Options, Section, checked, merged
from training.data.files import Place
from training.data.windows import Splits
from training.errors import BadConfig, TrainingError

EXPERIMENTS = ("sinusoid", "bandit", "players", "rainbow", "miniimagenet", "regimes")


def preset(experiment: str, name: str, *overrides: Options) -> Config:
    """An experiment's preset with overrides; raises BadConfig."""
    tables = {"quick": {}, **_presets(experiment)}  # `quick` always exists
    base = tables.pop("all")
    tables.pop("ablation", None)
    if name not in tables:
        expected = ", ".join(tables)
        raise BadConfig(f"unknown preset {name!r} of {experiment}: expected one of {expected}")
    return checked(Config, merged(base, tables[name], *overrides))


def _presets(experiment: str) -> dict[str, Any]:
    if experiment not in (*EXPERIMENTS, OWN):
        expected = ", ".join(EXPERIMENTS)
        raise BadConfig(f"unknown experiment {experiment!r}: expected one of {expected}")
    return tomllib.loads((files("training") / "presets" / f"{experiment}.toml").read_text())


def module(experiment: str) -> ModuleType:
    """What an experiment is: its sources, `splits`, its test, `PROTOCOL`, and `picture`."""
    return import_module(f"training.experiments.{'own' if experiment == OWN else experiment}")


def splits(config: Config, place: Place) -> Splits:
    """Sources of an experiment's series; raises BadConfig or BadData."""
    sources: Splits
    if config.experiment == OWN:
        sources = module(OWN).splits(config)
        return sources
    try:
        hazard = config.data.get("hazard", 0.0)
        if not 0 <= hazard <= 1:
            raise BadConfig(f"data: expected a hazard in [0, 1], got {hazard}")
        sources = module(config.experiment).splits(place, **config.data)
    except TrainingError:
        raise
    except (TypeError, ValueError) as error:
        raise BadConfig(f"data: {error}") from error
    return sources


class Ablation(Section):
    """A question, and the grid of runs that answers it: hazards, values of the axis, methods.

    axis: the setting that runs are compared by, with its label. supervision: shares of the true
    switches revealed in the test; each run is tested with all of them. mode: conditioning of the
    test; that of the training if None. methods: settings over the others, with a name.
    """

    question: str = ""
    axis: str = "data.hazard"
    label: str = "hazard"
    hazards: tuple[float, ...] = ()
    values: tuple[int | float, ...] = ()
    methods: tuple[Options, ...] = ()
    supervision: tuple[float, ...] = ()
    mode: str | None = None

    @property
    def size(self) -> int:
        """Number of runs."""
        return math.prod(len(axis) or 1 for axis in (self.hazards, self.values, self.methods))


def ablation(name: str, experiment: str) -> Ablation:
    """An ablation of an experiment; raises BadConfig."""
    ablations = _presets(experiment).get("ablation", {})
    if not ablations:
        raise BadConfig(f"--ablation {name}: {experiment} has no ablations")
    if name not in ablations:
        expected = ", ".join(ablations)
        raise BadConfig(f"unknown ablation {name!r} of {experiment}: expected one of {expected}")
    return checked(Ablation, ablations[name])


GRID = Ablation()  # no question of its own: methods by hazard
