"""Experiments by name: presets, sources, and ablations: the runs of one question."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.resources import files
from types import ModuleType
from typing import NamedTuple

from training.config import OWN, Config, Options, checked, merged
from training.data.files import Place
from training.data.windows import Splits
from training.errors import BadConfig, TrainingError

EXPERIMENTS = ("sinusoid", "bandit", "players", "rainbow", "miniimagenet", "regimes")


def preset(experiment: str, name: str, *overrides: Options) -> Config:
    """An experiment's preset with overrides; raises BadConfig."""
    if experiment not in (*EXPERIMENTS, OWN):
        expected = ", ".join(EXPERIMENTS)
        raise BadConfig(f"unknown experiment {experiment!r}: expected one of {expected}")
    text = (files("training") / "presets" / f"{experiment}.toml").read_text()
    tables = {"quick": {}, **tomllib.loads(text)}  # `quick` always exists
    base = tables.pop("all")
    if name not in tables:
        expected = ", ".join(tables)
        raise BadConfig(f"unknown preset {name!r} of {experiment}: expected one of {expected}")
    return checked(Config, merged(base, tables[name], *overrides))


def module(experiment: str) -> ModuleType:
    """What an experiment is: `splits`, its sources, and its test, `PROTOCOL`.

    Also `picture` of a run of MOCA, and `ABLATIONS`, where it has some.
    """
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


class Variation(NamedTuple):
    """One run of an ablation: its place on the axis, the method's name, and its settings."""

    setting: float
    method: str
    settings: Options

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return f"{self.method}_{self.setting:g}".replace(", ", "-").replace(" ", "-")


class Ablation(NamedTuple):
    """A question, and the runs that answer it.

    axis: name of the settings. supervision: shares of the true switches revealed in the test; each
    run is tested with all of them. mode: conditioning of the test; that of the training if None.
    """

    question: str
    axis: str
    variations: Sequence[Variation]
    supervision: Sequence[float] = (0.0,)
    mode: str | None = None


def ablation(name: str, experiment: str) -> Ablation:
    """An ablation of an experiment; raises BadConfig."""
    ablations: Mapping[str, Ablation] = getattr(module(experiment), "ABLATIONS", {})
    if not ablations:
        raise BadConfig(f"--ablation {name}: {experiment} has no ablations")
    if name not in ablations:
        expected = ", ".join(ablations)
        raise BadConfig(f"unknown ablation {name!r} of {experiment}: expected one of {expected}")
    return ablations[name]


def at(hazard: float, **sections: Options) -> Options:
    """Settings of data that switch at a hazard, which is the model's too, with others."""
    return merged({"data": {"hazard": hazard}, "model": {"hazard": hazard}}, sections)
