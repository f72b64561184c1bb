"""Figures of classified images: run-length belief, calibration, validation while training."""

from __future__ import annotations

import numpy as np
import torch

from model_core import segments
from model_core.segments import Changes, Sequences
from training.data.base import Batch, Splits
from training.evaluation.paper import Evaluated
from training.evaluation.trained import PROTOCOLS, Trained, load, sequences
from training.figures import palette
from training.figures.belief import heat_map
from training.figures.calibration import classifier
from training.figures.chart import Axis, Chart, Line, Panel
from training.meta_training.objective import class_log_probabilities, start
from training.statistics.calibration import reliability

STEPS = 150  # length of the sequence whose belief is drawn
COUNT = 20  # test sequences of the calibration
MEASURES = {"nll": "validation NLL (nats)", "accuracy": "validation accuracy"}


def draw(evaluated: Evaluated) -> list[tuple[str, Chart]]:
    """Each figure with the name of its files: MOCA's at each hazard, and all methods' losses."""
    charts = []
    for (setting, method), run in evaluated.chosen.items():
        if method == "MOCA":
            splits = evaluated.splits[setting]
            charts += [
                (f"belief-{setting}", belief(run, splits)),
                (f"calibration-{setting}", calibrated(run, splits)),
                (f"losses-{setting}", learning(evaluated, setting)),
            ]
    return charts


@torch.no_grad()
def belief(run: Trained, splits: Splits) -> Chart:
    """Run-length belief after each label of the first test sequence."""
    one = _tested(run, splits, 1)
    assert one.x is not None
    assert one.switch is not None
    learner = load(run, splits, one.y.dtype)
    model = learner.model()
    data = Sequences(one.x[:, :STEPS], one.y[:, :STEPS])
    matrix = segments.segment_matrix(model, start(model, one), data)
    posterior = segments.forward(matrix, Changes(learner.hazard)).log_posterior
    return heat_map(posterior[0].double().exp().numpy(), one.switch[0, :STEPS].numpy())


@torch.no_grad()
def calibrated(run: Trained, splits: Splits, count: int = COUNT) -> Chart:
    """Accuracy by confidence on the first test sequences."""
    batch = _tested(run, splits, count)
    learner = load(run, splits, batch.y.dtype)
    part = PROTOCOLS[run.config.experiment].part
    parts = [
        class_log_probabilities(learner, batch.part(slice(i, i + part)), run.config.objective)
        for i in range(0, len(batch.y), part)
    ]
    return classifier(reliability(torch.cat(parts).exp(), batch.y.squeeze(-1)))


def learning(evaluated: Evaluated, setting: str) -> Chart:
    """Validation of every method against the time of training."""
    panels = []
    for measure, label in MEASURES.items():
        lines = []
        for method in evaluated.comparison.methods():
            if (setting, method) not in evaluated.chosen:
                continue
            rows = evaluated.chosen[setting, method].result["history"]
            minutes = np.array([row["elapsed_s"] / 60 for row in rows])
            look = palette.look(method)
            values = np.array([row[measure] for row in rows])
            lines.append(Line(minutes, values, method, look.colour, look.dash))
        panels.append(Panel(Axis("time (min)"), Axis(label), tuple(lines)))
    text = "Validation of every method, conditioned as in its training, against time of training."
    return Chart(f"Validation at hazard {setting}", (tuple(panels),), text, (340,))


def _tested(run: Trained, splits: Splits, count: int) -> Batch:
    """The first test sequences."""
    protocol = PROTOCOLS[run.config.experiment]
    return sequences(splits, protocol).part(slice(0, count)).to("cpu", protocol.dtype)
