"""Loss curves of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from training.figures import palette
from training.figures.chart import Axis, Chart, Floats, Layer, Line, Panel

LOOKS = ("SW10", "COE", "MOCA")  # of the curves, whose looks they borrow


class Losses(NamedTuple):
    """Loss (n,) at iterations, and the seconds of training by then."""

    iteration: Floats
    time_s: Floats
    loss: Floats


def losses(
    curves: Mapping[str, Losses],
    measure: str = "negative log likelihood (nats)",
    title: str = "Loss",
) -> Chart:
    """Losses by their names against iteration and against the time of training."""
    panels = []
    for k, label in enumerate(("iteration", "time of training (s)")):
        layers: list[Layer] = [
            Line(each[k], each.loss, name, palette.METHODS[look].colour, symbol="circle")
            for (name, each), look in zip(curves.items(), LOOKS, strict=False)
        ]
        panels.append(Panel(Axis(label), Axis(measure), tuple(layers)))
    text = f"{measure} in {', '.join(curves)} against iteration and time of training."
    return Chart(title, (tuple(panels),), text, (320,))


def of_validation(history: list[dict[str, float]], title: str) -> Chart:
    """Validation losses of a run's history."""
    names = ("iteration", "elapsed_s", "nll")
    columns = (np.array([row[name] for row in history]) for name in names)
    return losses({"validation": Losses(*columns)}, title=title)
