"""Tasks of the switching sinusoid that recur: what `alpaca` gains if it remembers regimes.

Part of `moca evaluate regimes`. The model is a regression on random features: nothing is trained.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from model_core.encoder import Mlp
from model_core.stream_settings import DEFAULTS
from model_core.upm.alpaca import Alpaca
from training.experiments.sinusoid import INPUTS, NOISE_VARIANCE, Sinusoid
from training.online import follow
from training.results import Table
from training.statistics import estimate

Floats = NDArray[np.float64]
FEATURES = 32  # of the model: random, of one hidden layer
DRAWN = 400  # sinusoids that its fitted prior is of
POINTS = 80  # of each
SWITCHING = 0.05  # hazard
TASKS = 4  # that recur
LENGTH = 500
SKIPPED = 100  # first observations, whose log scores do not count


def random_features(fitted: bool) -> Alpaca:
    """Regression on random features; its prior is fitted to sinusoids or as wide in all of them."""
    generator = torch.Generator().manual_seed(1)
    double = torch.float64
    weight = torch.randn(FEATURES, 1, generator=generator, dtype=double)
    bias = INPUTS[1] * weight[:, 0] * (2 * torch.rand(FEATURES, generator=generator) - 1)
    encoder = Mlp((weight,), (-bias.double(),), output_activation="tanh")
    drawn = Sinusoid(0.0).draw(generator, DRAWN, POINTS)
    assert drawn.x is not None
    phi = encoder(drawn.x)
    ridge = NOISE_VARIANCE * torch.eye(FEATURES, dtype=double)
    weights = torch.linalg.solve(phi.mT @ phi + ridge, phi.mT @ drawn.y)[..., 0]
    mean = weights.mean(0).unsqueeze(-1)
    cov = torch.cov(weights.mT) / NOISE_VARIANCE
    if not fitted:
        mean = torch.zeros_like(mean)
        cov = torch.eye(FEATURES, dtype=double) * cov.diagonal().mean()
    nothing, one = torch.zeros(1, dtype=double), torch.ones(1, dtype=double)
    return Alpaca(
        encoder=encoder,
        x_offset=nothing,
        x_scale=one,
        y_offset=nothing,
        y_scale=one,
        prior_mean=mean,
        prior_cov=0.5 * (cov + cov.mT),
        noise_variance=NOISE_VARIANCE * one,
        hazard=SWITCHING,
    )


def sinusoids(model: Alpaca, regimes: int, tasks: int, seed: int, count: int) -> Floats:
    """Mean log scores (count,) on the switching sinusoid; tasks: that recur, 0: none does."""
    scores = []
    for one in range(count):
        generator = torch.Generator().manual_seed(seed + one)
        batch = Sinusoid(SWITCHING, tasks).draw(generator, 1, LENGTH)
        assert batch.x is not None
        settings = DEFAULTS._replace(regimes=regimes)
        followed = follow(model, batch.y[0].numpy(), settings, inputs=batch.x[0].numpy())
        scores.append(float(np.nanmean(followed.log_score[SKIPPED:])))
    return np.array(scores)


def show(memories: Sequence[int], seed: int, count: int, console: Console) -> None:
    """Print the log scores on the switching sinusoid, and the gain over the first memory."""
    rows = []
    for fitted in (True, False):
        model = random_features(fitted)
        for tasks in (TASKS, 0):
            scores = [sinusoids(model, memory, tasks, seed, count) for memory in memories]
            for memory, own in zip(memories, scores, strict=True):
                named = "fitted" if fitted else "generic", str(tasks or "never"), str(memory)
                gain = estimate(own - scores[0])
                numbers = f"{own.mean():.3f}", f"{gain.mean:.4f} ({gain.low:.4f}, {gain.high:.4f})"
                rows.append((*named, *numbers))
    heads = "prior", "tasks recur", "regimes", "log score", "gain, 95 % interval"
    console.print(Table("switching sinusoid", "", heads, rows, 3).for_terminal())
