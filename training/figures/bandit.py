"""Chart of the switching wheel bandit: rewards and posterior mean over the disc, and belief."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.figures import belief as beliefs
from training.figures.chart import Axis, Chart, Coloured, Floats, Image, Panel


class Samples(NamedTuple):
    """States (N, 2) in the unit disc and the rewards (N,) of one action there."""

    state: Floats
    reward: Floats


class Surface(NamedTuple):
    """Posterior mean reward (len(y), len(x)) on a grid; outside the disc it is not shown."""

    x: Floats
    y: Floats
    mean: Floats


def wheel(
    samples: Samples,
    surface: Surface,
    belief: Floats,
    switch: NDArray[np.bool_],
    title: str = "Switching wheel bandit",
    times: Sequence[float] = (),
) -> Chart:
    """Reward samples and posterior mean over the disc, above the belief (T, R) by [t, r].

    times: those of the disc, marked in the belief.
    """
    outside = surface.x[None, :] ** 2 + surface.y[:, None] ** 2 > 1
    inside = np.where(outside, np.nan, surface.mean)
    x, y = samples.state.T
    rewards = _disc((Coloured(x, y, samples.reward, "reward"),), "reward samples")
    means = _disc(
        (Image(surface.x, surface.y, inside, "mean reward", "Viridis"),), "posterior mean reward"
    )
    text = "Reward samples and posterior mean reward over the unit disc, and run-length belief."
    rows = ((rewards, means), (beliefs.panel(belief, switch, times),))
    return Chart(title, rows, text, (340, 260))


def _disc(layers: tuple[Coloured | Image, ...], title: str) -> Panel:
    x, y = (Axis(f"state {name}", (-1.05, 1.05), grid=False) for name in ("x₁", "x₂"))
    return Panel(x, y, layers, title, equal=True)
