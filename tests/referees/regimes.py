"""What a memory of regimes gives and costs: the figures of docs/streams.md, "Regimes that return".

`python -m tests.referees.regimes [COUNT]`: each figure without a memory, then with one of 8, on
COUNT (20) simulated series of a kind, and on the corpora in the folder MOCA_TEST_DATA. A change is
called `returned`, or `changed` if it is to a new regime, at its confirmation.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import torch

from model_core.encoder import Mlp
from model_core.stream_settings import DEFAULT_MODEL, DEFAULTS
from model_core.upm.alpaca import Alpaca
from model_core.upm.builtin import Options, build
from training.experiments.sinusoid import INPUTS, NOISE_VARIANCE, sinusoids
from training.online import follow
from training.quality.series import VECTOR_MODELS, load, spans
from training.results import estimate

GAIN = "{0.mean:.3f} ({0.low:.3f} to {0.high:.3f})"


def kinds(followed):
    """Positions at which changes were confirmed, and whether they were called returned."""
    first = {}
    for seq, event in followed.events:
        if event.state == "confirmed":
            first.setdefault(event.id, (seq, event.returned is not None))
    return sorted(first.values())


def recorded(model, series, memory):
    """By 1,000 observations `changed` and `returned`, mean log score, windows with a `changed`."""
    counts = [0, 0]
    hit = 0
    scores = []
    for one in series:
        followed = follow(model, one.y, DEFAULTS._replace(regimes=memory))
        confirmed = kinds(followed)
        for _, returned in confirmed:
            counts[returned] += 1
        scores.append(followed.log_score)
        for start, end in spans(one.window):
            hit += any(start <= seq < end and not returned for seq, returned in confirmed)
    joined = np.concatenate(scores)
    changed, returned = (1000 * count / len(joined) for count in counts)
    return changed, returned, float(np.nanmean(joined)), hit


def states(rng, recurring, gap, length=3000):
    """A series of unit noise that moves between levels a gap apart, and its changes.

    Of each change its position, and whether the level was there before. Four levels recur; those
    that never do lie within 12 gaps, and one is off its last eight ones.
    """
    y = rng.normal(size=length)
    pool = (rng.permutation(4) * 1.3 * gap).tolist()
    levels = []
    changes = []
    at = 0
    while at < length:
        if recurring:
            level = float(rng.choice([one for one in pool if not levels or one != levels[-1]]))
        else:
            level = float(rng.uniform(-12 * gap, 12 * gap))
            while any(abs(level - other) < gap for other in levels[-8:]):
                level = float(rng.uniform(-12 * gap, 12 * gap))
        end = at + int(rng.integers(30, 171))
        if at:
            changes.append((at, level in levels))
        y[at:end] += level
        levels.append(level)
        at = end
    return y, changes


def called(model, recurring, gap, memory, count):
    """Changes of `states` to new levels and to old ones: how many are called returned, of how many.

    The first confirmation within 30 observations counts for a change.
    """
    rng = np.random.default_rng([0, int(gap), int(recurring)])
    tally = np.zeros((2, 2), int)
    for _ in range(count):
        y, left = states(rng, recurring, gap)
        for seq, returned in kinds(follow(model, y, DEFAULTS._replace(regimes=memory))):
            change = next((one for one in left if one[0] <= seq < one[0] + 30), None)
            if change is not None:
                left.remove(change)
                tally[int(change[1])] += (int(returned), 1)
    return tally.tolist()


def seen_once(model, shift, count):
    """Share of returns to a level that was seen once, and left for 200, that are called so."""
    rng = np.random.default_rng([0, int(10 * shift)])
    right = 0
    for _ in range(count):
        y = rng.normal(size=600)
        y[200:400] += shift
        confirmed = kinds(follow(model, y, DEFAULTS._replace(regimes=8)))
        right += next((returned for seq, returned in confirmed if seq >= 400), False)
    return right / count


def vectors(annotated):
    """Bees, and of HASC the log deviations of half a second each; outputs in their deviations."""
    series = [(one.name, one.y) for one in annotated.get("bees", [])]
    for one in annotated.get("HASC", []):
        pieces = one.y[: len(one.y) // 50 * 50].reshape(-1, 50, one.y.shape[1])
        series.append((f"{one.name} windows", np.log(pieces.std(1) + 1e-3)))
    return [(name, (y - y.mean(0)) / y.std(0)) for name, y in series]


def gained(model, y):
    """Mean log scores without and with a memory, the gain by blocks of 50, and the changes."""
    plain, remembering = (follow(model, y, DEFAULTS._replace(regimes=m)) for m in (0, 8))
    gain = remembering.log_score - plain.log_score
    gain = gain[np.isfinite(gain)]
    blocks = np.array_split(gain, max(2, len(gain) // 50))
    scores = [float(np.nanmean(one.log_score)) for one in (plain, remembering)]
    return scores, estimate([block.mean() for block in blocks]), kinds(plain), kinds(remembering)


def random_features(fitted):
    """A regression on 32 random features; its prior is of 400 sinusoids, or as wide in all."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(32, 1, generator=generator, dtype=torch.float64)
    bias = INPUTS[1] * weight[:, 0] * (2 * torch.rand(32, generator=generator) - 1)
    encoder = Mlp((weight,), (-bias.double(),), output_activation="tanh")
    drawn = sinusoids(0.0)(generator, 400, 80)
    phi = encoder(drawn.x)
    identity = torch.eye(32, dtype=torch.float64)
    ridge = NOISE_VARIANCE * identity
    weights = torch.linalg.solve(phi.mT @ phi + ridge, phi.mT @ drawn.y)[..., 0]
    mean = weights.mean(0).unsqueeze(-1)
    cov = torch.cov(weights.mT) / NOISE_VARIANCE
    if not fitted:
        mean = torch.zeros_like(mean)
        cov = identity * cov.diagonal().mean()
    one = torch.ones(1, dtype=torch.float64)
    return Alpaca(
        encoder=encoder,
        x_offset=0 * one,
        x_scale=one,
        y_offset=0 * one,
        y_scale=one,
        prior_mean=mean,
        prior_cov=0.5 * (cov + cov.mT),
        noise_variance=NOISE_VARIANCE * one,
        hazard=0.05,
    )


def sinusoid(model, tasks, memory, count):
    """Mean log score of each series on the sinusoid, whose tasks recur or (0) never do."""
    scores = []
    for seed in range(count):
        batch = sinusoids(0.05, tasks)(torch.Generator().manual_seed(seed), 1, 500)
        settings = DEFAULTS._replace(regimes=memory)
        followed = follow(model, batch.y[0].numpy(), settings, inputs=batch.x[0].numpy())
        scores.append(float(np.nanmean(followed.log_score[100:])))
    return np.array(scores)


def main(arguments: Sequence[str]) -> None:
    """Print every figure."""
    count = int(arguments[0]) if arguments else 20
    default = build(DEFAULT_MODEL, Options())
    for recurring, gap, memory in product((False, True), (1.0, 2.0, 4.0), (0, 8)):
        new, back = called(default, recurring, gap, memory, count)
        print(f"{gap:g} sd, {memory}: called returned {new} of new, {back} of old levels")
    for shift in (1.0, 2.0, 3.0):
        print(f"seen once, {shift:g} sd: {seen_once(default, shift, count):.2f} called so")
    for fitted, tasks in product((True, False), (4, 0)):
        model = random_features(fitted)
        plain, remembering = (sinusoid(model, tasks, memory, count) for memory in (0, 8))
        gain = GAIN.format(estimate(remembering - plain))
        print(f"sinusoid, prior fitted: {fitted}, tasks that recur: {tasks}: gain {gain}")
    if folder := os.environ.get("MOCA_TEST_DATA"):
        on_corpora(default, load(Path(folder)))


def on_corpora(default, corpora):
    """Print the figures of recorded series."""
    for memory in (0, 8) if "NAB" in corpora.scalars else ():
        changed, returned, score, hit = recorded(default, corpora.scalars["NAB"], memory)
        rates = f"{changed:.2f} changed, {returned:.2f} returned per 1,000"
        print(f"NAB, {memory}: {rates}, log score {score:.4f}, {hit} windows")
    for (series, y), name in product(vectors(corpora.annotated), VECTOR_MODELS):
        model = build(name, Options(y_dim=y.shape[1]))
        scores, gain, plain, remembering = gained(model, y)
        back = sum(returned for _, returned in remembering)
        changes = f"changes {len(plain)}, {len(remembering)}, of these {back} returned"
        text = f"log score {scores[0]:.3f}, {scores[1]:.3f}, gain {GAIN.format(gain)}"
        print(f"{series}, {name}: {text}, {changes}")


if __name__ == "__main__":
    main(sys.argv[1:])
