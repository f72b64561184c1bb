"""Figures of the sinusoid: densities and belief, calibration, losses, crossed supervision."""

from __future__ import annotations

import torch

from training.data.base import Batch, Splits
from training.data.sinusoid import INPUTS
from training.evaluation.experiments import TOLD, UNTOLD, Evaluated
from training.evaluation.following import density, follow
from training.evaluation.trained import DTYPE, PROTOCOLS, Trained, load, sequences
from training.figures import belief as beliefs
from training.figures import calibration
from training.figures.chart import Chart
from training.figures.losses import of_validation
from training.figures.performance import Curve, curve, grouped
from training.intervals import estimate
from training.objective import start

STEPS = 150  # of the sequence that is drawn
TIMES = (40, 60, 90, 120, 140)
GRID = 61
HEIGHT = 6.0


def draw(evaluated: Evaluated) -> list[tuple[str, Chart]]:
    """Each figure under the name of its files."""
    charts = []
    for (setting, method), each in evaluated.chosen.items():
        if method != "MOCA":
            continue
        splits = evaluated.splits[setting]
        charts += [
            (f"belief-{setting}", _belief(each, splits)),
            (f"calibration-{setting}", calibrated(each, splits)),
            (f"losses-{setting}", trained_losses(each)),
        ]
    return charts + crossed(evaluated)


def _belief(each: Trained, splits: Splits) -> Chart:
    """The paper's figure of the sinusoid: densities at chosen times above the belief."""
    one = sequences(splits, PROTOCOLS["sinusoid"]).part(slice(0, 1))
    batch = Batch(one.x[:, :STEPS], one.y[:, :STEPS], one.switch[:, :STEPS])  # type: ignore[index]
    model = load(each, splits).model()
    found = follow(model, batch.to("cpu", DTYPE), TIMES)
    x = torch.linspace(*INPUTS, GRID, dtype=DTYPE).unsqueeze(-1)
    y = torch.linspace(-HEIGHT, HEIGHT, 2 * GRID - 1, dtype=DTYPE)
    prior = start(model, batch)
    pictures = [
        beliefs.Density(t, x[:, 0].numpy(), y.numpy(), density(model, state, prior, x, y).numpy())
        for t, state in found.states.items()
    ]
    data = beliefs.Data(
        batch.x[0, :, 0].numpy(),  # type: ignore[index]
        batch.y[0, :, 0].numpy(),
        batch.switch[0].numpy(),  # type: ignore[index]
    )
    return beliefs.sinusoid(data, pictures, found.belief[0].numpy())


def calibrated(each: Trained, splits: Splits, count: int = 25) -> Chart:
    """PITs of the first test sequences."""
    batch = sequences(splits, PROTOCOLS[each.config.experiment]).part(slice(0, count))
    found = follow(load(each, splits).model(), batch.to("cpu", DTYPE), most=100)
    return calibration.real(found.pit)


def trained_losses(each: Trained) -> Chart:
    """Validation against iteration and time."""
    return of_validation(each.result["history"], f"{each.method}: validation")


def crossed(evaluated: Evaluated) -> list[tuple[str, Chart]]:
    """Trained with and without switches, tested with and without (paper, app. D.3)."""
    found = evaluated.found
    known = [
        s for s in found.settings() if (s, UNTOLD) in found.values and (s, TOLD) in found.values
    ]
    if not known:
        return []
    x = [float(each) for each in known]
    names = {
        "MOCA": "trained and tested without switches",
        TOLD: "tested with",
        UNTOLD: "trained with",
        "oracle": "trained and tested with",
    }
    curves: list[Curve] = [
        curve(name, x, [estimate(found.values[s, method]) for s in known])
        for method, name in names.items()
    ]
    return [("supervision", grouped({evaluated.wanted.experiment: (found.metric, curves)}))]
