"""Figures of the players: a trajectory in segments, calibration, losses of every method."""

from __future__ import annotations

import numpy as np

from training.data.base import Batch
from training.data.players import SCALE_FT, held
from training.errors import BadData
from training.evaluation.filter_trace import trace
from training.evaluation.paper import Evaluated
from training.evaluation.paper_figures.sinusoid import calibrated, trained_losses
from training.evaluation.trained import DTYPE, Trained, load
from training.experiments.catalogue import Place
from training.figures import palette
from training.figures.chart import Axis, Chart, Line, Panel
from training.figures.trajectory import segmented

LENGTH = 200  # of the drawn trajectory (paper, fig. 4)


def draw(evaluated: Evaluated) -> list[tuple[str, Chart]]:
    """Each figure with the name of its files."""
    charts = [("methods", against_time(evaluated))]
    for (setting, method), run in evaluated.chosen.items():
        if method == "MOCA":
            splits = evaluated.splits[setting]
            charts += [
                ("trajectory", trajectory(run, evaluated)),
                ("calibration", calibrated(run, splits)),
                ("losses", trained_losses(run)),
            ]
    return charts


def trajectory(run: Trained, evaluated: Evaluated) -> Chart:
    """A test trajectory in the segments that the filter finds online, as in the service."""
    batch, name = farthest(evaluated.wanted.place, str(run.config.data["name"]))
    assert batch.x is not None
    traced = trace(load(run, evaluated.splits["all"]).model(), batch.to("cpu", DTYPE))
    position = (batch.x[0] * SCALE_FT).numpy()
    return segmented(position, traced.belief[0].numpy(), title=f"A player's trajectory, {name}")


def farthest(place: Place, name: str) -> tuple[Batch, str]:
    """The test window (1, 200, 2) of the longest path: a player who stands has no segments."""
    if place.data is None:
        raise BadData("expected the folder of the data sets, got none: use --datasets")
    batch = held(place.data, name, LENGTH)
    longest = int(batch.y.norm(dim=-1).sum(-1).argmax())
    return batch.part(slice(longest, longest + 1)), f"window {longest} of {name}"


def against_time(evaluated: Evaluated) -> Chart:
    """Validation of every method against iterations and time of training."""
    panels = []
    for column, label, unit in (("iteration", "iteration", 1), ("elapsed_s", "time (min)", 60)):
        layers = []
        for method in evaluated.comparison.methods():
            look = palette.look(method)
            rows = [
                row
                for (_, name), run in evaluated.chosen.items()
                if name == method
                for row in run.result["history"]
            ]
            x = np.array([row[column] / unit for row in rows])
            y = np.array([row["nll"] for row in rows])
            layers.append(Line(x, y, method, look.colour, look.dash))
        log = column == "iteration"
        panels.append(Panel(Axis(label, log=log), Axis("validation NLL (nats)"), tuple(layers)))
    text = "Validation of every method against iterations and time of the processor."
    return Chart("Validation", (tuple(panels),), text, (340,))
