"""Series of one regime, drawn from a model's own prior, and series that shift once.

A regime is drawn label by label: each from the predictive of the labels before it, which is then
told of it. By exchangeability these are draws of a parameter from the prior and of labels under it
(Blackwell and MacQueen 1973), and a model is asked for nothing but what it offers anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from model_core.errors import CannotSimulate
from model_core.filter import make_prior
from model_core.lazy import Tensor, torch
from model_core.upm.base import UnderlyingModel

COUNT = 10.0  # location that rates of counts are drawn around
# Labels of which the deviation is taken; how many of it labels go.
EARLY = 50
FARTHEST = 100.0
ATTEMPTS = 20

Inputs = Callable[[int, int, "torch.Generator"], Tensor]  # series, observations: (B, T, x_dim)


class Drawn(NamedTuple):
    """Series of one regime: x (B, T, x_dim) or None, y (B, T, d).

    mean, deviation: (B, T, d) of the predictive of each label, all labels before known and the
    regime certain; nan for classes.
    """

    x: Tensor | None
    y: Tensor
    mean: Tensor
    deviation: Tensor

    def at(self, rows: Tensor) -> Drawn:
        """Some of the series."""
        x = None if self.x is None else self.x[rows]
        return Drawn(x, self.y[rows], self.mean[rows], self.deviation[rows])


def location_of(model: UnderlyingModel) -> float:
    """Location of the regimes that are drawn of a model that is scaled by its stream; scale 1."""
    return {"count": COUNT, "positive": 1.0}.get(model.label, 0.0)


def check(model: UnderlyingModel) -> None:
    """Raise CannotSimulate for a model whose regimes are not labels alone."""
    one = torch.ones(1, model.scaled, dtype=torch.float64)
    prior = make_prior(model, one, one)
    x = torch.zeros(1, model.x_dim, dtype=torch.float64) if model.x_dim else None
    if model.input_log_prob(prior.stats, model.encode(x, prior.context)) is not None:
        raise CannotSimulate(
            f"cannot simulate quiet data for a model of kind {model.kind!r}: its regimes "
            "depend on the inputs, of which it knows the features only"
        )


def draw(
    model: UnderlyingModel,
    series: int,
    steps: int,
    generator: torch.Generator,
    inputs: Inputs | None = None,
) -> Drawn:
    """Draw `series` regimes of `steps` observations; raises CannotSimulate.

    Inputs are standard normal, in the model's scaling, unless given. Regimes that run away, as an
    autoregression with a root beyond one does, are drawn anew: no stream of a user's does.
    """
    check(model)
    parts: list[Drawn] = []
    count = 0
    for _ in range(ATTEMPTS):
        part = _draw(model, series, steps, generator, inputs)
        part = part.at(_stays(part.y, model.label))
        parts.append(part)
        count += len(part.y)
        if count >= series:
            return _joined(parts).at(torch.arange(series))
    raise CannotSimulate(
        f"cannot simulate quiet data: {count} of {ATTEMPTS * series} regimes drawn from the "
        f"prior stay within {FARTHEST:g} deviations"
    )


def _draw(
    model: UnderlyingModel,
    series: int,
    steps: int,
    generator: torch.Generator,
    inputs: Inputs | None,
) -> Drawn:
    where = torch.full((series, model.scaled), location_of(model), dtype=torch.float64)
    prior = make_prior(model, where, torch.ones_like(where))
    stats = prior.stats
    context = prior.context
    one = torch.ones(series, 1, dtype=torch.float64)
    x = (inputs or normal_inputs(model))(series, steps, generator) if model.x_dim else None
    labels = []
    means = []
    deviations = []
    for t in range(steps):
        phi = model.encode(None if x is None else x[:, t], context)
        predictive = model.predictive(stats, phi)
        y = predictive.sample(generator).squeeze(1)
        mean = deviation = torch.full_like(y, torch.nan)
        if model.label != "class":
            mean = predictive.mean().squeeze(1)
            deviation = predictive.variance().squeeze(1).sqrt()
        labels.append(y)
        means.append(mean)
        deviations.append(deviation)
        stats = model.update(stats, phi, y, one)
        context = model.remember(context, y, one.squeeze(-1) > 0)
    return Drawn(x, torch.stack(labels, 1), torch.stack(means, 1), torch.stack(deviations, 1))


def _stays(y: Tensor, label: str) -> Tensor:
    """Which series keep near what their first labels were."""
    if label != "real":
        return torch.arange(len(y))
    first = y[:, :EARLY]
    spread = first.std(1, keepdim=True) if first.shape[1] > 1 else torch.ones_like(first)
    near = (y - first.mean(1, keepdim=True)).abs() <= FARTHEST * spread
    return near.flatten(1).all(-1).nonzero().squeeze(-1)


def _joined(parts: list[Drawn]) -> Drawn:
    xs = [part.x for part in parts if part.x is not None]
    return Drawn(
        x=torch.cat(xs) if xs else None,
        y=torch.cat([part.y for part in parts]),
        mean=torch.cat([part.mean for part in parts]),
        deviation=torch.cat([part.deviation for part in parts]),
    )


def normal_inputs(model: UnderlyingModel) -> Inputs:
    """Inputs that are independent and standard normal, as the model has them scaled."""
    from model_core.upm.learned import Learned  # torch: a second or more

    def drawn(series: int, steps: int, generator: torch.Generator) -> Tensor:
        x = torch.randn(series, steps, model.x_dim, generator=generator, dtype=torch.float64)
        if isinstance(model, Learned):
            return model.x_offset + model.x_scale * x
        return x

    return drawn


def windows(x: Tensor) -> Inputs:
    """Inputs of a user's own: windows of sequences (N, T, x_dim), one after another."""

    def drawn(series: int, steps: int, generator: torch.Generator) -> Tensor:
        length = x.shape[1]
        picked = torch.randint(len(x), (series, -(-steps // length)), generator=generator)
        return x[picked].flatten(1, 2)[:, :steps].to(torch.float64)

    return drawn


def shifted(drawn: Drawn, label: str, at: int, size: float, generator: torch.Generator) -> Drawn:
    """The same series, the labels from observation `at` on moved up by `size` deviations.

    Counts stay counts and durations positive: to a count one of such a mean is added, a duration
    is stretched.
    """
    y = drawn.y.clone()
    later = slice(at, None)
    by = size * drawn.deviation[:, later]
    if label == "count":
        y[:, later] += torch.poisson(by, generator=generator)
    elif label == "positive":
        y[:, later] *= 1 + by / drawn.mean[:, later]
    else:
        y[:, later] += by
    return drawn._replace(y=y)
