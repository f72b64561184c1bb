"""The lattice recursion against blocks, against the definition, and by its gradients."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from model_core import filter as moca
from model_core import segments as seg
from model_core.segments import Changes, Sequences
from model_core.upm import lattice
from tests.model_core.case import irregular, tensor
from tests.model_core.cases import CASES, Case, series
from tests.model_core.regression_cases import alpaca_case
from tests.model_core.test_segments import sequences

ALPACAS = [case for case in CASES if case.name.startswith("alpaca")]
alpacas = pytest.mark.parametrize("case", ALPACAS, ids=lambda case: case.name)
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
WINDOWS = (0, 1, 5, 22, 40)
FLOAT32 = 2e-3  # nats; 3.5e-4 as measured, blocks of 20 rows 1.1e-4
WIDE = 4e-3  # nats; 4e-4 as measured, blocks of 20 rows 3e-7


def data_of(case: Case, steps: int, labelled=(True, True, False, True)) -> Sequences:
    return sequences([series(case, i, steps, labelled=list(labelled)) for i in range(2)])


def matrix(case: Case, data: Sequences, chunk: int | None, longest: int | None = None):
    return seg.segment_matrix(case.model, case.prior(len(data.y)), data, chunk, longest)


def test_the_cases_have_what_matters():
    models = [case.model for case in ALPACAS]
    assert {m.y_dim for m in models} == {1, 2}
    assert {m.noise_prior is None for m in models} == {True, False}
    assert {m.lags > 0 for m in models} == {True, False}


@alpacas
@pytest.mark.parametrize("labelled", [(True,), (True, True, False), (False, False, False, True)])
def test_it_is_what_blocks_find(case, labelled):
    data = data_of(case, 23, labelled)
    found, blocks = matrix(case, data, None), matrix(case, data, 7)
    torch.testing.assert_close(found.label, blocks.label, atol=1e-10, rtol=0)
    assert torch.equal(found.labelled, blocks.labelled)
    assert found.input is None


@every_case
@pytest.mark.parametrize("longest", WINDOWS)
@pytest.mark.parametrize("chunk", [None, 4], ids=["its-own-way", "blocks"])
def test_windows_are_part_of_the_whole(case, longest, chunk):
    data = data_of(case, 23)
    whole, found = matrix(case, data, 7), matrix(case, data, chunk, longest)
    for all_of_it, some in ((whole.label, found.label), (whole.input, found.input)):
        assert (some is None) == (all_of_it is None)
        if some is not None:
            torch.testing.assert_close(some, masked(all_of_it, longest), atol=1e-9, rtol=0)


def masked(whole: torch.Tensor, longest: int) -> torch.Tensor:
    t = torch.arange(whole.shape[-1])
    return whole.masked_fill(t - t.unsqueeze(-1) > longest, -torch.inf)


@every_case
def test_from_the_start_is_the_first_row(case):
    data = data_of(case, 23)
    found = seg.from_start(case.model, case.prior(2), data)
    first = matrix(case, data, 7).label[:, 0]
    expected = torch.where(torch.isnan(data.y).any(-1), torch.nan, first)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0, equal_nan=True)


def given(steps: int = 6, n: int = 3, outputs: int = 2) -> tuple[torch.Tensor, ...]:
    """Prior mean, factor of its covariance, features, labels; two sequences."""
    mean = tensor(irregular(2, n, outputs, seed=1))
    factor = tensor(0.6 * irregular(2, n, n, seed=2))
    phi = tensor(irregular(2, steps, n, seed=3))
    return mean, factor, phi, tensor(irregular(2, steps, outputs, seed=4))


# A missing row, whole ones, and rows that count in part.
WEIGHT = tensor([[1, 0.3, 0, 0.8, 1, 0.5], [0.2, 1, 0.6, 1, 0, 1]])


@pytest.mark.parametrize("longest", [None, 0, 2])
def test_it_is_the_regression_on_each_window(longest):
    """By the paper's natural parameters; a row of weight `w` counts as `w` of one."""
    mean, factor, phi, y = given()
    cov = factor @ factor.mT
    found = lattice.predict(mean, cov, phi, y, WEIGHT, longest)
    inverse = torch.linalg.inv(cov)
    for s in range(6):
        for t in range(6):
            if t < s or (longest is not None and t - s > longest):
                assert (found.residual[:, s, t] == 0).all()
                assert (found.spread[:, s, t] == 1).all()
                continue
            past, w = phi[:, s:t], WEIGHT[:, s:t, None]
            precision = inverse + past.mT @ (w * past)
            posterior = torch.linalg.solve(precision, inverse @ mean + past.mT @ (w * y[:, s:t]))
            row = phi[:, t, None]
            residual = y[:, t] - (row @ posterior).squeeze(1)
            spread = 1 + (row @ torch.linalg.solve(precision, row.mT)).flatten()
            torch.testing.assert_close(found.residual[:, s, t], residual, atol=1e-10, rtol=0)
            torch.testing.assert_close(found.spread[:, s, t], spread, atol=1e-10, rtol=0)


@pytest.mark.parametrize("weight", [WEIGHT, (WEIGHT > 0).double()], ids=["fractions", "whole"])
@pytest.mark.parametrize("longest", [None, 2])
def test_gradients_are_those_of_differences(weight, longest):
    def outcome(mean, factor, phi, y):
        return tuple(lattice.predict(mean, factor @ factor.mT, phi, y, weight, longest))

    tensors = [each.requires_grad_() for each in given()]
    assert torch.autograd.gradcheck(outcome, tensors, atol=1e-7, rtol=1e-5)


@alpacas
def test_gradients_of_the_loss_are_those_through_blocks(case):
    data, hazard = data_of(case, 30), torch.full((2, 1), 0.1, dtype=torch.float64)
    found = []
    for chunk in (None, 7):
        own = {"prior_mean": case.model.prior_mean, "prior_cov": case.model.prior_cov}
        own = {name: each.clone().requires_grad_() for name, each in own.items()}
        weights = tuple(w.clone().requires_grad_() for w in case.model.encoder.weights)
        encoder = dataclasses.replace(case.model.encoder, weights=weights)
        model = dataclasses.replace(case.model, encoder=encoder, **own)
        prior = case._replace(model=model).prior(2)
        loss = seg.loss(model, prior, data, Changes(hazard), chunk)
        found.append(torch.autograd.grad(loss, [*own.values(), *weights]))
    for name, one, other in zip(["mean", "cov", *"ww"], *found, strict=True):
        if name == "cov":  # of a symmetric matrix only the symmetric part means anything
            one, other = one + one.mT, other + other.mT
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-8, msg=name)
        assert one.abs().max() > 1e-6, name


@pytest.fixture(scope="module")
def long() -> tuple[Case, Sequences]:
    """400 observations under 12 features."""
    case = alpaca_case(1, features=12)
    return case, data_of(case, 400)


def test_long_sequences_lose_nothing(long):
    case, data = long
    found, blocks = matrix(case, data, None).label, matrix(case, data, 20).label
    torch.testing.assert_close(found, blocks, atol=1e-9, rtol=0)


def single(case: Case) -> Case:
    """The same model in float32."""
    own = {
        field.name: value.float()
        for field in dataclasses.fields(case.model)
        if isinstance(value := getattr(case.model, field.name), torch.Tensor)
    }
    encoder = case.model.encoder
    parts = {
        name: tuple(e.float() for e in getattr(encoder, name)) for name in ("weights", "biases")
    }
    own["encoder"] = dataclasses.replace(encoder, **parts)
    return case._replace(model=dataclasses.replace(case.model, **own))


def in_single(case: Case, data: Sequences, chunk: int | None) -> torch.Tensor:
    other, zero = single(case), torch.zeros(2, case.model.y_dim)
    prior = moca.make_prior(other.model, zero, zero + 1)
    told = Sequences(data.x.float(), data.y.float())
    return seg.segment_matrix(other.model, prior, told, chunk).label.double()


def worst(found: torch.Tensor, exact: torch.Tensor) -> float:
    known = torch.isfinite(exact)
    assert torch.equal(torch.isfinite(found), known)
    return (found[known] - exact[known]).abs().max().item()


def test_float32_is_near(long):
    case, data = long
    exact = matrix(case, data, 20).label
    assert worst(in_single(case, data, None), exact) < FLOAT32


def test_a_wide_prior(long):
    """A prior a thousand times as wide: the first rows cancel nearly all of it."""
    case, data = long
    wide = dataclasses.replace(case.model, prior_cov=1e6 * case.model.prior_cov)
    case = case._replace(model=wide)
    exact = matrix(case, data, 1).label
    assert worst(matrix(case, data, None).label, exact) < WIDE
