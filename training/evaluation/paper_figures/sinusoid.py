"""Figures of the sinusoid: densities and belief, calibration, losses, crossed supervision."""

from __future__ import annotations

import torch

from training.data.base import Batch, Splits
from training.data.sinusoid import INPUTS
from training.evaluation.filter_trace import density, trace
from training.evaluation.paper import SUPERVISED, UNSUPERVISED, Evaluated
from training.evaluation.trained import DTYPE, PROTOCOLS, Trained, load, sequences
from training.figures import belief as beliefs
from training.figures import calibration
from training.figures.chart import Chart
from training.figures.performance import Curve, curve, grouped, of_validation
from training.meta_training.objective import start
from training.statistics.intervals import estimate

STEPS = 150  # of the drawn sequence
TIMES = (40, 60, 90, 120, 140)
GRID = 61
HEIGHT = 6.0


def draw(evaluated: Evaluated) -> list[tuple[str, Chart]]:
    """Each figure with the name of its files."""
    charts = []
    for (setting, method), run in evaluated.chosen.items():
        if method != "MOCA":
            continue
        splits = evaluated.splits[setting]
        charts += [
            (f"belief-{setting}", _belief(run, splits)),
            (f"calibration-{setting}", calibrated(run, splits)),
            (f"losses-{setting}", trained_losses(run)),
        ]
    return charts + crossed(evaluated)


def _belief(run: Trained, splits: Splits) -> Chart:
    """The paper's figure of the sinusoid: densities at chosen times above the belief."""
    one = sequences(splits, PROTOCOLS["sinusoid"]).part(slice(0, 1))
    batch = Batch(one.x[:, :STEPS], one.y[:, :STEPS], one.switch[:, :STEPS])  # type: ignore[index]
    model = load(run, splits).model()
    traced = trace(model, batch.to("cpu", DTYPE), TIMES)
    x = torch.linspace(*INPUTS, GRID, dtype=DTYPE).unsqueeze(-1)
    y = torch.linspace(-HEIGHT, HEIGHT, 2 * GRID - 1, dtype=DTYPE)
    prior = start(model, batch)
    pictures = [
        beliefs.Density(t, x[:, 0].numpy(), y.numpy(), density(model, state, prior, x, y).numpy())
        for t, state in traced.states.items()
    ]
    data = beliefs.Data(
        batch.x[0, :, 0].numpy(),  # type: ignore[index]
        batch.y[0, :, 0].numpy(),
        batch.switch[0].numpy(),  # type: ignore[index]
    )
    return beliefs.sinusoid(data, pictures, traced.belief[0].numpy())


def calibrated(run: Trained, splits: Splits, count: int = 25) -> Chart:
    """PITs of the first test sequences."""
    batch = sequences(splits, PROTOCOLS[run.config.experiment]).part(slice(0, count))
    model = load(run, splits).model()
    traced = trace(model, batch.to("cpu", DTYPE), max_hypotheses=100)
    return calibration.real(traced.pit)


def trained_losses(run: Trained) -> Chart:
    """Validation against iteration and time."""
    return of_validation(run.result["history"], f"{run.method}: validation")


def crossed(evaluated: Evaluated) -> list[tuple[str, Chart]]:
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
    x = [float(setting) for setting in known]
    names = {
        "MOCA": "trained and tested without switches",
        SUPERVISED: "tested with",
        UNSUPERVISED: "trained with",
        "oracle": "trained and tested with",
    }
    curves: list[Curve] = [
        curve(name, x, [estimate(values[setting, method]) for setting in known])
        for method, name in names.items()
    ]
    return [("supervision", grouped({evaluated.wanted.experiment: (comparison.metric, curves)}))]
