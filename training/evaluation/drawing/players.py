"""Figures of the players: a trajectory in segments, calibration, losses of every method."""

from __future__ import annotations

import numpy as np

from training.data.base import Batch
from training.data.players import SCALE_FT, held
from training.errors import BadData
from training.evaluation.drawing.sinusoid import calibrated, trained_losses
from training.evaluation.experiments import Evaluated
from training.evaluation.following import follow
from training.evaluation.trained import DTYPE, Trained, load
from training.experiments import Place
from training.figures import palette
from training.figures.chart import Axis, Chart, Line, Panel
from training.figures.trajectory import segmented

LENGTH = 200  # of the trajectory that is drawn (paper, fig. 4)


def draw(evaluated: Evaluated) -> list[tuple[str, Chart]]:
    """Each figure under the name of its files."""
    charts = [("methods", against_time(evaluated))]
    for (setting, method), each in evaluated.chosen.items():
        if method == "MOCA":
            splits = evaluated.splits[setting]
            charts += [
                ("trajectory", trajectory(each, evaluated)),
                ("calibration", calibrated(each, splits)),
                ("losses", trained_losses(each)),
            ]
    return charts


def trajectory(each: Trained, evaluated: Evaluated) -> Chart:
    """A test trajectory in the segments that the filter finds online, as the service would."""
    batch, name = farthest(evaluated.wanted.place, str(each.config.data["name"]))
    assert batch.x is not None
    found = follow(load(each, evaluated.splits["all"]).model(), batch.to("cpu", DTYPE))
    position = (batch.x[0] * SCALE_FT).numpy()
    return segmented(position, found.belief[0].numpy(), title=f"A player's trajectory, {name}")


def farthest(place: Place, name: str) -> tuple[Batch, str]:
    """The test window (1, 200, 2) whose player goes farthest: one who stands has no segments."""
    if place.data is None:
        raise BadData("the folder of the data sets is needed")
    batch = held(place.data, name, LENGTH)
    longest = int(batch.y.norm(dim=-1).sum(-1).argmax())
    return batch.part(slice(longest, longest + 1)), f"window {longest} of {name}"


def against_time(evaluated: Evaluated) -> Chart:
    """Validation of every method against iterations and the time that they took."""
    panels = []
    for column, label, unit in (("iteration", "iteration", 1), ("elapsed_s", "time (min)", 60)):
        layers = []
        for method in evaluated.found.methods():
            look = palette.look(method)
            rows = [
                row
                for (_, name), each in evaluated.chosen.items()
                if name == method
                for row in each.result["history"]
            ]
            x = np.array([row[column] / unit for row in rows])
            y = np.array([row["nll"] for row in rows])
            layers.append(Line(x, y, method, look.colour, look.dash))
        log = column == "iteration"
        panels.append(Panel(Axis(label, log=log), Axis("validation NLL (nats)"), tuple(layers)))
    text = "Validation of every method against iterations and time of the processor."
    return Chart("Validation", (tuple(panels),), text, (340,))
