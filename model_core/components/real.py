"""Families of real labels."""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple, Self

from model_core.components.base import Components, Together
from model_core.lazy import Tensor, torch
from model_core.tensor_ops import maths
from model_core.transfer import on_host

_FAMILIES = maths("families")
_SPECIAL = maths("special")


def _log_norm(df: Tensor) -> Tensor:
    """Log density of Student's t at zero."""
    norm, factor, _ = _SPECIAL.student_t_norm(0.5 * df)
    log_norm: Tensor = norm + 0.5 * torch.log(factor)
    return log_norm


def _table(df: Tensor, log_norm: Tensor) -> tuple[Tensor, ...]:
    """What the distribution function needs of degrees of freedom, for many values."""
    half = 0.5 * df
    return half, log_norm, *_SPECIAL.student_t_table(half)


class _StudentT(NamedTuple):
    df: Tensor
    loc: Tensor
    scale: Tensor


class _OfT(Components):
    """What all Student-t of one output share."""

    df: Tensor
    support = "real"

    @cached_property
    def _log_norm(self) -> Tensor:
        return _log_norm(self.df)  # costly, and wanted by all that is asked

    def cdf(self, value: Tensor) -> Tensor:
        """Cumulative probability of each dimension, to 2e-10."""
        return self.evaluate(value, self.table())[0]


class StudentT(_StudentT, _OfT):
    """Student-t with `df` degrees of freedom; the variance exists for `df > 2`."""

    @classmethod
    def stated(cls, *parameters: Tensor) -> Self:
        """Of half the degrees of freedom, location and squared scale."""
        half, loc, square = parameters
        return cls((2 * half).expand_as(loc), loc, square.sqrt())

    def log_density(self, value: Tensor) -> Tensor:
        """Log density of each dimension."""
        error = value - self.loc
        precision = 1 / self.scale.square()
        half = 0.5 * self.df
        density: Tensor = _FAMILIES.student_t_log_density(
            error, precision, half, self._log_norm, 1.0, 1 / self.df
        )
        return density

    def table(self) -> tuple[Tensor, ...]:
        """Location, scale, and what depends on the degrees of freedom alone."""
        return self.loc, self.scale, *_table(self.df, self._log_norm)

    def evaluate(self, value: Tensor, table: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """CDF and density at values."""
        loc, scale, *by_df = table
        cdf, density, _ = _SPECIAL.student_t((value - loc) / scale, *by_df)
        return cdf, density / scale

    def mean(self) -> Tensor:
        """Location."""
        return self.loc

    def variance(self) -> Tensor:
        """`scale^2 df / (df - 2)`; inf for `df <= 2`."""
        variance = self.scale.square() * self.df / (self.df - 2)
        return torch.where(self.df > 2, variance, torch.inf)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Normal over the root of a chi-square."""
        half = 0.5 * self.df.expand_as(self.loc)  # one for each output, also where they share it
        chi2 = 2 * torch._standard_gamma(half, generator=generator)
        normal = torch.randn(
            self.loc.shape, generator=generator, dtype=self.loc.dtype, device=self.loc.device
        )
        return self.loc + self.scale * normal * (self.df / chi2).sqrt()


class _SkewedT(NamedTuple):
    df: Tensor
    loc: Tensor
    scale: Tensor
    skew: Tensor


class SkewedT(_SkewedT, _OfT):
    """Student-t whose scale is `scale * skew` above the mode `loc`, and `scale / skew` below it.

    Both sides have the same density at the mode (Fernandez and Steel 1998, *JASA* 93). The mean
    exists for `df > 1`, the variance for `df > 2`; a skew of 1 is a Student-t.
    """

    def log_density(self, value: Tensor) -> Tensor:
        """Log density of each dimension."""
        error = value - self.loc
        precision = 1 / self.scale.square()
        half = 0.5 * self.df
        density: Tensor = _FAMILIES.skewed_t_log_density(
            error, precision, self.skew, half, self._log_norm, 1.0, 1 / self.df
        )
        return density

    def table(self) -> tuple[Tensor, ...]:
        """Location, scale, skew, and what depends on the degrees of freedom alone."""
        return self.loc, self.scale, self.skew, *_table(self.df, self._log_norm)

    def evaluate(self, value: Tensor, table: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """CDF and density at values."""
        loc, scale, skew, *by_df = table
        z = (value - loc) / scale
        of_side = torch.where(z < 0, z * skew, z / skew)  # in scales of the side
        tail, density, _ = _SPECIAL.student_t(-of_side.abs(), *by_df)
        below = 2 / (1 + skew.square())  # twice the probability below the mode
        cdf = torch.where(z < 0, below * tail, 1 - (2 - below) * tail)
        return cdf, density * (2 / (skew + 1 / skew) / scale)

    def mean(self) -> Tensor:
        """Mode and the skew's share; inf for `df <= 1` where there is a skew."""
        return self.loc + self.scale * self._offset

    def variance(self) -> Tensor:
        """Variance of each dimension; inf for `df <= 2`."""
        square = self.skew.square()
        second = (square - 1 + 1 / square) * self.df / (self.df - 2)
        variance = self.scale.square() * (second - self._offset.square())
        return torch.where(self.df > 2, variance, torch.inf)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """The size of a Student-t, on either side of the mode."""
        zero = torch.zeros_like(self.loc)
        one = torch.ones_like(self.loc)
        size = StudentT(self.df, zero, one).sample(generator).abs()
        chance = torch.rand(
            self.loc.shape, generator=generator, dtype=self.loc.dtype, device=self.loc.device
        )
        below = chance * (1 + self.skew.square()) < 1
        return self.loc + self.scale * torch.where(below, -size / self.skew, size * self.skew)

    @cached_property
    def _offset(self) -> Tensor:
        """Mean less mode, in scales: the mean size of a Student-t for each unit of asymmetry."""
        asymmetry = self.skew - 1 / self.skew
        size = 2 * self._log_norm.exp() * self.df / (self.df - 1)
        size = torch.where(self.df > 1, size, torch.inf)
        return torch.where(asymmetry == 0, 0.0, size * asymmetry)


class ConditionalError(NamedTuple):
    """What a label says of all outputs together.

    error: (B, M, d) label less location, the expected error of a missing output. missing_scale:
    (B, M, d, d) scale matrix of the missing outputs given the observed ones, 0 elsewhere; None: no
    output is missing.
    """

    error: Tensor
    missing_scale: Tensor | None


class _MultivariateStudentT(NamedTuple):
    df: Tensor
    loc: Tensor
    factor: Tensor


class MultivariateStudentT(_MultivariateStudentT, Together):
    """Student-t of several outputs together: df (B, M, 1), loc (B, M, d), factor (B, M, d, d).

    `factor` is the lower Cholesky factor of the scale matrix. The marginals are Student-t.
    """

    support = "real"

    def each_output(self) -> StudentT:
        """Each output alone."""
        scale = torch.linalg.vector_norm(self.factor, dim=-1)
        return StudentT(self.df.expand_as(self.loc), self.loc, scale)

    def joint_log_density(self, value: Tensor) -> Tensor:
        """Log density (B, M) of all outputs together (Murphy 2007, appendix).

        That of a label some of whose outputs are missing is of the marginal of the others.
        """
        df = self.df.squeeze(-1)
        factor, error = self._observed(value)
        z = torch.linalg.solve_triangular(factor, error.unsqueeze(-1), upper=False).squeeze(-1)
        outputs = (~torch.isnan(value)).sum(-1)
        half = 0.5 * (df + outputs)
        norm = torch.lgamma(half) - torch.lgamma(0.5 * df)
        norm = norm - 0.5 * outputs * torch.log(df * math.pi)
        norm = norm - torch.log(factor.diagonal(dim1=-2, dim2=-1)).sum(-1)
        return norm - half * torch.log1p(z.square().sum(-1) / df)

    def explain(self, value: Tensor) -> ConditionalError:
        """What a label (B, M, d) says; of its outputs those that are nan are missing.

        They are expected where the others have them: for a Student-t as for a normal
        (Ding 2016, *The American Statistician* 70).
        """
        factor, error = self._observed(value)
        missing = torch.isnan(value).unsqueeze(-1)
        if on_host(missing) and not bool(missing.any()):
            return ConditionalError(error, None)
        z = torch.linalg.solve_triangular(factor, error.unsqueeze(-1), upper=False)
        scale = self.factor @ self.factor.mT
        across = scale.masked_fill(missing.mT, 0.0)
        solved = torch.linalg.solve_triangular(factor.mT, z, upper=True)
        error = torch.where(missing, across @ solved, error.unsqueeze(-1)).squeeze(-1)
        root = torch.linalg.solve_triangular(factor, across.mT, upper=False)
        left = (scale - root.mT @ root).masked_fill(~(missing & missing.mT), 0.0)
        return ConditionalError(error, left)

    def _observed(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Factor of the scale matrix of the outputs that are there, and errors.

        A missing one counts as independent of the others, with a scale of 1 and no error.
        """
        missing = torch.isnan(value)
        error = value - self.loc
        if on_host(missing) and not bool(missing.any()):
            return self.factor, error
        missing = missing.expand_as(error)
        apart = missing.unsqueeze(-1) | missing.unsqueeze(-2)
        scale = (self.factor @ self.factor.mT).masked_fill(apart, 0.0)
        factor, failed = torch.linalg.cholesky_ex(scale + torch.diag_embed(missing.to(scale.dtype)))
        factor = factor.masked_fill((failed > 0)[..., None, None], torch.nan)
        some = missing.any(-1)[..., None, None]  # others keep theirs to the last bit
        return torch.where(some, factor, self.factor), error.masked_fill(missing, 0.0)

    def mean(self) -> Tensor:
        """Location."""
        return self.loc

    def covariance(self) -> Tensor:
        """Scale matrix times `df / (df - 2)`; for `df <= 2` inf on the diagonal and 0 beside it."""
        df = self.df.unsqueeze(-1)
        full = self.factor @ self.factor.mT * (df / (df - 2))
        return torch.where(df > 2, full, torch.diag_embed(self.variance()))

    def within(self, log_weight: Tensor) -> Tensor:
        """One product of all factors; inf on the diagonal where one does not exist."""
        exists = self.df > 2
        weight = log_weight.exp().unsqueeze(-1)
        share = torch.where(exists, weight * self.df / (self.df - 2), 0.0).sqrt()
        scaled = (self.factor * share.unsqueeze(-1)).transpose(1, 2).flatten(2)
        missing = (~exists & (weight > 0)).any(1)
        infinite = torch.where(missing, torch.inf, 0.0).expand_as(self.loc[:, 0])
        return scaled @ scaled.mT + torch.diag_embed(infinite)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Normal over the root of a chi-square that the outputs share."""
        chi2 = 2 * torch._standard_gamma(0.5 * self.df, generator=generator)
        normal = torch.randn(
            self.loc.shape, generator=generator, dtype=self.loc.dtype, device=self.loc.device
        )
        spread = (self.factor @ normal.unsqueeze(-1)).squeeze(-1)
        return self.loc + spread * (self.df / chi2).sqrt()


class _Normal(NamedTuple):
    loc: Tensor
    scale: Tensor


class Normal(_Normal, Components):
    """Gaussian with standard deviation `scale`."""

    support = "real"

    def log_density(self, value: Tensor) -> Tensor:
        """Log density of each dimension."""
        z = (value - self.loc) / self.scale
        return -0.5 * z.square() - torch.log(self.scale) - 0.5 * math.log(2 * math.pi)

    def cdf(self, value: Tensor) -> Tensor:
        """Cumulative probability of each dimension."""
        cumulative: Tensor = torch.special.ndtr((value - self.loc) / self.scale)
        return cumulative

    def mean(self) -> Tensor:
        """Location."""
        return self.loc

    def variance(self) -> Tensor:
        """Squared scale."""
        return self.scale.square()

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One draw of each."""
        normal = torch.randn(
            self.loc.shape, generator=generator, dtype=self.loc.dtype, device=self.loc.device
        )
        return self.loc + self.scale * normal
