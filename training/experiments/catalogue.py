"""Experiments, the paper's and others: their presets and data sources."""

from __future__ import annotations

import tomllib
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from training.config import OWN, Config, Options, checked, merged
from training.data.base import Splits
from training.errors import BadConfig, TrainingError

EXPERIMENTS = ("sinusoid", "bandit", "players", "rainbow", "miniimagenet", "regimes")


class Place(NamedTuple):
    """Folder of the data sets, and cache of what experiments derive from them."""

    data: Path | None
    cache: Path


def preset(experiment: str, name: str, *overrides: Options) -> Config:
    """An experiment's preset with overrides; raises BadConfig."""
    if experiment not in (*EXPERIMENTS, OWN):
        known = ", ".join(EXPERIMENTS)
        raise BadConfig(f"unknown experiment {experiment!r}: expected one of {known}")
    tables = _tables(experiment)
    base = tables.pop("all")
    if name not in tables:
        known = ", ".join(tables)
        raise BadConfig(f"unknown preset {name!r} of {experiment}: expected one of {known}")
    return config(merged(base, tables[name], *overrides))


def presets(experiment: str) -> list[str]:
    """Names of an experiment's presets."""
    return [name for name in _tables(experiment) if name != "all"]


def _tables(experiment: str) -> dict[str, Options]:
    """Settings by preset; `all` is the base of the others, and `quick` always exists."""
    text = (files("training.experiments") / "presets" / f"{experiment}.toml").read_text()
    return {"quick": {}, **tomllib.loads(text)}


def config(settings: Options) -> Config:
    """Validated settings; raises BadConfig."""
    return checked(Config, settings)


# Module of each experiment's data; those that read files of a folder, and those that cache.
_SOURCES = {
    "sinusoid": "sinusoid",
    "bandit": "wheel",
    "regimes": "regime_series",
    "players": "players",
    "rainbow": "rainbow",
    "miniimagenet": "miniimagenet",
}
_RECORDED = {"players", "rainbow", "miniimagenet"}


def splits(wanted: Config, place: Place) -> Splits:
    """Sources of an experiment's series; raises BadConfig or BadData."""
    experiment = wanted.experiment
    if experiment == OWN:
        from training.data import own

        return own.opened(wanted).splits
    arguments = dict(wanted.data)
    if experiment in _RECORDED:
        if place.data is None:
            raise BadConfig("--datasets is needed: the folder of the data sets")
        arguments["folder"] = place.data
    if experiment == "miniimagenet":
        arguments["cache"] = place.cache
    source = import_module(f"training.data.{_SOURCES[experiment]}")
    try:
        found: Splits = source.splits(**arguments)
    except TrainingError:
        raise
    except (TypeError, ValueError) as error:
        raise BadConfig(f"data: {error}") from error
    return found
