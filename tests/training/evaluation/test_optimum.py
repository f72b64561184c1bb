"""The bound of the sinusoid against the evidence of every segmentation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from training.data.sinusoid import splits
from training.evaluation.optimum import optimum

HAZARD = 0.3
STEPS = 5


@pytest.fixture(scope="module")
def batch():
    return splits(HAZARD).test.draw(torch.Generator().manual_seed(3), 7, STEPS)


def evidence(x, y):
    """Of one task: an integral over amplitude and phase, by Gauss and Legendre."""
    nodes, weights = np.polynomial.legendre.leggauss(160)
    amplitude, phase = 2.55 + 2.45 * nodes, 0.5 * math.pi * (1 + nodes)
    mean = amplitude[:, None, None] * np.sin(x - phase[:, None])
    density = np.exp(-((y - mean) ** 2) / 0.1) / math.sqrt(0.1 * math.pi)
    return 0.25 * weights @ density.prod(-1) @ weights


def of_segments(x, y, bounds):
    pairs = itertools.pairwise((0, *bounds, len(x)))
    return math.prod(evidence(x[a:b], y[a:b]) for a, b in pairs)


def test_unknown_switches_are_every_segmentation(batch):
    found = optimum(batch, HAZARD).unknown.sum(-1)
    for i, (x, y) in enumerate(zip(batch.x[..., 0].numpy(), batch.y[..., 0].numpy(), strict=True)):
        total = 0.0
        for count in range(STEPS):
            for bounds in itertools.combinations(range(1, STEPS), count):
                chance = HAZARD**count * (1 - HAZARD) ** (STEPS - 1 - count)
                total += chance * of_segments(x, y, bounds)
        assert found[i] == pytest.approx(-math.log(total), abs=2e-3)


def test_known_switches_are_the_true_segmentation(batch):
    found = optimum(batch, HAZARD).known.sum(-1)
    for i, (x, y) in enumerate(zip(batch.x[..., 0].numpy(), batch.y[..., 0].numpy(), strict=True)):
        bounds = [t for t in range(1, STEPS) if batch.switch[i, t]]
        assert found[i] == pytest.approx(-math.log(of_segments(x, y, bounds)), abs=2e-3)


def test_the_grid_is_fine_enough(batch):
    coarse, fine = optimum(batch, HAZARD), optimum(batch, HAZARD, (250, 400))
    for a, b in zip(coarse, fine, strict=True):
        torch.testing.assert_close(a.mean(), b.mean(), atol=5e-4, rtol=0)


def test_of_recurring_tasks_it_is_every_segmentation_and_task():
    source = splits(HAZARD, tasks=3).test
    batch = source.draw(torch.Generator().manual_seed(4), 6, STEPS)
    found = optimum(batch, HAZARD, tasks=source.tasks)
    mean = source.tasks[:, 0] * torch.sin(batch.x - source.tasks[:, 1])
    density = torch.exp(-10 * (batch.y - mean).square()) / math.sqrt(0.1 * math.pi)
    for i, each in enumerate(density.numpy()):
        total = 0.0
        for switch in itertools.product((False, True), repeat=STEPS - 1):
            bounds = [0, *(t + 1 for t, now in enumerate(switch) if now), STEPS]
            told = math.prod(each[a:b].prod(0).mean() for a, b in itertools.pairwise(bounds))
            total += HAZARD ** sum(switch) * (1 - HAZARD) ** (STEPS - 1 - sum(switch)) * told
            if list(switch) == batch.switch[i, 1:].tolist():
                assert found.known[i].sum() == pytest.approx(-math.log(told), abs=1e-10)
        assert found.unknown[i].sum() == pytest.approx(-math.log(total), abs=1e-10)
