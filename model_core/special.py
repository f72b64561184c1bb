"""Distribution functions that torch lacks. Float64 throughout."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from model_core.transfer import on_host

SHIFTS = 5  # recurrence steps that take df up to where the normal expansion is exact to 2e-10
EXACT_COUNTS = 64  # counts below are summed one by one
COUNT_SHIFTS = 24  # the same recurrence for larger counts


def student_t_norm(df: Tensor) -> Tensor:
    """Log density of Student's t at zero."""
    a = 0.5 * df
    return torch.lgamma(a + 0.5) - torch.lgamma(a) - 0.5 * torch.log(df * math.pi)


def student_t_table(df: Tensor, log_norm: Tensor) -> tuple[Tensor, ...]:
    """What `student_t` needs of its degrees of freedom, to be asked about many values."""
    a = 0.5 * df
    each = 1 / df
    terms = [each]
    for j in range(SHIFTS - 1):
        each = each * ((a + (j + 0.5)) / (a + (j + 1)))
        terms.append(each)
    hill = df + (2 * SHIFTS - 0.5)
    b = 48 * hill.square()
    root = 0.5**0.5  # erfc's argument is the normal's divided by it
    return log_norm, a + 0.5, hill, b + 100, root / b, root + 3 * root / b, *terms


def student_t(t: Tensor, table: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """CDF of Student's t, to 2e-10 for df >= 1, and its density.

    The tail is `I_x(df/2, 1/2) / 2` with `x = df / (df + t^2)`. `I_x(a, b) = I_x(a+1, b) +
    x^a (1-x)^b / (a B(a, b))` moves `df` up by 2 at a time; there Hill's normalising expansion
    (Hill 1970, *CACM* algorithm 395) is exact enough. The first term is `2 |t| / df` densities.
    """
    log_norm, half, hill, hill_b, slope, level, *terms = table
    t = t.clamp(-1e150, 1e150)  # its square must not overflow
    square = t * t
    ratio = square * terms[0]
    log1p_ratio = torch.log1p(ratio)
    x = torch.reciprocal(1 + ratio)
    density = torch.exp(torch.addcmul(log_norm, half, log1p_ratio, value=-1))
    series = terms[-1]
    for each in reversed(terms[:-1]):
        series = torch.addcmul(each, x, series)
    y = hill * log1p_ratio
    poly = ((-0.4 * y - 3.3) * y - 24) * y - 85.5
    bend = torch.addcdiv(y, poly, torch.addcmul(hill_b, y, y, value=0.8))
    # Signed, so that a small lower tail is as exact as it is small.
    z = torch.copysign(torch.addcmul(level, bend, slope) * y.sqrt(), t)
    return torch.addcmul(0.5 * torch.erfc(-z), t * density, series, value=-1), density


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
    # On a device, room for any: to look at the largest would have the host wait.
    counts = int(index.max().item()) + 1 if on_host(index) else EXACT_COUNTS
    table = negative_binomial_table(shape, rate, counts)
    table = table.expand(*value.shape, -1)
    exact = table.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    if on_host(small) and bool(small.all()):
        large = exact
    else:
        large = torch.where(small, exact, _large(value, shape, rate))
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
