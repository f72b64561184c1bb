"""Experiments, the paper's and others: where each finds its series, and the presets of its runs."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from training.config import Config, Section, merged
from training.data.base import Splits
from training.errors import BadConfig, TrainingError

PRESETS = ("quick", "paper")
EXPERIMENTS = ("sinusoid", "bandit", "players", "rainbow", "miniimagenet", "regimes")
OWN = "data"  # series of one's own, `training.own`

Options = dict[str, Any]
S = TypeVar("S", bound=Section)


class Place(NamedTuple):
    """Where an experiment finds data sets, and keeps what it makes of them."""

    data: Path | None
    cache: Path


def preset(experiment: str, name: str, *overrides: Options) -> Config:
    """Settings of an experiment's preset under one's own; raises BadConfig."""
    if experiment not in (*EXPERIMENTS, OWN):
        raise BadConfig(f"there is no experiment {experiment!r}: {', '.join(EXPERIMENTS)}")
    if name not in PRESETS:
        raise BadConfig(f"there is no preset {name!r}: {', '.join(PRESETS)}")
    text = (files("training") / "presets" / f"{experiment}.toml").read_text()
    found = tomllib.loads(text)
    return config(merged(found["all"], found.get(name, {}), *overrides))


def config(settings: Options) -> Config:
    """Checked settings; raises BadConfig, naming what is wrong."""
    return checked(Config, settings)


def checked(section: type[S], settings: Options) -> S:
    """Checked settings of one section; raises BadConfig, naming what is wrong."""
    try:
        return section.model_validate(settings)
    except ValidationError as error:
        where = "; ".join(
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()
        )
        raise BadConfig(where) from error


def splits(wanted: Config, place: Place) -> Splits:
    """Sources of an experiment's series; raises BadConfig or BadData."""
    options = dict(wanted.data)
    if wanted.experiment == OWN:
        from training import own

        return own.opened(wanted).splits
    try:
        return _SOURCES[wanted.experiment](options, place)
    except TrainingError:
        raise
    except (TypeError, ValueError) as error:
        raise BadConfig(f"data: {error}") from error


def _sinusoid(options: Options, place: Place) -> Splits:
    from training.data.sinusoid import splits

    return splits(**options)


def _bandit(options: Options, place: Place) -> Splits:
    from training.data.wheel import splits

    return splits(**options)


def _regimes(options: Options, place: Place) -> Splits:
    from training.data.regime_series import splits

    return splits(**options)


def _players(options: Options, place: Place) -> Splits:
    from training.data.players import splits

    return splits(_folder(place), **options)


def _rainbow(options: Options, place: Place) -> Splits:
    from training.data.rainbow import splits

    return splits(_folder(place), **options)


def _miniimagenet(options: Options, place: Place) -> Splits:
    from training.data.miniimagenet import splits

    return splits(_folder(place), cache=place.cache, **options)


def _folder(place: Place) -> Path:
    if place.data is None:
        raise BadConfig("--datasets (or MOCA_DATASETS) is needed: the folder of the data sets")
    return place.data


_SOURCES: dict[str, Callable[[Options, Place], Splits]] = {
    "sinusoid": _sinusoid,
    "bandit": _bandit,
    "regimes": _regimes,
    "players": _players,
    "rainbow": _rainbow,
    "miniimagenet": _miniimagenet,
}
