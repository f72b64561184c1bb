"""The protocol of an underlying predictive model (UPM): what the filter asks of it.

Statistics are a NamedTuple of tensors `(B, S, ...)`: one posterior per stream and hypothesis.
A prior is the same NamedTuple with `S = 1`. Nothing here knows about run lengths.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from model_core.components import Components
from model_core.hazard import BY_STREAM
from model_core.lazy import Tensor, torch

Stats = Any  # a NamedTuple of tensors; each model has its own
Floats = NDArray[np.float64]
S = TypeVar("S")
C = TypeVar("C")
OUTLIER_SPREAD = 10.0  # squared scale (or dispersion) of an outlier, in those of the prior


class Densities(NamedTuple):
    """Log densities (B, S, T) of observations under starts, by [s, t]; anything where s > t.

    label: `log p(y_t | x_t, observations s..t-1)`. input: the same of `x_t` alone, None where the
    model is not generative.
    """

    label: Tensor
    input: Tensor | None = None


class Beside(NamedTuple):
    """What answers are averaged with, beside the hypotheses.

    weight: (B, 1) its probability. components: of the model's family, (B, 1).
    """

    weight: Tensor
    components: Components


class Reading(NamedTuple):
    """What a filter believes of a label.

    average: (B, k) of `UnderlyingModel.read` over hypotheses, given the label. expected: (B, d)
    mean of the hypotheses' forecast. lead: (B,) log density of the label by what is beside them
    less that by them; 0 where there is nothing. outlying: (B,) whether it is more probably an
    outlier than not.
    """

    average: Tensor
    expected: Tensor
    lead: Tensor
    outlying: Tensor


class UnderlyingModel(ABC):
    """A Bayesian model whose posterior statistics can be updated one observation at a time.

    A model of one's own has its `kind`, `prior`, `predictive` and `update`; what else it needs of
    the rest it overrides. Everything is a pure function, batched over streams and hypotheses, and
    no row may depend on another.
    """

    kind: str  # name of the family, kept in artifacts and stored states
    label: str = "real"  # real | positive | count | binary | class
    takes_zero: bool = True  # whether a positive label may be 0
    x_dim: int = 0  # numbers in an input; 0: takes none
    y_dim: int = 1  # numbers in a label
    classes: int = 0  # of labels that are class indices
    needs_scale: bool = False  # whether the prior depends on a stream's location and scale
    scales_inputs: bool = False  # whether those are of the inputs too, after the labels'
    hazard: float | tuple[float, ...] = BY_STREAM  # default, as `model_core.hazard` has it
    outlier_rate: float = 0.0  # default
    parts: int = 1  # distributions of each output that one hypothesis's predictive is made of
    outliers: bool = False  # whether a label may be one, of the prior predictive but much wider
    partial: bool = False  # whether some outputs of a label may be missing: nan
    believes: bool = False  # whether what it remembers of a label depends on the belief: `read`
    exchangeable: bool = False  # whether only parameters carry from a regime's label to the next
    typical: tuple[str, ...] = ()  # names of its typical regimes: what a mixture prior is made of
    symmetric: tuple[str, ...] = ()  # statistics whose last two axes are a symmetric matrix
    in_place: tuple[str, ...] = ()  # statistics so large that its kernel steps them where they lie
    recalls: bool = False  # whether a stream can store its regimes: `tempered`, `pooled`

    @property
    def seasonal(self) -> bool:
        """Whether its streams look for seasons unless their settings say otherwise.

        These are of one real number. Several outputs may swing alike while a regime lasts, as in a
        gait, and inputs and what was learned before may have the season already.
        """
        return self._real and self.y_dim == 1

    @property
    def rescaled(self) -> bool:
        """Whether scales of its streams are taken anew where labels are of another order."""
        return self.seasonal or (self._real and self.y_dim > 1)

    @property
    def _real(self) -> bool:
        return not self.x_dim and self.needs_scale and self.label == "real"

    @abstractmethod
    def prior(self, location: Tensor, scale: Tensor) -> Stats:
        """`eta_0` of each stream, `S = 1`; location, scale: (B, scaled), read if `needs_scale`."""

    def context(self, location: Tensor, scale: Tensor) -> Tensor:
        """What all hypotheses of a stream share besides its belief, at the start: (B, c)."""
        return torch.zeros(len(location), 0, dtype=location.dtype, device=location.device)

    def start(self, location: Floats, scale: Floats, device: str = "cpu") -> tuple[Stats, Floats]:
        """`prior` and `context` as numbers of the host; device: of the model's own numbers."""
        moments = [torch.from_numpy(value).to(device) for value in (location, scale)]
        prior = self.prior(*moments)
        stats = of_arrays(type(prior), *map(array_of, prior))
        return stats, array_of(self.context(*moments))

    def read(self, stats: Stats, phi: Tensor | None, y: Tensor, weight: Tensor) -> Tensor:
        """Numbers (B, S, k) of a label that a model which `believes` remembers on average.

        Arguments as of `update`.
        """
        raise TypeError(f"a model of kind {self.kind!r} remembers labels as they are")

    def remember(
        self, context: Tensor, y: Tensor, labelled: Tensor, reading: Reading | None = None
    ) -> Tensor:
        """Context after an observation; y: (B, y_dim), anything where not `labelled` (B,).

        reading: there if the model `believes`.
        """
        return context

    def beside(self, context: Tensor) -> Beside | None:
        """What else forecasts the label; it has no vote on changes."""
        return None

    def evidence_share(self, context: Tensor) -> Tensor | None:
        """Share (B, 1) of a label's log likelihood that counts for run lengths; None: all."""
        return None

    def encode(self, x: Tensor | None, context: Tensor) -> Tensor | None:
        """Features (B, n) of inputs (B, x_dim) in a context (B, c)."""
        return x

    def input_log_prob(self, stats: Stats, phi: Tensor | None) -> Tensor | None:
        """`log p(x | eta)` (B, S) of a generative model, else None (paper, eq. 2)."""
        return None

    @abstractmethod
    def predictive(self, stats: Stats, phi: Tensor | None) -> Components:
        """`p(y | x, eta)` for every hypothesis (B, S)."""

    def outlier(self, prior: Stats, phi: Tensor | None) -> Components | None:
        """What an outlier is drawn from (B, 1): the prior predictive, much wider; None: nothing."""
        return widened(self.predictive(prior, phi)) if self.outliers else None

    def outlier_input_log_prob(self, prior: Stats, phi: Tensor | None) -> Tensor | None:
        """`log p(x)` (B, 1) of an outlier of a generative model that has `outlier`, else None."""
        return None

    @abstractmethod
    def update(self, stats: Stats, phi: Tensor | None, y: Tensor, weight: Tensor) -> Stats:
        """`eta' = h(x, y, eta)` (paper, sec. 4); y: (B, y_dim); weight: (B, S) in [0, 1].

        A weight of 0 leaves the statistics as they are, whatever y.
        """

    def every_start(
        self, prior: Stats, phi: Tensor | None, y: Tensor, weight: Tensor, longest: int | None
    ) -> Densities | None:
        """Every observation under every start at once; None: row by row.

        phi: (B, T, n). y: (B, T, y_dim). weight: (B, T), 0 or 1: whether a row is ever absorbed.
        Only windows of at most `longest` rows are asked for; anything may stand elsewhere.
        """
        return None

    def types(self, stats: Stats) -> Tensor:
        """Log probabilities (B, S, M) of the `typical` regimes under each hypothesis."""
        raise TypeError(f"a model of kind {self.kind!r} has no typical regimes")

    def tempered(self, stats: Stats, prior: Stats, most: float) -> Stats:
        """Statistics of a regime as its return begins with them, of a model that `recalls`.

        The labels behind them count for `most` at most. Arrays of the host (1, 1, ...).
        """
        raise TypeError(f"a model of kind {self.kind!r} stores no regimes")

    def pooled(
        self, one: Stats, other: Stats, prior: Stats, context: Floats
    ) -> tuple[float, Stats]:
        """Whether two regimes are one: the log Bayes factor for it, and their labels' statistics.

        Arrays of the host (1, 1, ...); context: (1, c) of the stream.
        """
        raise TypeError(f"a model of kind {self.kind!r} stores no regimes")

    def spread(self, stored: Stats, prior: Stats) -> Stats:
        """Prior of fresh regimes, widened to where the stored ones, arrays (1, M, ...), lie."""
        return prior

    def means(self, stats: Stats, phi: Tensor) -> Tensor:
        """Predictive means (B, S, A, d) of the label at A inputs of each stream, phi (B, A, n)."""
        means = [self.predictive(stats, phi[:, a]).mean() for a in range(phi.shape[1])]
        return torch.stack(means, 2)

    def draw(self, stats: Stats, phi: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Draws (B, S, A, d), one for each hypothesis, at A inputs, phi (B, A, n).

        generators: one for each stream. Without a function to draw, these are labels, drawn from
        the predictive at each input independently: noise included, and no function through them.
        """
        draws = []
        for a in range(phi.shape[1]):
            predictive = self.predictive(stats, phi[:, a])
            parts = [
                predictive.rebuilt(*(p[b : b + 1] for p in predictive.parameters())).sample(
                    generator
                )
                for b, generator in enumerate(generators)
            ]
            draws.append(torch.cat(parts))
        return torch.stack(draws, 2)

    def required(self, x: Tensor | None) -> Tensor:
        """Inputs, or features, of a model that cannot do without; raises ValueError."""
        if x is None:
            raise ValueError(
                f"a model of kind {self.kind!r} requires an input x of {self.x_dim} numbers"
            )
        return x

    @property
    def scaled(self) -> int:
        """Numbers in a location and in a scale."""
        return self.y_dim + (self.x_dim if self.scales_inputs else 0)


@dataclass(frozen=True, kw_only=True)
class ClosedForm(UnderlyingModel):
    """A model whose prior is a formula of location and scale: numbers of the host, no torch."""

    hazard: float | tuple[float, ...] = BY_STREAM
    outlier_rate: float = 0.01
    needs_scale = True
    recalls = True

    @abstractmethod
    def fresh(self, location: Floats, scale: Floats) -> tuple[Stats, Floats]:
        """`prior` and `context` in arrays."""

    def prior(self, location: Tensor, scale: Tensor) -> Stats:
        """The first of `fresh` in tensors."""
        return tree_map(location.new_tensor, self.fresh(array_of(location), array_of(scale))[0])

    def context(self, location: Tensor, scale: Tensor) -> Tensor:
        """The second of `fresh` as a tensor."""
        return location.new_tensor(self.fresh(array_of(location), array_of(scale))[1])

    def start(self, location: Floats, scale: Floats, device: str = "cpu") -> tuple[Stats, Floats]:
        """As `fresh`."""
        return self.fresh(location, scale)


class Summed(ABC):
    """Regimes of an exponential family, which are stored by what their labels add up to.

    Statistics are arrays of the host (1, 1, ...).
    """

    def natural(self, stats: Stats, prior: Stats) -> Stats:
        """Statistics in whose differences from the prior's labels add up."""
        return stats

    def from_natural(self, stats: Stats, prior: Stats) -> Stats:
        """The inverse of `natural`."""
        return stats

    @abstractmethod
    def log_evidence(self, stats: Stats, context: Floats) -> float:
        """Log normaliser of the posterior, but for what is linear in the labels.

        context: (1, c) of the stream.
        """

    @abstractmethod
    def count(self, stats: Stats, prior: Stats) -> float:
        """Labels behind statistics."""

    def share(self, stats: Stats, prior: Stats, most: float) -> float:
        """Share of the labels that a return begins with."""
        return min(1.0, most / max(self.count(stats, prior), most))

    def tempered(self, stats: Stats, prior: Stats, most: float) -> Stats:
        """The labels' share of the natural statistics."""
        share = self.share(stats, prior, most)
        begin = self.natural(prior, prior)
        now = self.natural(stats, prior)
        return self.from_natural(tree_map(lambda a, b: a + share * (b - a), begin, now), prior)

    def pooled(
        self, one: Stats, other: Stats, prior: Stats, context: Floats
    ) -> tuple[float, Stats]:
        """By the evidence of the labels of both."""
        natural = [self.natural(stats, prior) for stats in (one, other, prior)]
        both = self.from_natural(tree_map(lambda a, b, start: a + b - start, *natural), prior)
        factor = self.log_evidence(both, context) + self.log_evidence(prior, context)
        apart = self.log_evidence(one, context) + self.log_evidence(other, context)
        return factor - apart, both


def widened(components: C) -> C:
    """Predictives with `OUTLIER_SPREAD` times their squared scales, as outliers are drawn from."""
    every: Any = components
    if "parts" in every._fields:
        wide = {"parts": widened(every.parts)}
    else:
        name = "factor" if "factor" in every._fields else "scale"
        wide = {name: getattr(every, name) * OUTLIER_SPREAD**0.5}
    replaced: C = every._replace(**wide)
    return replaced


def mixed(weight: Tensor, log_posterior: Tensor, log_prior: Tensor) -> Tensor:
    """`log(w posterior + (1 - w) prior)`."""
    return torch.logaddexp(torch.log(weight) + log_posterior, torch.log1p(-weight) + log_prior)


def spread_out(kappa: float, distances: Floats) -> Floats:
    """Precision of fresh regimes' means (1, 1, ...), of a prior of `kappa` before any is stored.

    distances: (1, M, ...) squared, of the means of stored regimes from the prior's, in variances of
    their noise. Their mean square is that of the prior and of every stored regime.
    """
    precision: Floats = (1 + distances.shape[1]) / (1 / kappa + distances.sum(1, keepdims=True))
    return precision


def log_gamma(x: Any) -> Floats:
    """Log of the gamma function of a few numbers, an array."""
    return np.array([math.lgamma(value) for value in np.ravel(x)]).reshape(np.shape(x))


def of_arrays(kind: Callable[..., Stats], *arrays: Floats) -> Stats:
    """Statistics of a kind with arrays of the host in place of tensors."""
    return kind(*arrays)


def array_of(value: Tensor) -> Floats:
    """Numbers of a tensor on the host."""
    return np.asarray(value.detach().cpu().numpy())


def tree_map(function: Callable[..., Tensor], tree: S, *others: S) -> S:
    """Apply a function to each tensor of a NamedTuple, and of those in it (and to its mates).

    Returns the same type; None stays.
    """
    if tree is None:
        return tree
    if not isinstance(tree, tuple):
        return function(tree, *others)  # type: ignore[return-value]
    return type(tree)(*(tree_map(function, *parts) for parts in zip(tree, *others, strict=True)))


def over(mask: Tensor, like: Tensor) -> Tensor:
    """Append axes to `mask` (B, S) so that it broadcasts over `like` (B, S, ...)."""
    return mask.reshape(mask.shape + (1,) * (like.dim() - mask.dim()))


def select(mask: Tensor, chosen: S, otherwise: S) -> S:
    """Statistics `chosen` where `mask` (B, S), else `otherwise`."""
    return tree_map(lambda a, b: torch.where(over(mask, b), a, b), chosen, otherwise)
