"""Every kind of stream that can be served: its settings, and series whose behaviour switches."""

import json
import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from model_core import artifact
from service.wire import Configure, Observation

LEVELS = (0.0, 4.0, -3.0)


class Kind(NamedTuple):
    """One model in one shape. `label` draws a label at a level, and the input it came with."""

    model: str
    label: Callable[[random.Random, float, list[float] | None], Any]
    settings: dict[str, Any] = {}
    x_dim: int = 0
    y_dim: int = 1
    classes: int = 0
    warms_up: bool = True

    @property
    def probabilities(self) -> int:
        """Numbers in a predictive of classes; 0: it is of a quantity."""
        return self.classes or 2 * (self.model == "bernoulli")

    @property
    def counts(self) -> bool:
        """Whether labels are counts."""
        return self.label is count

    @property
    def positive(self) -> bool:
        """Whether labels are durations."""
        return self.label is duration


def real(rng, level, x):
    return rng.gauss(level, 1)


def held(rng, level, x):
    """A value that is read three times."""
    left = getattr(rng, "left", 0) or 3
    if left == 3:
        rng.value = rng.gauss(level, 1)
    rng.left = left - 1
    return rng.value


def pair(rng, level, x):
    first = rng.gauss(level, 1)
    return [first, rng.gauss(0.7 * first, 0.5)]


def triple(rng, level, x):
    return [rng.gauss(level, 1), rng.gauss(0, 1), rng.gauss(10 * level, 5)]


def partial(rng, level, x):
    """A triple some of whose outputs are missing, but not all."""
    y = triple(rng, level, x)
    for i in rng.sample(range(3), rng.choice([0, 0, 1, 1, 2])):
        y[i] = None
    return y


def count(rng, level, x):
    return float(sum(rng.random() < 0.2 * (2 + abs(level)) for _ in range(20)))


def duration(rng, level, x):
    return rng.expovariate(1 / (1 + 2 * abs(level)))


def coin(rng, level, x):
    return float(rng.random() < 0.5 + level / 10)


def symbol(rng, level, x):
    return float(rng.choices(range(4), [1, 2 + level * level, 4 + level, 3])[0])


def slope(rng, level, x):
    return rng.gauss(level * x[0], 0.5)


def slopes(rng, level, x):
    return [rng.gauss(level * x[0], 0.5), rng.gauss(x[1] - level * x[2], 0.5)]


def leaf(rng, level, x):
    return float((x[0] > 0) == (level >= 0)) + (x[1] > 1)


KINDS = {
    "gaussian": Kind("gaussian", real),
    "gaussian-3": Kind("gaussian", triple, y_dim=3),
    "averaged": Kind("averaged", real),
    "averaged-held": Kind("averaged", held, {"warmup": 5}),
    "averaged-2": Kind("averaged", pair, y_dim=2),
    "multivariate-1": Kind("multivariate", real),
    "multivariate-3": Kind("multivariate", triple, y_dim=3),
    "joint": Kind("joint", triple, y_dim=3),
    "averaged-partial": Kind("averaged", partial, y_dim=3),
    "joint-partial": Kind("joint", partial, y_dim=3),
    "poisson": Kind("poisson", count),
    "exponential": Kind("exponential", duration),
    "gamma": Kind("gamma", duration),
    "bernoulli": Kind("bernoulli", coin, warms_up=False),
    "categorical": Kind("categorical", symbol, {"classes": 4}, classes=4, warms_up=False),
    "linear": Kind("linear", slope, x_dim=1),
    "linear-3": Kind("linear", slopes, x_dim=3, y_dim=2),
    "autoregressive": Kind("autoregressive", real),
    "autoregressive-0": Kind("autoregressive", real, {"order": 0}),
    "autoregressive-all": Kind("autoregressive", pair,
                               {"order": 2, "trend": True, "season": 4}, y_dim=2),
    "fleet": Kind("depot", slopes, x_dim=3, y_dim=2),
    "fleet-partial": Kind("yard", partial, y_dim=3),
    "alpaca": Kind("pump", slopes, x_dim=3, y_dim=2, warms_up=False),
    "alpaca-mixture": Kind("plant", slopes, x_dim=3, y_dim=2, warms_up=False),
    "pcoc": Kind("leaf", leaf, x_dim=2, classes=3, warms_up=False),
    "lstm": Kind("walk", pair, x_dim=1, y_dim=2, warms_up=False),
}  # fmt: skip
# Each is as good as another one, which is here as well.
ALIKE = {
    "gaussian-3", "averaged-2", "averaged-partial", "fleet-partial", "joint-partial",
    "multivariate-1", "autoregressive-0", "autoregressive", "linear", "alpaca",
    "multivariate-3",
}  # fmt: skip


# Labels of models by the number that they stand for.
LABELS = {
    "gaussian": float,
    "averaged": float,
    "poisson": lambda y: float(round(abs(y))),
    "gamma": lambda y: abs(y) + 0.125,
    "exponential": lambda y: abs(y),
    "bernoulli": lambda y: float(y > 1),
    "categorical": lambda y: float(min(int(abs(y)), 3)),
    "multivariate": lambda y: [y, y / 2 + math.sin(99 * y), math.sin(77 * y)],
    "joint": lambda y: [y, math.sin(99 * y) if math.sin(55 * y) < 0.99 else None],
    "linear": float,
    "autoregressive": lambda y: [y, y - math.sin(99 * y)],
}
# Inputs, in the same way, of those that take them.
INPUTS = {"linear": lambda y: [math.sin(99 * y), math.cos(33 * y)]}
NEEDED = {"categorical": {"classes": 4}}  # settings


def kinds(quick):
    """Names of all kinds, of which some are quick."""
    return [pytest.param(k, marks=[] if k in quick else pytest.mark.slow) for k in KINDS]


def series(kind, length, seed=1, plain=False):
    """Observations with two shifts; unless `plain` some have no label, some come irregularly."""
    rng = random.Random(seed)
    observations = []
    for i in range(length):
        x = [rng.gauss(0, 1) for _ in range(kind.x_dim)] or None
        y = kind.label(rng, LEVELS[3 * i // length], x)
        odd = Observation(
            y=None if rng.random() < 0.05 else y,
            x=x,
            elapsed=rng.choice([1.0, 1.0, 2.5]),
            changepoint=0.2 if rng.random() < 0.03 else None,
            time=f"2024-01-01T00:00:{i % 60:02}Z",
        )
        observations.append(Observation(y=y, x=x) if plain else odd)
    return observations


def configure(bench, stream, kind, status=201, **more):
    settings = {"model": kind.model, "max_hypotheses": 20, "outlier_rate": 0.01, **kind.settings}
    return bench.ask(Configure(stream, {**settings, **more}), status=status)


def amend(folder, **fields):
    """Set fields of the description of an artifact."""
    path = folder / "model.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def publish(models):
    """Write the artifacts that KINDS names, with random weights, into a folder of models."""
    g = torch.Generator().manual_seed(3)

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    def mlp(*sizes):
        layers = list(zip(sizes[:-1], sizes[1:], strict=True))
        weights = {f"encoder.{i}.weight": normal(b, a) for i, (a, b) in enumerate(layers)}
        biases = {f"encoder.{i}.bias": normal(b) for i, (_, b) in enumerate(layers)}
        return weights | biases

    def save(name, kind, x_dim, y_dim, tensors, lags=0):
        into = x_dim + lags * y_dim
        encoder = {"type": "mlp", "layers": [into, 8, 6], "activation": "tanh"}
        dims = {"x_dim": x_dim, "y_dim": y_dim, "feature_dim": 6, "lags": lags}
        description = {"kind": kind, **dims, "hazard": [0.02, 0.05], "encoder": encoder}
        artifact.save(models / name / "1", description, {**mlp(into, 8, 6), **tensors})

    save("pump", "alpaca", 3, 2, {
        "prior_mean": 0.3 * normal(6, 2), "prior_covariance_factor": 0.5 * normal(6, 6),
        "log_noise_variance": normal(2),
    })  # fmt: skip
    save("plant", "alpaca-mixture", 3, 2, {
        "prior_logits": normal(3), "prior_mean": 0.5 * normal(3, 6, 2),
        "prior_covariance_factor": 0.5 * normal(3, 6, 6), "log_noise_variance": normal(3, 2),
    })  # fmt: skip
    save("leaf", "pcoc", 2, 3, {
        "prior_mean": normal(3, 6), "log_prior_precision": normal(3, 6),
        "log_noise_variance": normal(3, 6), "log_dirichlet": normal(3),
    })  # fmt: skip
    save("walk", "lstm", 1, 2, {
        "lstm.weight_ih": normal(20, 8), "lstm.weight_hh": normal(20, 5),
        "lstm.bias_ih": normal(20), "lstm.bias_hh": normal(20),
        "decoder.0.weight": normal(7, 11), "decoder.0.bias": normal(7),
        "decoder.1.weight": normal(4, 7), "decoder.1.bias": normal(4),
    })  # fmt: skip
    for name, x_dim, y_dim in (("depot", 3, 2), ("yard", 0, 3)):
        save(name, "fleet", x_dim, y_dim, {
            "prior_mean": 0.3 * normal(6, y_dim), "prior_covariance_factor": 0.5 * normal(6, 6),
            "log_noise_alpha": normal(y_dim).abs(), "log_noise_beta": normal(y_dim),
        }, lags=2)  # fmt: skip
