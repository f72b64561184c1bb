"""The paper's ablations: small grids of an experiment, each about one question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from training.config import Options
from training.errors import BadConfig
from training.grid import Cell


class Variation(NamedTuple):
    """One run: its place on the axis, the method's name, and what it sets."""

    setting: str
    method: str
    settings: Options


class Ablation(NamedTuple):
    """A question, and the runs that answer it.

    axis: what the settings are. told: shares of the true switches that the test reveals; each run
    is tested with all of them. mode: what the test conditions on, that of the training unless
    given.
    """

    question: str
    axis: str
    variations: Sequence[Variation]
    told: Sequence[float] = (0.0,)
    mode: str | None = None


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
}

ABLATIONS = {"sinusoid": _SINUSOID, "players": _PLAYERS}


def ablation(name: str, experiment: str) -> Ablation:
    """One of an experiment's; raises BadConfig."""
    known = ABLATIONS.get(experiment, {})
    if name not in known:
        there = ", ".join(known) or "it has none"
        raise BadConfig(f"there is no ablation {name!r} of {experiment}: {there}")
    return known[name]


def cell(variation: Variation) -> Cell:
    """The run of a variation."""
    name = f"{variation.method}_{variation.setting}".replace(", ", "-").replace(" ", "-")
    return Cell(name, variation.settings)
