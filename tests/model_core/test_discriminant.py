"""PCOC under every start at once, against blocks and against sums written out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from model_core.segments import Segments, Sequences, segment_matrix
from model_core.upm import discriminant
from tests.model_core import enumeration
from tests.model_core.cases import series, tensor
from tests.model_core.learned_cases import pcoc_case

CASE = pcoc_case()
NAMES = ("prior_mean", "prior_precision", "noise_variance", "dirichlet")


def drawn(steps, unlabelled=()):
    many = [series(CASE, seed, steps) for seed in range(2)]
    x, y = (tensor([getattr(each, name) for each in many]) for name in ("x", "y"))
    y[:, list(unlabelled)] = torch.nan
    return Sequences(x, y)


def both(data, longest=None, model=CASE.model):
    """Every start at once, and in blocks."""
    prior = CASE.prior(len(data.y))
    return [segment_matrix(model, prior, data, chunk, longest) for chunk in (None, 5)]


def weighted(found: Segments) -> torch.Tensor:
    """A number that every entry has its own share in."""
    total = torch.zeros(())
    for part in (found.label, found.input):
        share = torch.sin(torch.arange(part.numel(), dtype=part.dtype)).reshape(part.shape)
        total = total + (part.masked_fill(torch.isneginf(part), 0.0) * share).sum()
    return total


@pytest.mark.parametrize("unlabelled", [(), (0, 4, 5), range(13)])
@pytest.mark.parametrize(("steps", "longest"), [(13, None), (13, 3), (13, 0), (13, 40)])
def test_every_start_at_once_is_the_starts_in_blocks(monkeypatch, steps, longest, unlabelled):
    data = drawn(steps, unlabelled)
    expected = both(data, longest)[1]
    for rows, columns in ((4096, 100), (7, 5)):
        monkeypatch.setattr(discriminant, "ROWS", rows)
        monkeypatch.setattr("model_core.upm.pcoc.COLUMNS", columns)
        found = both(data, longest)[0]
        torch.testing.assert_close(found.label, expected.label, atol=1e-11, rtol=0)
        torch.testing.assert_close(found.input, expected.input, atol=1e-11, rtol=0)


def test_one_observation():
    found, expected = both(drawn(1))
    torch.testing.assert_close(found.label, expected.label)
    torch.testing.assert_close(found.input, expected.input)


def test_every_start_is_every_segment_on_its_own():
    one = series(CASE, 5, 9, labelled=[True, True, False, True])
    y = np.where(one.labelled[:, None].astype(bool), one.y, np.nan)
    found = both(Sequences(tensor(one.x[None]), tensor(y[None])))[0]
    for start in range(9):
        expected = enumeration.segment(CASE.reference, one, start)
        np.testing.assert_allclose(found.label[0, start, start:], expected.labels, atol=1e-9)
        np.testing.assert_allclose(found.input[0, start, start:], expected.inputs, atol=1e-9)


@pytest.mark.parametrize("longest", [None, 2])
def test_gradients_are_those_of_blocks(longest):
    data = drawn(11, (3,))
    x = data.x.clone().requires_grad_()
    values = [getattr(CASE.model, name).clone().requires_grad_() for name in NAMES]
    model = replace(CASE.model, **dict(zip(NAMES, values, strict=True)))
    of_each = [
        torch.autograd.grad(weighted(each), [x, *values])
        for each in both(data._replace(x=x), longest, model)
    ]
    for found, expected in zip(*of_each, strict=True):
        assert expected.abs().max() > 0
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


def test_single_precision_far_from_the_origin():
    """Sums of features would lose the digits that those of deviations keep."""
    steps, far = 120, 300.0
    model = replace(CASE.model, encoder=lambda x: x.new_tensor([1.0, 2, 3, 4]) * x[:, :1] + far)
    model = replace(model, prior_mean=model.prior_mean + far)
    data, half = drawn(steps), {}
    expected = both(data, None, model)[0]
    for name in (*NAMES, "x_offset", "x_scale"):
        half[name] = getattr(model, name).float()
    prior = CASE.prior(2)
    prior = prior._replace(
        stats=type(prior.stats)(*(each.float() for each in prior.stats)),
        location=prior.location.float(),
        context=prior.context.float(),
    )
    single = Sequences(data.x.float(), data.y.float())
    found = segment_matrix(replace(model, **half), prior, single)
    seen = torch.isfinite(expected.input)
    off = (found.input.double() - expected.input)[seen].abs() / (1 + expected.input[seen].abs())
    assert off.max() < 2e-3
