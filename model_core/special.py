"""Distribution functions that torch lacks, and quantiles of mixtures. Float64 throughout."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from model_core.predictive import Components, Mixture

SHIFTS = 5  # recurrence steps that take df up to where the normal expansion is exact to 2e-10
EXACT_COUNTS = 64  # counts below are summed one by one
COUNT_SHIFTS = 24  # the same recurrence for larger counts
COUNT_STEPS = 500  # of a count's quantile; a dozen are needed
PLAIN_STEPS = 8  # of a quantile that is easily found
NEWTON_STEPS = 40  # of a quantile; then its bracket is halved, at most 120 times
STEPS = 160
TOLERANCE = 1e-6  # last Newton step, in scales of the narrowest component; its error is squared


def student_t_table(df: Tensor) -> tuple[Tensor, ...]:
    """What `student_t` needs of its degrees of freedom, to be asked about many values."""
    a = 0.5 * df
    log_norm = torch.lgamma(a + 0.5) - torch.lgamma(a) - 0.5 * torch.log(df * math.pi)
    hill = df + (2 * SHIFTS - 0.5)
    growth = ((a + j + 0.5) / (a + j + 1) for j in range(SHIFTS - 1))
    return df, log_norm, a + 0.5, hill, 48 * hill.square(), *growth


def student_t(t: Tensor, table: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """CDF of Student's t, to 2e-10 for df >= 1, and its density.

    The tail is `I_x(df/2, 1/2) / 2` with `x = df / (df + t^2)`. `I_x(a, b) = I_x(a+1, b) +
    x^a (1-x)^b / (a B(a, b))` moves `df` up by 2 at a time; there Hill's normalising expansion
    (Hill 1970, *CACM* algorithm 395) is exact enough. The first term is `2 |t| / df` densities.
    """
    df, log_norm, half, hill, hill_b, *growth = table
    t = t.clamp(-1e150, 1e150)  # its square must not overflow
    ratio = t * t / df
    log1p_ratio = torch.log1p(ratio)
    x = torch.reciprocal(1 + ratio)
    density = torch.exp(torch.addcmul(log_norm, half, log1p_ratio, value=-1))
    one = torch.ones((), dtype=t.dtype, device=t.device)
    terms = one
    for each in reversed(growth):
        terms = torch.addcmul(one, x, each * terms)
    tail = t.abs() * density / df * terms
    y = hill * log1p_ratio
    poly = (((-0.4 * y - 3.3) * y - 24) * y - 85.5) / torch.addcmul(hill_b + 100, y, y, value=0.8)
    z = ((poly + y + 3) / hill_b + 1) * y.sqrt()
    tail = torch.add(tail, torch.erfc(z * 0.5**0.5), alpha=0.5)
    return torch.where(t > 0, 1 - tail, tail), density


def negative_binomial_log_mass(count: Tensor, shape: Tensor, rate: Tensor) -> Tensor:
    """Log mass at a count, -inf below zero; as exact for large counts and shapes as for small.

    Differences of lgamma lose 0.03 at a shape of 1e13. With Stirling's formula the large terms
    cancel on paper and its errors remain (Loader 2000, *Fast and accurate computation of binomial
    probabilities*).
    """
    k = count.clamp(min=1)
    over, total = k - rate, k + shape
    log_mass = shape * torch.log1p(over / (shape + rate))
    log_mass = log_mass - k * torch.log1p(shape * over / (total * rate))
    log_mass = log_mass + 0.5 * torch.log(shape / (2 * math.pi * total * k))
    log_mass = log_mass + _stirling_error(total) - _stirling_error(shape) - _stirling_error(k)
    at_zero = -shape * torch.log1p(rate / shape)
    return torch.where(count < 0, -torch.inf, torch.where(count < 1, at_zero, log_mass))


def _stirling_error(x: Tensor) -> Tensor:
    """`lgamma(x)` less Stirling's formula for it."""
    small, inverse = x.clamp(max=16), 1 / x.clamp(min=16)
    exact = torch.lgamma(small) - (small - 0.5) * torch.log(small) + small
    square = inverse.square()
    series = inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680)))
    return torch.where(x < 16, exact - 0.5 * math.log(2 * math.pi), series)


def negative_binomial_cdf(value: Tensor, shape: Tensor, rate: Tensor) -> Tensor:
    """CDF of a negative binomial: summed below 64, beyond by a normal good to 5e-6.

    `P(X <= k) = I_q(shape, k + 1)` with `q = shape / (shape + rate)`; the recurrence of
    `student_t` moves the shape up to where Peizer and Pratt's (1968) normal is good.
    """
    value = (value + 0 * (shape + rate)).floor()
    small = value < EXACT_COUNTS
    index = torch.where(small, value, 0.0).clamp(min=0).long()
    table = negative_binomial_table(shape, rate, int(index.max().item()) + 1)
    table = table.expand(*value.shape, -1)
    exact = table.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    large = exact if bool(small.all()) else torch.where(small, exact, _large(value, shape, rate))
    return torch.where(value < 0, 0.0, large)


def negative_binomial_table(shape: Tensor, rate: Tensor, counts: int) -> Tensor:
    """Cumulative probabilities (..., counts) of 0, 1, ..., by the recurrence of the masses."""
    k = torch.arange(1, counts, dtype=shape.dtype, device=shape.device)
    grow = (
        torch.log((k - 1 + shape.unsqueeze(-1)) / k) + torch.log(rate / (shape + rate))[..., None]
    )
    first = -(shape * torch.log1p(rate / shape)).unsqueeze(-1)
    log_mass = torch.cat((first, first + grow.cumsum(-1)), -1)
    return log_mass.exp().cumsum(-1).clamp(max=1.0)


def _large(value: Tensor, shape: Tensor, rate: Tensor) -> Tensor:
    k = value.clamp(0, 1e150)
    q, p = shape / (shape + rate), rate / (shape + rate)
    term = torch.exp(negative_binomial_log_mass(k + 1, shape, rate)) * (k + 1) / shape
    total = torch.zeros_like(term)
    for j in range(COUNT_SHIFTS):
        total = total + term
        term = term * q * ((shape + j + k + 1) / (shape + j + 1))
    return (total + _peizer_pratt(k, shape + COUNT_SHIFTS, p, q)).clamp(0.0, 1.0)


def _peizer_pratt(k: Tensor, shape: Tensor, p: Tensor, q: Tensor) -> Tensor:
    n = shape + k
    # k + 2/3 - (n + 1/3) p, without the large terms where p is nearly 1
    d = torch.where(q < 0.5, 1 / 3 - shape + (n + 1 / 3) * q, k + 2 / 3 - (n + 1 / 3) * p)
    d = d + 0.02 * (q / (k + 1) - p / shape + (q - 0.5) / (n + 1))
    s, t = k + 0.5, shape - 0.5
    spread = 1 + q * _g(s / (n * p)) + p * _g(t / (n * q))
    z = d * (spread / ((n + 1 / 6) * p * q)).clamp(min=0).sqrt()
    cumulative: Tensor = torch.special.ndtr(z)
    return cumulative


def _g(x: Tensor) -> Tensor:
    x = x.clamp(min=1e-12)
    near = (1 - x).abs() < 1e-4
    safe = torch.where(near, 0.5, x)
    exact = (1 - safe.square() + 2 * safe * safe.log()) / (1 - safe).square()
    return torch.where(near, (1 - x) / 3, exact)


def mixture_quantile(mixture: Mixture, levels: Tensor, tolerance: float) -> Tensor:
    """Quantiles (B, Q, d) of a continuous mixture.

    Newton's method from the quantile of a normal; where that has not arrived soon, again inside
    a bracket. A row that has arrived stays: no answer depends on its batch-mates.
    """
    centre, spread, narrowest = _centre(mixture)
    start: Tensor = centre + spread * torch.special.ndtri(levels).reshape(1, -1, 1)
    batch, count, outputs = start.shape

    def rows(value: Tensor) -> Tensor:
        """(B, k, d) as one row of k for each of the B Q d quantiles."""
        wide = value.transpose(1, 2).unsqueeze(1).expand(-1, count, -1, -1)
        return wide.reshape(batch * count * outputs, -1)

    weight = rows(mixture.log_weight.exp().unsqueeze(-1).expand(-1, -1, outputs))
    goal = levels.reshape(1, -1, 1).expand(start.shape).reshape(-1, 1)
    table = [rows(each) for each in mixture.components.table()]
    fixed = [goal, rows(spread), tolerance * rows(narrowest), weight, *table]
    x, done = _plain(mixture.components, start.reshape(-1, 1), *fixed)
    if not bool(done.all()):
        left = (~done).nonzero().squeeze(-1)
        again = start.reshape(-1, 1)[left]
        x[left] = _bracketed(mixture.components, again, [each[left] for each in fixed])
    return x.reshape(start.shape)


def _plain(
    family: Components,
    x: Tensor,
    goal: Tensor,
    spread: Tensor,
    small: Tensor,
    weight: Tensor,
    *table: Tensor,
) -> tuple[Tensor, Tensor]:
    """A few plain Newton steps; returns where they led and which rows (N,) have arrived."""
    done = torch.zeros_like(x, dtype=torch.bool)
    for _ in range(PLAIN_STEPS):
        cdf, density = family.evaluate(x, table)
        excess = (weight * cdf).sum(-1, keepdim=True) - goal
        move = excess / (weight * density).sum(-1, keepdim=True)
        x = torch.where(done, x, x - move)
        done = done | (move.abs() < small)
        if bool(done.all()):
            break
    return x, done.squeeze(-1)


def _bracketed(family: Components, x: Tensor, fixed: list[Tensor]) -> Tensor:
    """Newton's method kept inside a bracket, which is halved where it does not get on."""
    work = [x, torch.full_like(x, -torch.inf), torch.full_like(x, torch.inf), *fixed]
    answer, left = x.clone(), torch.arange(len(x), device=x.device)
    for step in range(STEPS):
        work[:3], done = _newton(family, step, *work)
        answer[left] = work[0]
        keep = (~done).nonzero().squeeze(-1)
        if len(keep) == 0:
            break
        if len(keep) < len(left):
            left, work = left[keep], [each[keep] for each in work]
    return answer


def _newton(
    family: Components,
    step: int,
    x: Tensor,
    low: Tensor,
    high: Tensor,
    goal: Tensor,
    spread: Tensor,
    small: Tensor,
    weight: Tensor,
    *table: Tensor,
) -> tuple[list[Tensor], Tensor]:
    """One step for each row; returns the new `[x, low, high]` and which rows have arrived."""
    cdf, density = family.evaluate(x, table)
    excess = (weight * cdf).sum(-1, keepdim=True) - goal
    density = (weight * density).sum(-1, keepdim=True)
    low, high = torch.where(excess < 0, x, low), torch.where(excess > 0, x, high)
    move = -excess / density.clamp(min=1e-300)
    limit = 4 * spread * 2.0**step  # far quantiles of heavy tails are found by doubling
    new = x + torch.maximum(torch.minimum(move, limit), -limit)
    new = torch.where(new == x, x - limit * excess.sign(), new)  # where x cannot move so little
    middle = 0.5 * (low + high)
    bounded = torch.isfinite(middle)
    bisect = ((new <= low) | (new >= high) | (step >= NEWTON_STEPS)) & bounded
    met, shut = excess.abs() < 2e-15 * goal, bounded & ((middle == low) | (middle == high))
    near = move.abs() < small
    new = torch.where(shut, high, torch.where(bisect, middle, new))
    new = torch.where(met, x, torch.where(near, x + move, new))
    return [new, low, high], (met | near | shut).squeeze(-1)


def _centre(mixture: Mixture) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, spread around it, and scale of the narrowest component, each (B, 1, d) and finite.

    A component's scale is taken from the height of its peak: its variance may not exist.
    """
    weight = mixture.log_weight.exp().unsqueeze(-1)
    mean, each = mixture.mean().unsqueeze(1), mixture.components.mean()
    scale = torch.exp(-mixture.components.log_density(each)) / math.sqrt(2 * math.pi)
    present = weight > 0
    between = torch.where(present, weight * (each - mean).square(), 0.0).sum(1, keepdim=True)
    # The average scale, not its square's: one wide component of little weight hardly moves it.
    within = torch.where(present, weight * scale, 0.0).sum(1, keepdim=True)
    narrowest = torch.where(present, scale, torch.inf).amin(1, keepdim=True)
    return mean, (between + within.square()).sqrt(), narrowest


def count_quantile(mixture: Mixture, levels: Tensor) -> Tensor:
    """Smallest count (B, Q, d) whose cumulative probability reaches each level.

    From the quantile of a normal outwards until it is bracketed, then false position and halving
    in turn.
    """
    goal = levels.reshape(1, -1, 1)
    each = mixture.components.rebuilt(*(p.unsqueeze(2) for p in mixture.components.parameters()))
    weight = mixture.log_weight.exp()[..., None, None]
    mean, spread, _ = _centre(mixture)
    x = (mean + spread * torch.special.ndtri(levels).reshape(1, -1, 1)).floor().clamp(min=0)
    # Each end of the bracket with the probability by which it exceeds the level.
    low, high = torch.full_like(x, -1.0), torch.full_like(x, torch.inf)
    below, above = -goal.expand_as(x), 1 - goal.expand_as(x)
    for step in range(COUNT_STEPS):
        # Sums of masses may end a rounding error below a level that they meet.
        excess = (weight * each.cdf(x.unsqueeze(1))).sum(1) - goal + 1e-12
        reached = excess >= 0
        low, below = torch.where(reached, low, x), torch.where(reached, below, excess)
        high, above = torch.where(reached, x, high), torch.where(reached, excess, above)
        part = below / (below - above) if step % 2 else 0.5
        inside = (low + part * (high - low)).floor()
        inside = torch.minimum(torch.maximum(inside, low + 1), high - 1)
        unbounded = torch.isinf(high)
        if not (unbounded | ((inside > low) & (inside < high))).any():  # floats may be far apart
            break
        far = (0.25 * spread + 1).floor() * 2.0**step
        x = torch.where(low < 0, (high - far).clamp(min=0), inside)
        x = torch.where(unbounded, low + far, x)
    return high
