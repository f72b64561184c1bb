"""Whole sequences: against enumeration, row by row, against the filter."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from model_core import filter as moca
from model_core import segments as seg
from model_core.encoder import Mlp
from model_core.segments import Changes, Sequences
from model_core.upm import pcoc
from model_core.upm.alpaca import Alpaca, NoisePrior
from tests.model_core import enumeration
from tests.model_core.cases import row_by_row, run, series
from tests.model_core.enumeration import streams, truths
from tests.model_core.references import Series
from tests.model_core.registry import PROVEN, Case, case, irregular, tensor

NAN = np.nan
GAPS = [True] * 4 + [False, False, True, False]


def sequences(batch: list[Series]) -> Sequences:
    x, y = (tensor([getattr(b, name) for b in batch]) for name in ("x", "y"))
    labelled = torch.tensor(np.array([b.labelled for b in batch], dtype=bool))
    y = torch.where(labelled.unsqueeze(-1), y, torch.nan)
    return Sequences(x if x.shape[-1] else None, y)


def changes(batch: list[Series]) -> Changes:
    tables = [np.atleast_1d(each.hazard[0]) for each in batch]
    longest = max(map(len, tables))
    hazard = tensor([np.pad(each, (0, longest - len(each)), "edge") for each in tables])
    elapsed, told = (tensor([getattr(b, name) for b in batch]) for name in Series._fields[4:6])
    return Changes(hazard, elapsed, told)


def matrix(one: Case, batch: list[Series], longest=None) -> seg.Segments:
    return seg.segment_matrix(one.model, one.prior(len(batch)), sequences(batch), longest)


def close(found, expected, atol=1e-9):
    torch.testing.assert_close(found, expected, atol=atol, rtol=0, equal_nan=True)


@pytest.mark.parametrize("name", PROVEN)
def test_a_sequence_is_the_sum_over_all_segmentations(name):
    """The matrix, evidence and beliefs; all at once, and row by row."""
    rows = (0, 2, 3)  # of streams without outliers
    batch = [streams(name)[row] for row in rows]
    for computed in (seg.segment_matrix, row_by_row):
        one = case(name)
        whole, told = computed(one.model, one.prior(3), sequences(batch)), changes(batch)
        forward = seg.forward(whole, told)
        for i, (row, one) in enumerate(zip(rows, batch, strict=True)):
            check_matrix(whole, i, enumeration.segments(name)[row])
            truth, where = truths(name)[row], f"stream {row}"
            score = forward.log_score[i]
            assert score.isnan().tolist() == [not each for each in one.labelled]
            expected = [each.log_score for each in truth]
            assert score.nan_to_num(0).tolist() == pytest.approx(expected, abs=1e-10), where
            for t, true in enumerate(truth):
                belief = forward.log_posterior[i, t, : t + 1].exp().flip(0).tolist()
                assert belief == pytest.approx(list(true.belief.values()), abs=1e-10), where


def check_matrix(whole: seg.Segments, row: int, parts: list[enumeration.Segment]) -> None:
    for start, expected in enumerate(parts):
        for got, values in ((whole.label, expected.labels), (whole.input, expected.inputs)):
            if got is not None:
                np.testing.assert_allclose(got[row, start, start:], values, atol=1e-9)
                assert (got[row, start, :start] == -np.inf).all()


@pytest.mark.parametrize("name", PROVEN)
def test_windows_are_parts_of_the_matrix(name):
    """Every start at once, where the model can, and row by row."""
    one = case(name)
    for steps, labelled, lengths in (
        (13, True, (None, 5)),
        (13, GAPS, (None, 0, 5, 40)),
        (1, True, (None, 0)),
    ):
        batch = [series(one, i, steps, labelled=labelled) for i in range(2)]
        given = one.model, one.prior(2), sequences(batch)
        whole, age = row_by_row(*given), torch.arange(steps) - torch.arange(steps)[:, None]
        for longest in lengths:
            beyond = (age < 0) | (age > (steps if longest is None else longest))
            for computed in (seg.segment_matrix, row_by_row):
                found = computed(*given, longest)
                assert torch.equal(found.labelled, whole.labelled)
                for got, expected in ((found.label, whole.label), (found.input, whole.input)):
                    assert (got is None) == (expected is None)
                    if got is not None:
                        close(got, expected.masked_fill(beyond, -torch.inf))
        first = seg.from_start(*given)
        close(first, torch.where(whole.labelled, whole.label[:, 0], torch.nan))


def test_the_size_of_what_is_computed_at_once_does_not_matter(monkeypatch):
    batch = [series(case("pcoc-3"), i, 13) for i in range(2)]
    whole = matrix(case("pcoc-3"), batch)
    monkeypatch.setattr(pcoc, "ROWS", 7)
    close(matrix(case("pcoc-3"), batch).label, whole.label, 1e-11)


def test_an_input_that_is_not_finite_spoils_no_other_stream():
    one, batch = case("alpaca-1"), [series(case("alpaca-1"), i, 9) for i in range(2)]
    whole = row_by_row(one.model, one.prior(2), sequences(batch)).label
    batch[1].x[3] = NAN
    found = row_by_row(one.model, one.prior(2), sequences(batch)).label
    close(found[0], whole[0])
    assert found[1, :4, 3:].isnan().all()


def test_an_override_is_the_belief_a_label_is_predicted_with():
    one, steps = series(case("poisson"), 1, 12), 12
    whole, told = matrix(case("poisson"), [one]), changes([one])
    override = torch.full((1, steps, steps), NAN, dtype=torch.float64)
    belief = tensor([0.1, 0.0, 0.4, 0.0, 0.3])  # not even normalised
    override[0, 6, :5] = belief.log()
    found, plain = seg.forward(whole, told, override), seg.forward(whole, told)
    got = found.log_given_input[0, 6].exp()
    close(got, torch.cat((belief / 0.8, torch.zeros(steps - 5))), 1e-12)
    assert torch.equal(found.log_score[:, :6], plain.log_score[:, :6])
    each = got[:7].log() + torch.tensor([whole.label[0, 6 - r, 6] for r in range(7)])
    close(found.log_score[0, 6], torch.logsumexp(each, 0), 1e-12)
    # For certain, it is a switch; gradients stay finite.
    override[0, 6], override[0, 6, 0] = -torch.inf, 0.0
    switch = one._replace(changepoint=np.where(np.arange(steps) == 6, 1.0, NAN))
    label = whole.label.clone().requires_grad_()
    found = seg.forward(whole._replace(label=label), told, override)
    close(found.log_score, seg.forward(whole, changes([switch])).log_score)
    found.log_score.sum().backward()
    assert torch.isfinite(label.grad).all()


def test_scores_are_those_of_the_filter():
    one = case("alpaca-1")
    batch = [series(one, i, 15, labelled=[True, True, False]) for i in range(2)]
    found = seg.forward(matrix(one, batch), changes(batch)).log_score
    scores = torch.stack([step.info.log_score for step in run(one, batch, 15)], 1)
    close(found, scores, 1e-11)


@pytest.mark.parametrize("longest", [None, 4])
@pytest.mark.parametrize("name", ["alpaca-2", "alpaca-unknown-2"])
def test_an_output_that_lacks_takes_nothing_from_the_others(name, longest):
    """As two regressions on the same features, each with the labels that it has."""
    data = sequences([series(case(name), i, 25) for i in range(2)])
    gone = tensor(irregular(2, 25, 2, seed=9)) > 0.5
    assert (gone.any(-1) & ~gone.all(-1)).any()
    assert gone.all(-1).any()
    y = data.y.masked_fill(gone, torch.nan)
    model = dataclasses.replace(case(name).model, partial=True)
    whole = seg.segment_matrix(model, case(name).prior(2), data)
    close(whole.label, seg.segment_matrix(case(name).model, case(name).prior(2), data).label, 0)
    found = seg.segment_matrix(model, case(name).prior(2), data._replace(y=y), longest)
    assert torch.equal(found.labelled, ~gone.all(-1))
    expected = 0.0
    for o in range(2):
        at, own = slice(o, o + 1), {}
        for field in ("y_offset", "y_scale", "noise_variance"):
            value = getattr(model, field)
            own[field] = None if value is None else value[at]
        if model.noise_prior is not None:
            own["noise_prior"] = NoisePrior(*(each[at] for each in model.noise_prior))
        mean = model.prior_mean[:, at]
        alone = dataclasses.replace(model, prior_mean=mean, partial=False, **own)
        start = moca.make_prior(alone, *(torch.ones(2, 1).double(),) * 2)
        matrix = seg.segment_matrix(alone, start, data._replace(y=y[..., at]), longest)
        expected = expected + matrix.label
    close(found.label, expected)


def wide(scale: float, noisy: bool, dtype=torch.float64) -> Alpaca:
    """A model of 32 features, as large as trained ones, whose prior has the given scale."""
    n, one = 32, torch.ones(1, dtype=dtype)
    factor = scale * tensor(irregular(n, n, seed=5))
    weights = tensor(irregular(n, 1, seed=1)), tensor(irregular(n, n, seed=2)) / n**0.5
    biases = [tensor(irregular(n, seed=s)) for s in (3, 4)]
    layers = [tuple(each.to(dtype) for each in part) for part in (weights, biases)]
    return Alpaca(
        encoder=Mlp(*layers, output_activation="tanh"),
        prior_mean=(scale * tensor(irregular(n, 1, seed=6))).to(dtype),
        prior_cov=(factor @ factor.mT).to(dtype),
        noise_variance=None if noisy else 0.05 * one,
        noise_prior=NoisePrior(2.0 * one, 0.05 * one) if noisy else None,
        x_offset=0 * one,
        x_scale=one,
        y_offset=0 * one,
        y_scale=one,
    )


def scores(
    model: Alpaca, steps: int, computed=seg.segment_matrix
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a sinusoid that moves every fifty observations, some labels gone; matrix and scores."""
    t, dtype = torch.arange(steps), model.prior_mean.dtype
    x = 5 * tensor(irregular(2, steps, 1, seed=7))
    y = 3 * torch.sin(x + (t // 50).unsqueeze(-1)) + 0.2 * tensor(irregular(2, steps, 1, seed=8))
    gone = (t % 3 == 0) & (t % 100 > 50)
    data = Sequences(x.to(dtype), y.masked_fill(gone.unsqueeze(-1), torch.nan).to(dtype))
    zero = torch.zeros(2, 1, dtype=dtype)
    found = computed(model, moca.make_prior(model, zero, zero + 1), data)
    score = seg.forward(found, Changes(torch.full((1, 1), 0.02, dtype=dtype))).log_score
    return found.label.triu().nan_to_num(neginf=0).double(), score.double()


# Scales of the prior that training starts from (by default, and in the paper), and one far above.
@pytest.mark.parametrize(
    ("noisy", "scale", "steps", "atol", "of_scores"),
    [
        (True, 0.18, 100, 1e-9, 1e-11),
        (False, 5.0, 100, 1e-4, 1e-7),
        pytest.param(True, 0.18, 400, 1e-9, 1e-11, marks=pytest.mark.slow),
        pytest.param(False, 5.0, 400, 1e-4, 1e-7, marks=pytest.mark.slow),
    ],
)
def test_long_sequences_stay_exact(noisy, scale, steps, atol, of_scores):
    label, score = scores(wide(scale, noisy), steps, row_by_row)
    found, ours = scores(wide(scale, noisy), steps)
    close(found, label, atol)
    close(ours, score, of_scores)
    close(scores(wide(scale, noisy, torch.float32), steps)[1], score, 1e-3)


def test_a_prior_that_knows_everything():
    """No variance at all: windows teach nothing, and nothing is divided by it."""
    model = dataclasses.replace(wide(1.0, False), prior_cov=torch.zeros(32, 32).double())
    label, _ = scores(model, 20)
    assert torch.isfinite(label).all()
    for t in range(20):
        assert (label[:, : t + 1, t] == label[:, :1, t]).all()
