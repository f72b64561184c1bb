"""Whole sequences: against the filter, against enumeration, and by their gradients."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from model_core import filter as moca
from model_core import segments as seg
from model_core.segments import Changes, Sequences
from tests.model_core import enumeration
from tests.model_core.cases import CASES, Case, inputs, run, series, tensor
from tests.model_core.reference import Series
from tests.model_core.test_brute_force import SCENARIOS

STREAMS = 2
NAN = np.nan
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_scenario = pytest.mark.parametrize("scenario", SCENARIOS)


def sequences(batch: list[Series]) -> Sequences:
    x, y, rate = (tensor([getattr(b, name) for b in batch]) for name in ("x", "y", "outlier_rate"))
    labelled = torch.tensor(np.array([b.labelled for b in batch], dtype=bool))
    y = torch.where(labelled.unsqueeze(-1), y, torch.nan)
    return Sequences(x if x.shape[-1] else None, y, rate if (rate > 0).any() else None)


def changes(batch: list[Series]) -> Changes:
    told = (tensor([getattr(b, name) for b in batch]) for name in ("elapsed", "changepoint"))
    return Changes(tensor([b.hazard[:1] for b in batch]), *told)


def batch_of(case: Case, scenario: str, steps: int = 7) -> list[Series]:
    hazards = (0.03, 0.4)
    return [series(case, i, steps, hazards[i], **SCENARIOS[scenario]) for i in range(STREAMS)]


def matrix(case: Case, batch: list[Series], chunk: int = 20) -> seg.Segments:
    return seg.segment_matrix(case.model, case.prior(len(batch)), sequences(batch), chunk)


@pytest.mark.one_in(6)
@every_scenario
@every_case
def test_a_sequence_is_what_the_filter_finds_step_by_step(case, scenario):
    batch = batch_of(case, scenario, 23)
    found = seg.forward(matrix(case, batch, 10), changes(batch))
    for t, step in enumerate(run(case, batch, 23)):
        score = step.info.log_score
        torch.testing.assert_close(found.log_score[:, t], score, atol=1e-9, rtol=0, equal_nan=True)
        belief = step.state.belief
        by_length = torch.zeros(STREAMS, 23, dtype=torch.float64)
        by_length.scatter_add_(1, belief.run_length.clamp(max=22), belief.log_prob.exp())
        got = found.log_posterior[:, t].exp()
        torch.testing.assert_close(got, by_length, atol=1e-9, rtol=0)


@every_case
def test_the_matrix_is_every_segment_on_its_own(case):
    for told in ({}, {"outlier_rate": 0.05}):
        batch = [series(case, 5, 9, labelled=[True, True, False, True], **told)]
        found = matrix(case, batch, 4)
        for start in range(9):
            expected = enumeration.segment(case.reference, batch[0], start)
            for got, values in ((found.label, expected.labels), (found.input, expected.inputs)):
                if got is not None:
                    row = got[0, start].numpy()
                    np.testing.assert_allclose(row[start:], values, atol=1e-9)
                    assert (row[:start] == -np.inf).all()


@pytest.mark.one_in(2)
@every_case
def test_the_size_of_blocks_does_not_matter(case):
    batch = [series(case, i, 43, labelled=[True] * 6 + [False]) for i in range(2)]
    one = matrix(case, batch, 1)
    for chunk in (7, 20, 100):
        other = matrix(case, batch, chunk)
        torch.testing.assert_close(one.label, other.label, atol=1e-9, rtol=0)


@pytest.mark.one_in(6)
@every_scenario
@every_case
def test_retrospect_is_enumeration(case, scenario):
    """Evidence, forward-backward and Viterbi over all 2^6 segmentations of seven observations."""
    batch = batch_of(case, scenario)
    whole, told = matrix(case, batch, 3), changes(batch)
    score = seg.forward(whole, told).log_score.nan_to_num(0)
    smooth, best = seg.smooth(whole, told).exp().numpy(), seg.best_segmentation(whole, told)
    for row, one in enumerate(batch):
        paths = enumeration.segmentations(case.reference, one)
        joint = np.array([each for _, each in paths])
        truth = [t.log_score for t in enumeration.enumerate_segmentations(case.reference, one)]
        assert score[row].tolist() == pytest.approx(truth, abs=1e-10)
        weight = np.exp(joint - logsumexp(joint))
        expected = np.zeros((7, 7))
        for (starts, _), mass in zip(paths, weight, strict=True):
            of_each = np.searchsorted(starts, np.arange(7), side="right") - 1
            expected[np.arange(7), np.arange(7) - np.array(starts)[of_each]] += mass
        np.testing.assert_allclose(smooth[row], expected, atol=1e-10)
        assert best.log_prob[row].item() == pytest.approx(joint.max(), abs=1e-10)
        starts = best.start[row].unique().tolist()
        assert {tuple(s): j for s, j in paths}[tuple(starts)] >= joint.max() - 1e-10
        assert best.start[row].tolist() == sorted(best.start[row].tolist())


@pytest.mark.one_in(2)
@every_case
def test_baselines_are_selections(case):
    """The filter under certain supervision: never a change, always one, and those that were."""
    switch = np.array([True, *[False] * 4, True, *[False] * 3, True, *[False] * 5])
    steps = len(switch)
    one = series(case, 3, steps, labelled=[True] * 6 + [False])
    whole = matrix(case, [one], 4)
    known = {
        "everything": (seg.window(steps, None), 0 * switch),
        "adapt never": (seg.window(steps, 0), 0 * switch + 1),
        "oracle": (seg.oracle(torch.tensor(switch)[None]), switch),
    }
    for start, told in known.values():
        got = seg.select(whole, start)[0]
        steps_of = run(case, [one._replace(changepoint=told.astype(float))], steps)
        expected = torch.cat([step.info.log_score for step in steps_of])
        torch.testing.assert_close(got, expected, atol=1e-9, rtol=0, equal_nan=True)
    got = seg.select(whole, seg.window(steps, 3))[0].numpy()
    for t in np.flatnonzero(one.labelled):
        first = max(t - 3, 0)
        part = Series(*(each[first : t + 1] for each in one))
        if not hasattr(case.reference, "described"):
            alone = enumeration.segment(case.reference, part, 0).labels[-1]
            assert got[t] == pytest.approx(alone, abs=1e-9)


@pytest.mark.parametrize("size", [1, 3, 40])
def test_a_hazard_by_run_length(size):
    case = CASES[0]
    one, prior = series(case, 7, 25), case.prior()
    table = tensor([np.linspace(0.02, 0.4, size)])
    found = seg.forward(matrix(case, [one]), Changes(table))
    state = moca.init(prior, 25)
    for t in range(25):
        now = inputs([one], t)._replace(hazard=table)
        state, info = moca.step(case.model, state, prior, now)
        assert found.log_score[0, t].item() == pytest.approx(info.log_score.item(), abs=1e-10)


def test_an_override_is_the_belief_a_label_is_predicted_with():
    case, steps = CASES[4], 12
    one = series(case, 1, steps)
    whole, told = matrix(case, [one]), changes([one])
    override = torch.full((1, steps, steps), NAN, dtype=torch.float64)
    belief = tensor([0.1, 0.0, 0.4, 0.0, 0.3])  # not even normalised
    override[0, 6, :5] = belief.log()
    found = seg.forward(whole, told, override)
    got = found.log_given_input[0, 6].exp()
    assert got[:5].tolist() == pytest.approx((belief / 0.8).tolist(), abs=1e-12)
    assert got[5:].tolist() == [0] * (steps - 5)
    plain = seg.forward(whole, told)
    assert torch.equal(found.log_score[:, :6], plain.log_score[:, :6])
    expected = torch.logsumexp(
        got[:7].log() + torch.tensor([whole.label[0, 6 - r, 6] for r in range(7)]), 0
    )
    assert found.log_score[0, 6].item() == pytest.approx(expected.item(), abs=1e-12)
    hard = torch.full_like(override, NAN)
    hard[0, 6, 0] = 0.0
    switch = one._replace(changepoint=np.where(np.arange(steps) == 6, 1.0, NAN))
    torch.testing.assert_close(
        seg.forward(whole, told, hard).log_score, seg.forward(whole, changes([switch])).log_score
    )


def test_the_loss_is_the_mean_over_labels():
    case = CASES[4]
    batch = [series(case, i, 15, labelled=[True, True, False]) for i in range(2)]
    found = seg.loss(case.model, case.prior(2), sequences(batch), changes(batch), 4)
    scores = torch.stack([step.info.log_score for step in run(case, batch, 15)])
    assert found.item() == pytest.approx(-scores.nanmean().item(), abs=1e-11)
    nothing = sequences([each._replace(labelled=np.zeros(15)) for each in batch])
    assert seg.loss(case.model, case.prior(2), nothing, changes(batch)).item() == 0


def trained(case: Case) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """The tensors of an Alpaca that are learned, and copies that want gradients."""
    model = case.model
    names = {"prior_mean": model.prior_mean, "factor": tensor(np.linalg.cholesky(model.prior_cov))}
    if model.noise_prior is None:
        names["log_noise"] = model.noise_variance.log()
    else:
        names |= {"alpha": model.noise_prior.alpha, "beta": model.noise_prior.beta}
    names |= {f"w{i}": w for i, w in enumerate(model.encoder.weights)}
    return names, [each.clone().requires_grad_() for each in names.values()]


def rebuilt(case: Case, values: dict[str, torch.Tensor]):
    """The model with learned tensors in the place of its own."""
    model = case.model
    weights = tuple(values[f"w{i}"] for i in range(len(model.encoder.weights)))
    parts = {
        "encoder": dataclasses.replace(model.encoder, weights=weights, activation="tanh"),
        "prior_mean": values["prior_mean"],
        "prior_cov": values["factor"] @ values["factor"].mT,
    }
    if model.noise_prior is None:
        parts["noise_variance"] = values["log_noise"].exp()
    else:
        parts["noise_prior"] = model.noise_prior._replace(
            alpha=values["alpha"], beta=values["beta"]
        )
    return dataclasses.replace(model, **parts)


def loss_of(case: Case, batch: list[Series], names, hazard, tensors, chunk: int) -> torch.Tensor:
    model = rebuilt(case, dict(zip(names, tensors, strict=True)))
    zero = torch.zeros(len(batch), model.y_dim, dtype=torch.float64)
    told = changes(batch)._replace(hazard=torch.sigmoid(hazard).expand(len(batch), -1))
    return seg.loss(model, moca.make_prior(model, zero, zero + 1), sequences(batch), told, chunk)


ALPACAS = [case for case in CASES if case.name in ("alpaca-1", "alpaca-2", "alpaca-unknown-2")]
alpacas = pytest.mark.parametrize("case", ALPACAS, ids=lambda case: case.name)


@pytest.mark.one_in(2)
@alpacas
@pytest.mark.parametrize("outlier_rate", [0.0, 0.05])
def test_gradients_are_those_of_differences(case, outlier_rate):
    told = {"labelled": [True] * 5 + [False], "changepoint": [NAN] * 4 + [0.3]}
    batch = [series(case, 1, 11, outlier_rate=outlier_rate, **told)]
    names, tensors = trained(case)
    hazard = tensor([-2.0, -1.0]).requires_grad_()  # a table by run length

    def loss(hazard, *tensors):
        return loss_of(case, batch, names, hazard, tensors, 4)

    fast = outlier_rate > 0  # the whole Jacobian once, a random projection of it the other time
    given = (hazard, *tensors)
    assert torch.autograd.gradcheck(loss, given, atol=1e-6, rtol=1e-4, fast_mode=fast)


@alpacas
@pytest.mark.parametrize("outlier_rate", [0.0, 0.05])
def test_gradients_are_finite_whatever_is_told(case, outlier_rate):
    """Beliefs of exactly 0, no time at all, labels that are missing, known switches."""
    told = {
        "changepoint": [NAN, 1.0, 0.0, NAN, NAN, 0.0, 0.0, NAN, 1.0, 1.0, NAN],
        "elapsed": [1.0, 1.0, 0.0, 0.0, 3.0],
        "labelled": [False, True, True],
        "outlier_rate": outlier_rate,
    }
    batch = [series(case, i, 18, **told) for i in range(2)]
    names, tensors = trained(case)
    hazard = tensor([-2.0]).requires_grad_()
    loss_of(case, batch, names, hazard, tensors, 7).backward()
    for name, each in zip(["hazard", *names], [hazard, *tensors], strict=True):
        assert torch.isfinite(each.grad).all(), name
        assert each.grad.abs().max() > 0, name


def test_gradients_are_finite_under_an_override():
    case = ALPACAS[0]
    one = series(case, 1, 8)
    whole = matrix(case, [one])
    label = whole.label.clone().requires_grad_()
    override = torch.full((1, 8, 8), NAN, dtype=torch.float64)
    override[0, 4], override[0, 4, 0] = -np.inf, 0.0
    found = seg.forward(whole._replace(label=label), changes([one]), override)
    found.log_score.sum().backward()
    assert torch.isfinite(label.grad).all()


def test_gradients_do_not_depend_on_the_size_of_blocks():
    case = ALPACAS[2]
    batch = [series(case, i, 30) for i in range(2)]
    names, tensors = trained(case)
    hazard = tensor([-2.0]).requires_grad_()
    found = []
    for chunk in (1, 7, 20):
        loss = loss_of(case, batch, names, hazard, tensors, chunk)
        found.append(torch.autograd.grad(loss, [hazard, *tensors]))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9)


def test_a_hazard_that_is_learned_finds_the_rate():
    """The evidence of many switches is highest near the rate at which they came."""
    case = CASES[0]
    told = enumeration.change_probability(series(case, 0, 3, hazard=0.2))
    assert told.flatten().tolist() == pytest.approx([0.2] * 9)
    batch = [series(case, i, 60) for i in range(8)]
    whole = matrix(case, batch)
    hazard = tensor([[0.0]]).requires_grad_()
    optimiser = torch.optim.Adam([hazard], lr=0.3)
    for _ in range(30):
        optimiser.zero_grad()
        told = Changes(torch.sigmoid(hazard).expand(8, -1))
        seg.mean_nll(seg.forward(whole, told).log_score).backward()
        optimiser.step()
    assert 0.005 < torch.sigmoid(hazard).item() < 0.1  # one switch in each of 60
