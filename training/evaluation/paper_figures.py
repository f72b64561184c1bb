"""Figures of the paper's experiments, drawn from trained runs; each with the name of its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from model_core import segments
from model_core.segments import Changes, Sequences
from training.data import wheel
from training.data.base import Batch, Splits
from training.data.players import SCALE_FT, held
from training.data.sinusoid import INPUTS
from training.errors import BadData
from training.evaluation.bandit import (
    SEED,
    STRATEGIES,
    Moca,
    Results,
    Runs,
    compared,
    follow,
    model,
    world,
)
from training.evaluation.filter_trace import density, trace
from training.evaluation.paper import SUPERVISED, UNSUPERVISED, Evaluated, Study, hazard_chart
from training.evaluation.trained import DTYPE, PROTOCOLS, Trained, load, sequences
from training.experiments.catalogue import Place
from training.figures import belief as beliefs
from training.figures import calibration
from training.figures.drawing import Chart
from training.figures.performance import Curve, curve, grouped, over_time, validation
from training.meta_training.objective import class_log_probabilities, start
from training.statistics import estimate, reliability

Charts = list[tuple[str, Chart]]

STEPS = 150  # of a sequence whose belief is drawn
TIMES = (40, 60, 90, 120, 140)  # of the sinusoid's densities
GRID = 61
HEIGHT = 6.0
CALIBRATED = 25  # test sequences whose PITs are drawn
CLASSIFIED = 20  # test sequences of a classifier's calibration
PATH_LENGTH = 200  # of a drawn trajectory (paper, fig. 4)
# Of the bandit: hazard, step of the disc and length of the paper's figure.
PAPER_HAZARD = "0.02"
PAPER_STEP = 135
PAPER_LENGTH = 200
SAMPLES = 600
EVERY = 5  # steps between points of a regret curve


def sinusoid(evaluated: Evaluated) -> Charts:
    """MOCA's belief, calibration and validation at each hazard; crossed supervision."""
    charts: Charts = []
    for setting, run in _mocas(evaluated):
        splits = evaluated.splits[setting]
        charts += [
            (f"belief-{setting}", _predicted(run, splits)),
            (f"calibration-{setting}", _calibrated(run, splits)),
            (f"losses-{setting}", _validated(run)),
        ]
    return charts + _crossed(evaluated)


def players(evaluated: Evaluated) -> Charts:
    """A trajectory in segments, calibration, and validation of every method."""
    histories = {
        method: [
            record
            for (_, name), run in evaluated.chosen.items()
            if name == method
            for record in run.result["history"]
        ]
        for method in evaluated.comparison.methods()
    }
    charts = [("methods", validation(histories, "Validation"))]
    for setting, run in _mocas(evaluated):
        charts += [
            ("trajectory", _trajectory(run, evaluated)),
            ("calibration", _calibrated(run, evaluated.splits[setting])),
            ("losses", _validated(run)),
        ]
    return charts


def images(evaluated: Evaluated) -> Charts:
    """MOCA's belief and calibration at each hazard, and validation of every method."""
    charts: Charts = []
    for setting, run in _mocas(evaluated):
        splits = evaluated.splits[setting]
        histories = {
            method: other.result["history"]
            for (at, method), other in evaluated.chosen.items()
            if at == setting
        }
        panels = (("elapsed_s", "nll"), ("elapsed_s", "accuracy"))
        charts += [
            (f"belief-{setting}", _classified(run, splits)),
            (f"calibration-{setting}", _reliability(run, splits)),
            (
                f"losses-{setting}",
                validation(histories, f"Validation at hazard {setting}", panels),
            ),
        ]
    return charts


# By experiment; the bandit's are drawn from its regret instead (`bandit`).
DRAW: Mapping[str, Callable[[Evaluated], Charts]] = {
    "sinusoid": sinusoid,
    "players": players,
    "rainbow": images,
    "miniimagenet": images,
}


def bandit(wanted: Study, runs: Runs, results: Results, strategies: Sequence[str]) -> Charts:
    """Regret against hazard and over time by strategy, validation, reward and belief."""
    charts: Charts = []
    for strategy in strategies:
        comparison = compared(results, strategy)
        if len(comparison.settings()) > 1:
            charts.append((f"regret-{strategy}", hazard_chart(comparison)))
        panels: dict[str, list[Curve]] = {
            f"hazard {setting}": [
                _cumulative(method, played.cumulative)
                for (hazard, method, chosen), played in results.items()
                if (hazard, chosen) == (setting, strategy)
            ]
            for setting in comparison.settings()
        }
        title = f"Cumulative regret, {strategy}"
        charts.append((f"cumulative-{strategy}", over_time(panels, "cumulative regret", title)))
    for (hazard, method), run in runs.items():
        if method == "MOCA":
            charts.append((f"losses-{hazard}", _validated(run)))
    if (PAPER_HAZARD, "MOCA") in runs:
        charts.append(("wheel", _wheel(wanted, runs)))
    return charts


def _mocas(evaluated: Evaluated) -> list[tuple[str, Trained]]:
    """MOCA's run of each setting."""
    chosen = evaluated.chosen.items()
    return [(setting, run) for (setting, method), run in chosen if method == "MOCA"]


def _validated(run: Trained) -> Chart:
    return validation({run.method: run.result["history"]}, f"{run.method}: validation")


def _tested(run: Trained, splits: Splits, count: int) -> Batch:
    """The first test sequences."""
    protocol = PROTOCOLS[run.config.experiment]
    return sequences(splits, protocol).part(slice(0, count)).to("cpu", protocol.dtype)


def _predicted(run: Trained, splits: Splits) -> Chart:
    """The paper's figure of the sinusoid: densities at chosen times above the belief."""
    batch = _tested(run, splits, 1).cut(0, STEPS)
    assert batch.x is not None
    assert batch.switch is not None
    best = load(run, splits).model()
    traced = trace(best, batch, TIMES)
    x = torch.linspace(*INPUTS, GRID, dtype=DTYPE).unsqueeze(-1)
    y = torch.linspace(-HEIGHT, HEIGHT, 2 * GRID - 1, dtype=DTYPE)
    prior = start(best, batch)
    densities = [
        beliefs.Density(t, x[:, 0].numpy(), y.numpy(), density(best, state, prior, x, y).numpy())
        for t, state in traced.states.items()
    ]
    data = beliefs.Data(batch.x[0, :, 0].numpy(), batch.y[0, :, 0].numpy(), batch.switch[0].numpy())
    return beliefs.sinusoid(data, densities, traced.belief[0].numpy(), "Predictive and belief")


def _calibrated(run: Trained, splits: Splits) -> Chart:
    batch = _tested(run, splits, CALIBRATED)
    traced = trace(load(run, splits).model(), batch, max_hypotheses=100)
    return calibration.real(traced.pit.numpy())


def _crossed(evaluated: Evaluated) -> Charts:
    """Trained with and without switches, tested with and without (paper, app. D.3)."""
    comparison = evaluated.comparison
    values = comparison.values
    known = [
        setting
        for setting in comparison.settings()
        if (setting, UNSUPERVISED) in values and (setting, SUPERVISED) in values
    ]
    if not known:
        return []
    names = {
        "MOCA": "trained and tested without switches",
        SUPERVISED: "trained without, tested with",
        UNSUPERVISED: "trained with, tested without",
        "oracle": "trained and tested with switches",
    }
    curves = [
        curve(name, [float(s) for s in known], [estimate(values[s, method]) for s in known])
        for method, name in names.items()
    ]
    title = "Supervision in training and in the test"
    return [("supervision", grouped(curves, comparison.metric, title))]


def _trajectory(run: Trained, evaluated: Evaluated) -> Chart:
    """The test window of the longest path, in the segments that the filter finds online.

    A player who stands has no segments.
    """
    place: Place = evaluated.wanted.place
    name = str(run.config.data["name"])
    if place.data is None:
        raise BadData("expected the folder of the data sets, got none: use --datasets")
    windows = held(place.data, name, PATH_LENGTH)
    longest = int(windows.y.norm(dim=-1).sum(-1).argmax())
    batch = windows.part(slice(longest, longest + 1)).to("cpu", DTYPE)
    assert batch.x is not None
    traced = trace(load(run, evaluated.splits["all"]).model(), batch)
    title = f"A player's trajectory, window {longest} of {name}"
    return beliefs.trajectory((batch.x[0] * SCALE_FT).numpy(), traced.belief[0].numpy(), title)


@torch.no_grad()
def _classified(run: Trained, splits: Splits) -> Chart:
    """Run-length belief after each label of the first test sequence."""
    one = _tested(run, splits, 1).cut(0, STEPS)
    assert one.switch is not None
    learner = load(run, splits, one.y.dtype)
    best = learner.model()
    matrix = segments.segment_matrix(best, start(best, one), Sequences(one.x, one.y))
    posterior = segments.forward(matrix, Changes(learner.hazard)).log_posterior
    return beliefs.heat_map(posterior[0].double().exp().numpy(), one.switch[0].numpy())


@torch.no_grad()
def _reliability(run: Trained, splits: Splits) -> Chart:
    """Accuracy by confidence on the first test sequences."""
    batch = _tested(run, splits, CLASSIFIED)
    learner = load(run, splits, batch.y.dtype)
    part = PROTOCOLS[run.config.experiment].part
    parts = [
        class_log_probabilities(learner, batch.part(slice(i, i + part)), run.config.objective)
        for i in range(0, len(batch.y), part)
    ]
    probability = torch.cat(parts).exp().numpy()
    return calibration.classifier(reliability(probability, batch.y.squeeze(-1).numpy()))


def _cumulative(method: str, cumulative: np.ndarray) -> Curve:
    """Regret so far (trials, T), at some of the steps."""
    steps = np.arange(0, cumulative.shape[1], EVERY)
    return curve(method, (steps + 1).tolist(), [estimate(cumulative[:, t]) for t in steps])


def _wheel(wanted: Study, runs: Runs) -> Chart:
    """The paper's figure of the bandit: rewards, their posterior mean at t = 135, the belief."""
    whole = world(float(PAPER_HAZARD), 1)
    short = wheel.World(*(value[:, :PAPER_LENGTH] for value in whole))
    chance = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        best = model(runs[PAPER_HAZARD, "MOCA"], wanted)
        followed = follow(Moca(), best, short, STRATEGIES["thompson"], chance, PAPER_STEP)
    states = wheel.world(torch.Generator().manual_seed(SEED + 1), 1, SAMPLES, 0.5).states[0]
    delta = followed.delta[PAPER_STEP].expand(SAMPLES)
    noise = wheel.NOISE * torch.randn(SAMPLES, generator=chance, dtype=states.dtype)
    reward = wheel.reward_mean(states, torch.ones(SAMPLES, dtype=torch.int64), delta) + noise
    return beliefs.wheel(
        states.numpy(),
        reward.numpy(),
        beliefs.Surface(followed.axis.numpy(), followed.mean.numpy()),
        followed.belief.double().numpy(),
        followed.switch.numpy(),
        PAPER_STEP,
        f"Switching wheel bandit: action 1 at t = {PAPER_STEP}, hazard {PAPER_HAZARD}",
    )
