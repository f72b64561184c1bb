"""Switching sinusoid: y = A sin(x - phase) + noise, where a regime is one (A, phase)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from training import figures, paper
from training.data.files import Place
from training.data.windows import Batch, Source, Splits, below, held, switches, uniform
from training.figures import BELIEF, CHOSEN, CURRENT, EARLIER, Chart, Floats
from training.meta_training.runs import Run
from training.paper import DTYPE, Protocol

INPUTS = (-5.0, 5.0)
AMPLITUDES = (0.1, 5.0)
PHASES = (0.0, math.pi)
NOISE_VARIANCE = 0.05
TASKS_SEED = 20_220_101  # of recurring tasks, for runs of any seed

PROTOCOL = Protocol(200, 400)

# Of the figure of densities above the belief.
TIMES = (40, 60, 90, 120, 140)
GRID = (
    torch.linspace(*INPUTS, 61, dtype=DTYPE),
    torch.linspace(-6.0, 6.0, 121, dtype=DTYPE),
)  # x and y
OLDEST = 60  # observations after which earlier data have faded
FAINT = 0.12  # their opacity
LETTERS = "abcdefghijklmnop"


def sinusoids(hazard: float, tasks: int = 0) -> Source:
    """Generated windows: x (B, T, 1), y (B, T, 1) float64, switch (B, T).

    Appendix C of the paper: amplitude and phase are uniform and noise is Gaussian of variance
    0.05; inputs and the sign of the phase, which it leaves to its references, are those of MAML.
    (With x + phase instead, the law of y is that of -y here.) tasks: so many amplitudes and phases,
    the same for every source, recur; 0: every regime draws its own.
    """
    if tasks < 0:
        raise ValueError(f"expected 0 tasks or more, got {tasks}")
    of_tasks = torch.Generator().manual_seed(TASKS_SEED)
    recurring = [uniform(of_tasks, (tasks,), bounds) for bounds in (AMPLITUDES, PHASES)]

    def draw(generator: torch.Generator, count: int, length: int) -> Batch:
        switch = switches(generator, count, length, hazard)
        shape = (count, length, 1)
        # Of regimes that start at each observation.
        if tasks:
            chosen = below(generator, torch.full(shape, tasks))
            amplitudes, phases = (values[chosen] for values in recurring)
        else:
            amplitudes = uniform(generator, shape, AMPLITUDES)
            phases = uniform(generator, shape, PHASES)
        x = uniform(generator, shape, INPUTS)
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        y = held(amplitudes, switch) * torch.sin(x - held(phases, switch))
        return Batch(x, y + math.sqrt(NOISE_VARIANCE) * noise, switch)

    return draw


def splits(place: Place, hazard: float, tasks: int = 0) -> Splits:
    """One source for all splits: every draw is new, of recurring tasks if there are any."""
    source = sinusoids(hazard, tasks)
    return Splits(source, source, source, x_dim=1, y_dim=1)


def picture(run: Run, splits: Splits, place: Place) -> Chart:
    """The paper's figure, of the first test sequence."""
    x, y = GRID
    batch = paper.first_sequence(run, splits)
    model = paper.load(run, splits).model()
    (belief,) = paper.trace(model, batch)
    (series,) = batch.series()
    densities = {
        t: paper.density(model, series.part(slice(0, t)), x.unsqueeze(-1), y).numpy() for t in TIMES
    }
    return densities_chart(batch, densities, belief.numpy())


@figures.styled
def densities_chart(batch: Batch, densities: Mapping[int, Floats], belief: Floats) -> Chart:
    """Predictive densities in a row above the run-length belief, lettered by time.

    batch: one sequence. densities: on the grid (y, x), by the time that the data before are given
    at. Darker is denser, each panel by its own largest density.
    """
    assert batch.x is not None
    assert batch.switch is not None
    x = batch.x[0, :, 0].numpy()
    y = batch.y[0, :, 0].numpy()
    switch = batch.switch[0].numpy()
    figure = Figure((9, 6.4))
    grid = figure.add_gridspec(2, len(densities))
    upper: list[Axes] = []
    for k, (now, density) in enumerate(densities.items()):
        axes = figure.add_subplot(grid[0, k], sharey=upper[0] if upper else None)
        begin = int(np.flatnonzero(switch[: now + 1]).max(initial=0))
        _draw_density(axes, x[:now], y[:now], begin, density)
        axes.set_title(f"{LETTERS[k]}) t = {now}")
        axes.set_xlabel("x")
        axes.tick_params(labelleft=not upper)
        upper.append(axes)
    upper[0].set_ylabel("y")
    lower = figure.add_subplot(grid[1, :])
    figures.draw_belief(lower, belief, switch)
    figures.draw_rules(lower, list(densities), "time shown above", color=CHOSEN, ls=":", lw=1.6)
    shown = ", ".join(map(str, densities))
    text = f"Above: predictive density at times {shown}, with data. Below: "
    text += figures.belief_text(switch)
    return figures.finished(figure, "Predictive and belief", text)


def _draw_density(axes: Axes, x: Floats, y: Floats, begin: int, density: Floats) -> None:
    """The density as an image; data of the current task, from `begin` on, and fading ones before.

    x, y: (now,) data before the time that is shown.
    """
    grid_x, grid_y = (axis.numpy() for axis in GRID)
    opacity = np.clip(1 - (len(x) - np.arange(begin)) / OLDEST, FAINT, 1.0)
    axes.pcolormesh(grid_x, grid_y, density, cmap=BELIEF, shading="nearest", rasterized=True)
    axes.grid(False)
    symbols: dict[str, Any] = {"s": 14, "ec": "white", "lw": 0.4, "zorder": 3}
    earlier = [(*to_rgb(EARLIER), alpha) for alpha in opacity]
    axes.scatter(x[:begin], y[:begin], fc=earlier, marker="s", label="earlier tasks", **symbols)
    axes.scatter(x[begin:], y[begin:], fc=CURRENT, label="current task", **symbols)
    axes.set_xlim(grid_x[0], grid_x[-1])
    axes.set_ylim(grid_y[0], grid_y[-1])
