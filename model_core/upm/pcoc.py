"""PCOC: Bayesian Gaussian discriminant analysis on learned features (MOCA, sec. 4 and app. B.3).

`y ~ Cat(p)`, `p ~ Dir(alpha)`, `z | y ~ N(m_y, Sigma_y)`, `m_y ~ N(mu_y, Lambda_y^-1)`, all
covariances diagonal. What a regime has taught is running sums; the posterior is computed from them
where it is needed, so that nothing drifts and many run lengths come from one product.

Of every start at once (`densities`): what a window says of a class depends only on the window's
observations of that class: on the first of them, `u`, and the last, `v`. There are about `T^2 / 2J`
such pairs, and each is asked about the `J` or so inputs that follow before the class is seen again.
So all densities `log p(z_t | y = j, rows s..t-1)` are those of `T^2 / 2` pairs `(u, t)`, and `T J`
more of classes not seen yet, instead of `T^2 J / 2`. Deviations from the prior's mean are summed,
not features: sums of these lose digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from model_core.components import Categorical
from model_core.tensor_ops import maths
from model_core.upm.base import OUTLIER_SPREAD, Densities, Stats
from model_core.upm.learned import Encoded

_DISCRIMINANT = maths("discriminant")
ROWS = 4096  # rows whose squares are summed at once: they stay in the processor's cache


class PcocStats(NamedTuple):
    """counts: (B, S, J) observations of each class; sums: (B, S, J, n) of their features."""

    counts: Tensor
    sums: Tensor


@dataclass(frozen=True, kw_only=True)
class Pcoc(Encoded):
    """Classifier whose inputs tell of the regime, before the label does (paper, eq. 2).

    prior_mean, prior_precision, noise_variance: (J, n), of features given a class. dirichlet: (J,)
    concentrations. Labels are class indices; inputs are scaled by `(x - offset) / scale`, and
    `log p(x | eta)` is the density of their features. A missing label leaves the statistics alone,
    but its input still moves the belief.
    """

    prior_mean: Tensor
    prior_precision: Tensor
    noise_variance: Tensor
    dirichlet: Tensor
    hazard: float | tuple[float, ...] = 0.01
    outlier_rate: float = 0.0
    kind = "pcoc"
    in_place = ("sums",)
    label = "class"

    @property
    def classes(self) -> int:  # type: ignore[override]
        """Number of classes."""
        return len(self.dirichlet)

    def prior(self, location: Tensor, scale: Tensor) -> PcocStats:
        """Nothing seen, the same for every stream."""
        batch = len(location)
        classes, features = self.prior_mean.shape
        like = self.prior_mean
        return PcocStats(
            like.new_zeros(batch, 1, classes), like.new_zeros(batch, 1, classes, features)
        )

    def encode(self, x: Tensor | None, context: Tensor) -> Tensor:
        """Features (B, n) of scaled inputs."""
        return self.encoded(x)

    def log_joint(self, stats: PcocStats, phi: Tensor, spread: float = 1.0) -> Tensor:
        """`log p(z, y | eta)` (..., J) of every class, its variances `spread` times as large.

        phi: (..., n), which broadcasts over `stats.counts` (..., J) less its last axis.
        """
        terms: Tensor = _DISCRIMINANT.surprise(
            phi.unsqueeze(-2),
            self.prior_precision,
            self.prior_precision * self.prior_mean,
            self.noise_variance,
            1 / self.noise_variance,
            stats.counts.unsqueeze(-1),
            stats.sums,
            spread,
        )
        size = math.log(2 * math.pi) * phi.shape[-1]
        return self._log_class(stats) - 0.5 * (terms.sum(-1) + size)

    def _log_class(self, stats: PcocStats) -> Tensor:
        """`log p(y | eta)` (..., J), without the input."""
        weight = self.dirichlet + stats.counts
        log_class: Tensor = _DISCRIMINANT.log_class(weight, weight.sum(-1, keepdim=True))
        return log_class

    def input_log_prob(self, stats: PcocStats, phi: Tensor | None) -> Tensor:
        """`log p(z | eta)` (B, S), summed over the classes."""
        return self.log_joint(stats, self.required(phi).unsqueeze(1)).logsumexp(-1)

    def predictive(self, stats: PcocStats, phi: Tensor | None) -> Categorical:
        """Class probabilities given the input: Bayes' rule."""
        return Categorical(self.log_joint(stats, self.required(phi).unsqueeze(1)).log_softmax(-1))

    def outlier(self, prior: PcocStats, phi: Tensor | None) -> Categorical:
        """The prior's class probabilities, whatever the input."""
        return Categorical(self._log_class(prior))

    def outlier_input_log_prob(self, prior: PcocStats, phi: Tensor | None) -> Tensor:
        """`log p(z)` (B, 1) under the prior with ten times its predictive variances."""
        features = self.required(phi).unsqueeze(1)
        return self.log_joint(prior, features, OUTLIER_SPREAD).logsumexp(-1)

    def update(self, stats: PcocStats, phi: Tensor | None, y: Tensor, weight: Tensor) -> PcocStats:
        """Add to the label's class, as `weight` of an observation (paper, app. B.3)."""
        added = weight.unsqueeze(-1) * self.chosen(y).unsqueeze(1)
        features = self.required(phi)[:, None, None]
        return PcocStats(stats.counts + added, stats.sums + added.unsqueeze(-1) * features)

    def every_joint(
        self, phi: Tensor, y: Tensor, weight: Tensor, longest: int | None = None
    ) -> Tensor:
        """`log p(z_t, y = j | rows s..t-1)` (B, T, J, T) by [s, j, t].

        phi: (B, T, n). y: (B, T, 1). weight: (B, T), 0 or 1: whether a row is ever absorbed. Only
        windows of at most `longest` rows are asked for; anything stands elsewhere.
        """
        classes = Classes(self.prior_mean, self.prior_precision, self.noise_variance)
        present = weight > 0
        label = torch.where(present, y.squeeze(-1), 0.0).long()
        log_densities = densities(classes, phi, label, present, longest)
        concentration = self.dirichlet.unsqueeze(-1) + log_densities.counts()
        log_class = _DISCRIMINANT.log_class(concentration, concentration.sum(2, keepdim=True))
        joint: Tensor = log_densities.by_start() + log_class
        return joint

    def every_start(
        self, prior: Stats, phi: Tensor | None, y: Tensor, weight: Tensor, longest: int | None
    ) -> Densities:
        """Every density that differs from all others once: the prior knows of no observation."""
        label = torch.where(weight > 0, y.squeeze(-1), 0.0).long()
        joint = self.every_joint(self.required(phi), y, weight, longest)
        evidence = joint.logsumexp(2)
        index = label[:, None, None].expand(-1, evidence.shape[1], -1, -1)
        return Densities(joint.gather(2, index).squeeze(2) - evidence, evidence)

    def chosen(self, y: Tensor) -> Tensor:
        """Class indices (..., 1) as indicators (..., J)."""
        return (y == torch.arange(self.classes, device=y.device)).to(self.dirichlet.dtype)


# --- every start at once ------------------------------------------------------------------------


class Classes(NamedTuple):
    """mean, precision: (J, n) of the prior on a class's mean. noise: (J, n) variances."""

    mean: Tensor
    precision: Tensor
    noise: Tensor


class Density(NamedTuple):
    """`log p(z_t | y = j, rows s..t-1)` of all starts, each different one once.

    value: (Q,). row: (B, T, T) by [u, t], which of them is that of the class of `u`, first seen in
    the window at `u`; -1 for none. unseen: (B, J, T), that of a class not seen. following:
    (B, T, J), the first observation of a class from `s` on, T for none. before: (B, J, T), how
    many observations of a class there are before `t`.
    """

    value: Tensor
    row: Tensor
    unseen: Tensor
    following: Tensor
    before: Tensor

    def by_start(self) -> Tensor:
        """By [s, j, t]: (B, T, J, T); anything where `s > t`."""
        t = torch.arange(self.row.shape[-1], device=self.row.device)
        batch, steps, classes = self.following.shape
        first = self.following.unsqueeze(-1)
        index = first.clamp(max=steps - 1).flatten(1, 2).expand(-1, -1, steps)
        numbers = self.row.gather(1, index).reshape(batch, steps, classes, -1)
        # A window that does not count, as it is too long, has no row either.
        row = torch.where((first < t) & (numbers >= 0), numbers, self.unseen.unsqueeze(1))
        return self.value.gather(0, row.flatten()).reshape(row.shape)

    def counts(self) -> Tensor:
        """How often each class was seen by [s, j, t]: (B, T, J, T), 0 where `s > t`."""
        return (self.before.unsqueeze(1) - self.before.mT.unsqueeze(-1)).clamp(min=0)


class _Pairs(NamedTuple):
    """What a window knows of a class: it was seen from `first` to `last`, `count` times; (P,) each.

    number: (B, T, T), which of them that of [first, last] is.
    """

    sequence: Tensor
    first: Tensor
    last: Tensor
    label: Tensor
    count: Tensor  # type: ignore[assignment]
    number: Tensor


class _Squares(torch.autograd.Function):
    """`sum_n (phi - mean)^2 * inverse` of rows (Q,) that say which phi and which mean.

    In parts, forward and again backward, so that nothing of size Q * n is ever kept.
    """

    @staticmethod
    def forward(
        ctx: Any, phi: Tensor, mean: Tensor, inverse: Tensor, asked: Tensor, condition: Tensor
    ) -> Tensor:
        """phi: (M, n). mean, inverse: (P, n). asked, condition: (Q,) rows of phi and of mean."""
        ctx.save_for_backward(phi, mean, inverse, asked, condition)
        squares = phi.new_empty(len(asked))
        parts = _parts(squares, asked, condition)
        for part, which, of in parts:
            error = phi.index_select(0, which).sub_(mean.index_select(0, of))
            torch.sum(error.square_().mul_(inverse.index_select(0, of)), -1, out=part)
        return squares

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of phi, mean and inverse."""
        phi, mean, inverse, asked, condition = ctx.saved_tensors
        d_phi, d_mean, d_inverse = (torch.zeros_like(tensor) for tensor in (phi, mean, inverse))
        parts = _parts(grad, asked, condition)
        for part, which, of in parts:
            error = phi.index_select(0, which).sub_(mean.index_select(0, of))
            weighted = part.unsqueeze(-1) * error
            d_inverse.index_add_(0, of, error.mul_(weighted))
            moved = weighted.mul_(inverse.index_select(0, of))
            d_phi.index_add_(0, which, moved, alpha=2)
            d_mean.index_add_(0, of, moved, alpha=-2)
        return d_phi, d_mean, d_inverse, None, None


def _parts(*rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(torch.split(row, ROWS) for row in rows), strict=True)


def densities(
    classes: Classes, phi: Tensor, label: Tensor, present: Tensor, longest: int | None = None
) -> Density:
    """Of features (B, T, n) with class indices (B, T) where `present` (B, T).

    longest: windows of at most as many observations are enough.
    """
    batch, steps = label.shape
    size = len(classes.mean)
    t = torch.arange(steps, device=phi.device)
    chosen = (label.unsqueeze(-1) == torch.arange(size, device=phi.device)) & present.unsqueeze(-1)
    following = torch.where(chosen, t.unsqueeze(-1), steps).flip(1).cummin(1).values.flip(1)
    latest = torch.where(chosen, t.unsqueeze(-1), 0).cummax(1).values
    before = chosen.long().cumsum(1) - chosen.long()
    length = t - t.unsqueeze(-1)
    near = (length >= 0) if longest is None else (length >= 0) & (length <= longest)
    same = (label.unsqueeze(2) == label.unsqueeze(1)) & present.unsqueeze(2) & present.unsqueeze(1)
    pairs = _pairs(same & near, label, before)
    # Each observation of a class, and each input after it.
    sequence, first, at = (present.unsqueeze(-1) & near & (length > 0)).nonzero(as_tuple=True)
    pair = pairs.number[sequence, first, latest[sequence, at - 1, label[sequence, first]]]
    row = torch.full_like(pairs.number, -1)
    row[sequence, first, at] = torch.arange(len(at), device=phi.device)
    # Each input under each class that was not seen.
    unseen = torch.arange(batch * size * steps, device=phi.device).reshape(batch, size, steps)
    of_class = unseen // steps % size
    at_time = unseen // (size * steps) * steps + t
    asked = torch.cat((sequence * steps + at, at_time.flatten()))
    known_of = torch.cat((pair, len(pairs.first) + of_class.flatten()))
    deviation = phi - classes.mean[label]
    value = _values(classes, phi, pairs, _sums(deviation, same, pairs), (asked, known_of))
    return Density(value, row, len(at) + unseen, following, before.mT)


def _pairs(these: Tensor, label: Tensor, before: Tensor) -> _Pairs:
    """Of (B, T, T), where [first, last] are a pair."""
    sequence, first, last = these.nonzero(as_tuple=True)
    number = torch.zeros_like(these, dtype=torch.long)
    number[sequence, first, last] = torch.arange(len(first), device=label.device)
    of_class = label[sequence, first]
    count = before[sequence, last, of_class] - before[sequence, first, of_class] + 1
    return _Pairs(sequence, first, last, of_class, count, number)


def _sums(deviation: Tensor, same: Tensor, pairs: _Pairs) -> Tensor:
    """Sums (P, n) of the deviations that each pair has seen."""
    earlier = (same.tril(-1).to(deviation.dtype) @ deviation).flatten(0, 1)
    steps = deviation.shape[1]
    first, last = (pairs.sequence * steps + place for place in (pairs.first, pairs.last))
    moved = earlier.index_select(0, last) - earlier.index_select(0, first)
    return moved + deviation.flatten(0, 1).index_select(0, last)


def _values(
    classes: Classes, phi: Tensor, pairs: _Pairs, sums: Tensor, rows: tuple[Tensor, Tensor]
) -> Tensor:
    """Log densities (Q,) of inputs `rows[0]` of B * T, knowing pair, or then class, `rows[1]`."""
    most = int(pairs.count.max()) if len(sums) else 0
    number = torch.arange(most + 1, dtype=phi.dtype, device=phi.device)[:, None, None]
    # By count and class: all that has a logarithm or a quotient in it.
    gain = (classes.precision * classes.noise + number).reciprocal()
    variance = classes.noise * (1 + gain)
    logs = (variance.log() + math.log(2 * math.pi)).sum(-1).flatten()
    every = torch.arange(len(classes.mean), device=phi.device)
    of_class = torch.cat((pairs.label, every))
    entry = torch.cat((pairs.count, torch.zeros_like(every))) * len(every) + of_class
    seen = gain.flatten(0, 1).index_select(0, entry[: len(sums)]) * sums
    mean = classes.mean.index_select(0, of_class) + pad(seen, (0, 0, 0, len(every)))
    inverse = variance.reciprocal().flatten(0, 1).index_select(0, entry)
    squares: Tensor = _Squares.apply(  # type: ignore[no-untyped-call]
        phi.flatten(0, 1), mean, inverse, *rows
    )
    return -0.5 * (squares + logs.index_select(0, entry).gather(0, rows[1]))
