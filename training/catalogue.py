"""Experiments: their presets and sources, grids of runs, and ablations: grids of one question."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.resources import files
from itertools import product
from typing import Any, NamedTuple

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
    tables = _tables(experiment)
    base = tables.pop("all")
    if name not in tables:
        expected = ", ".join(tables)
        raise BadConfig(f"unknown preset {name!r} of {experiment}: expected one of {expected}")
    return checked(Config, merged(base, tables[name], *overrides))


def _tables(experiment: str) -> dict[str, Options]:
    """Settings by preset; `all` is the base of the others, and `quick` always exists."""
    text = (files("training") / "presets" / f"{experiment}.toml").read_text()
    return {"quick": {}, **tomllib.loads(text)}


def splits(config: Config, place: Place) -> Splits:
    """Sources of an experiment's series; raises BadConfig or BadData."""
    sources: Splits
    if config.experiment == OWN:
        sources = import_module("training.experiments.own").opened(config).splits
        return sources
    experiment = import_module(f"training.experiments.{config.experiment}")
    try:
        sources = experiment.splits(place, **config.data)
    except TrainingError:
        raise
    except (TypeError, ValueError) as error:
        raise BadConfig(f"data: {error}") from error
    return sources


class Cell(NamedTuple):
    """One run of a grid: the name of its folder, and its settings."""

    name: str
    settings: Options


class Variation(NamedTuple):
    """One run of an ablation: its place on the axis, the method's name, and its settings."""

    setting: str
    method: str
    settings: Options

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return f"{self.method}_{self.setting}".replace(", ", "-").replace(" ", "-")


class Axes(NamedTuple):
    """Axes of a grid; an empty one keeps the preset's value."""

    hazards: Sequence[float] = ()
    modes: Sequence[str] = ()
    rates: Sequence[float] = ()
    seeds: Sequence[int] = ()


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


def cells(wanted: Axes, common: Options) -> Iterator[Cell]:
    """Every combination; an empty axis keeps the preset's value and adds nothing to the name."""
    name = common.get("name")
    axes: tuple[list[tuple[Options, str]], ...] = (
        [
            ({"data": {"hazard": h}, "model": {"hazard": h}}, f"hazard-{h:g}")
            for h in wanted.hazards
        ],
        [({"objective": {"mode": m}}, m) for m in wanted.modes],
        [({"optimiser": {"learning_rate": r}}, f"rate-{r:g}") for r in wanted.rates],
        [({"seed": s}, f"seed-{s}") for s in wanted.seeds],
        [({"name": name}, name)] if name else [],
    )
    unset: list[tuple[Options, str]] = [({}, "")]
    for chosen in product(*(axis or unset for axis in axes)):
        parts = [part for _, part in chosen if part]
        yield Cell("_".join(parts) or "run", merged(common, *(setting for setting, _ in chosen)))


def ablation(name: str, experiment: str) -> Ablation:
    """An ablation of an experiment; raises BadConfig."""
    ablations = ABLATIONS.get(experiment, {})
    if not ablations:
        raise BadConfig(f"--ablation {name}: {experiment} has no ablations")
    if name not in ablations:
        expected = ", ".join(ablations)
        raise BadConfig(f"unknown ablation {name!r} of {experiment}: expected one of {expected}")
    return ablations[name]


def _at(hazard: float, **settings: Any) -> Options:
    return {"data": {"hazard": hazard}, "model": {"hazard": hazard}, **settings}


def _with(hazard: float, **model: Any) -> Options:
    return {"data": {"hazard": hazard}, "model": {"hazard": hazard, **model}}


RATES = (0.0, 0.25, 0.5, 0.75, 1.0)


_SINUSOID: Mapping[str, Ablation] = {
    "supervision": Ablation(
        "What is it worth to be told a share of the switches (paper, app. D.4)?",
        "share of switches told in training",
        [Variation(f"{r:g}", "MOCA", _at(0.2, objective={"supervision": r})) for r in RATES],
        RATES,
    ),
    "prior-weight": Ablation(
        "Does a small weight of the prior help an oracle's training (paper, app. D.3)?",
        "weight of the prior in training",
        [
            Variation(f"{w:g}", "oracle", _at(0.1, objective={"mode": "oracle", "prior_weight": w}))
            for w in (0.0, 1e-16, 1e-8, 1e-4)
        ]
        + [Variation("0", "MOCA", _at(0.1))],
        mode="oracle",
    ),
    "length": Ablation(
        "How long must training windows be (paper, app. D.6)?",
        "length of training windows",
        [
            Variation(f"{t}", "MOCA", _at(0.01, optimiser={"length": t}))
            for t in (10, 20, 50, 100, 200)
        ],
    ),
    "noise": Ablation(
        "Is it better to learn the noise variance than to know it (paper, app. C)?",
        "hazard",
        [Variation(f"{h:g}", "learned", _with(h)) for h in (0.01, 0.1)]
        + [
            Variation(f"{h:g}", "fixed, true", _with(h, noise_variance=0.05, learn_noise=False))
            for h in (0.01, 0.1)
        ],
    ),
    "model": Ablation(
        "ALPaCA or an LSTM (paper, sec. 6)?",
        "hazard",
        [Variation("0.1", "ALPaCA", _at(0.1)), Variation("0.1", "LSTM", _with(0.1, kind="lstm"))],
    ),
    "prior-scale": Ablation(
        "Which first scale of the prior trains best?",
        "first scale of the prior",
        [
            Variation(f"{s:g}", "MOCA", _with(0.1, prior_scale=s))
            for s in (0.03, 0.1, 0.18, 0.3, 1.0)
        ],
    ),
    "priors": Ablation(
        "Is a mixture prior better where four tasks recur (hazard 0.05)?",
        "typical regimes",
        [
            Variation(
                f"{m}",
                "MOCA",
                {"data": {"hazard": 0.05, "tasks": 4}, "model": {"hazard": 0.05, "priors": m}},
            )
            for m in (1, 4, 8)
        ],
    ),
}
_PLAYERS: Mapping[str, Ablation] = {
    "model": Ablation(
        "ALPaCA or an LSTM (paper, sec. 6)?",
        "first hazard",
        [
            Variation("0.05", "ALPaCA", {"model": {"kind": "alpaca"}}),
            Variation("0.05", "LSTM", {}),
        ],
    ),
    "priors": Ablation(
        "Is a mixture prior better?",
        "typical regimes",
        [
            Variation(f"{m}", "MOCA", {"model": {"kind": "alpaca", "lags": 5, "priors": m}})
            for m in (1, 4)
        ],
    ),
}
ABLATIONS = {"sinusoid": _SINUSOID, "players": _PLAYERS}
