"""Loss curves of a training run."""

from __future__ import annotations

from typing import NamedTuple

from training.figures import palette
from training.figures.chart import Axis, Chart, Floats, Layer, Line, Panel


class Losses(NamedTuple):
    """Loss (n,) at iterations, and the wall time by then in seconds."""

    iteration: Floats
    wall_time_s: Floats
    loss: Floats


def losses(
    train: Losses,
    validation: Losses | None = None,
    measure: str = "negative log likelihood (nats)",
    title: str = "Loss",
) -> Chart:
    """Train and validation loss against iteration and against wall time."""
    panels = []
    for k, label in enumerate(("iteration", "wall time (s)")):
        layers: list[Layer] = [
            Line(train[k], train.loss, "train", palette.METHODS["COE"].colour, width=1.2)
        ]
        if validation is not None:
            colour = palette.METHODS["SW10"].colour
            layers.append(
                Line(validation[k], validation.loss, "validation", colour, symbol="circle")
            )
        panels.append(Panel(Axis(label), Axis(measure), tuple(layers)))
    text = f"{measure} in training and validation against iteration and wall time."
    return Chart(title, (tuple(panels),), text, (320,))
