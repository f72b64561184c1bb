"""The lattice recursion against blocks, which share nothing with it, and against differences."""

import dataclasses

import numpy as np
import pytest
import torch

from model_core import filter as moca
from model_core import segments as seg
from model_core.encoder import Mlp
from model_core.segments import Changes, Sequences
from model_core.upm import lattice
from model_core.upm.alpaca import Alpaca, NoisePrior
from model_core.upm.alpaca_mixture import AlpacaMixture
from model_core.upm.regression import absorb
from tests.model_core.case import irregular
from tests.model_core.cases import BY_NAME, CASES, series, tensor

ALPACAS = [case for case in CASES if case.name.startswith("alpaca")]
alpacas = pytest.mark.parametrize("case", ALPACAS, ids=lambda case: case.name)
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
GAPS = [True] * 4 + [False, False, True, False]


def sequences(case, steps, labelled=True, batch=2):
    many = [series(case, i, steps, labelled=labelled) for i in range(batch)]
    x, y = (tensor([getattr(each, name) for each in many]) for name in ("x", "y"))
    known = torch.tensor(np.array([each.labelled for each in many], dtype=bool))
    y = torch.where(known.unsqueeze(-1), y, torch.nan)
    return Sequences(x if x.shape[-1] else None, y)


def close(found, expected, atol=1e-9):
    torch.testing.assert_close(found, expected, atol=atol, rtol=0, equal_nan=True)


def test_the_alpacas_go_by_the_lattice():
    """Or nothing below would be tested."""
    assert len(ALPACAS) == 8
    for case in ALPACAS:
        assert type(case.model).every_start in (Alpaca.every_start, AlpacaMixture.every_start)
    assert sum(isinstance(case.model, AlpacaMixture) for case in ALPACAS) == 2
    assert {case.model.y_dim for case in ALPACAS} == {1, 2}
    assert any(case.model.noise_prior is not None for case in ALPACAS)
    assert any(case.model.lags > 0 for case in ALPACAS)


@alpacas
@pytest.mark.parametrize("labelled", [True, GAPS, [False, True], False])
@pytest.mark.parametrize("longest", [None, 0, 1, 5, 40])
def test_it_is_the_blocks(case, labelled, longest):
    data, prior = sequences(case, 31, labelled), case.prior(2)
    expected = seg.segment_matrix(case.model, prior, data, 7, longest)
    found = seg.segment_matrix(case.model, prior, data, None, longest)
    close(found.label, expected.label)
    assert found.input is None
    assert torch.equal(found.labelled, expected.labelled)


@every_case
@pytest.mark.parametrize("chunk", [None, 1, 7])
@pytest.mark.parametrize("longest", [0, 1, 6])
def test_shorter_windows_are_part_of_the_matrix(case, chunk, longest):
    data, prior = sequences(case, 23, GAPS), case.prior(2)
    whole = seg.segment_matrix(case.model, prior, data, 7)
    found = seg.segment_matrix(case.model, prior, data, chunk, longest)
    t = torch.arange(23)
    kept = (t - t.unsqueeze(-1) >= 0) & (t - t.unsqueeze(-1) <= longest)
    close(found.label, whole.label.masked_fill(~kept, -torch.inf))
    if whole.input is not None:
        close(found.input, whole.input.masked_fill(~kept, -torch.inf))


@every_case
def test_from_the_start_on_is_the_first_row(case):
    data, prior = sequences(case, 23, GAPS), case.prior(2)
    whole = seg.segment_matrix(case.model, prior, data, 7)
    found = seg.from_start(case.model, prior, data)
    close(found, torch.where(whole.labelled, whole.label[:, 0], torch.nan))
    assert torch.equal(found.isnan(), data.y.isnan().any(-1))


@pytest.mark.parametrize("steps", [1, 2])
def test_the_shortest_sequences(steps):
    for case in ALPACAS:
        data, prior = sequences(case, steps), case.prior(2)
        close(
            seg.segment_matrix(case.model, prior, data).label,
            seg.segment_matrix(case.model, prior, data, 7).label,
        )


BATCH, STEPS, N, Y = 2, 7, 3, 2


def numbers():
    """A mean, a root of a covariance, features, labels and weights between 0 and 1."""
    mean, root = tensor(irregular(BATCH, N, Y, seed=1)), tensor(irregular(BATCH, N, N, seed=2))
    phi, y = tensor(irregular(BATCH, STEPS, N, seed=3)), tensor(irregular(BATCH, STEPS, Y, seed=4))
    weight = tensor(irregular(BATCH, STEPS, seed=5)).sigmoid()
    weight[0, 2], weight[0, 4], weight[1, 1] = 0.0, 1.0, 0.0
    return mean, root, phi, y, weight


def test_parts_of_observations_count_as_parts():
    mean, root, phi, y, weight = numbers()
    cov = root @ root.mT
    found = lattice.predict(mean, cov, phi, y, weight)
    for s in range(STEPS):
        one, spread = mean.unsqueeze(1), cov.unsqueeze(1)
        for t in range(s, STEPS):
            row = phi[:, t : t + 1].unsqueeze(1), y[:, t : t + 1], weight[:, None, t : t + 1]
            step = absorb(one, spread, *row)
            close(found.residual[:, s, t], y[:, t] - step.location[:, 0, 0], 1e-12)
            close(found.spread[:, s, t], step.spread[:, 0, 0], 1e-12)
            one, spread = step.mean, step.cov
        assert (found.residual[:, s, :s] == 0).all()
        assert (found.spread[:, s, :s] == 1).all()


@pytest.mark.parametrize("longest", [None, 0, 2])
def test_it_is_the_regression_on_each_window(longest):
    """By the paper's natural parameters; a row of weight `w` counts as `w` of one."""
    mean, root, phi, y, weight = numbers()
    cov = root @ root.mT
    found, inverse = lattice.predict(mean, cov, phi, y, weight, longest), torch.linalg.inv(cov)
    for s in range(STEPS):
        for t in range(s, STEPS):
            if longest is not None and t - s > longest:
                assert (found.residual[:, s, t] == 0).all()
                assert (found.spread[:, s, t] == 1).all()
                continue
            past, w = phi[:, s:t], weight[:, s:t, None]
            precision = inverse + past.mT @ (w * past)
            posterior = torch.linalg.solve(precision, inverse @ mean + past.mT @ (w * y[:, s:t]))
            row = phi[:, t, None]
            spread = 1 + (row @ torch.linalg.solve(precision, row.mT)).flatten()
            close(found.residual[:, s, t], y[:, t] - (row @ posterior).squeeze(1))
            close(found.spread[:, s, t], spread)


@pytest.mark.parametrize("longest", [None, 0, 3])
def test_gradients_are_those_of_differences(longest):
    *given, weight = numbers()

    def outcome(mean, root, phi, y):
        found = lattice.predict(mean, root @ root.mT, phi, y, weight, longest)
        return found.residual, found.spread

    leaves = [each.requires_grad_() for each in given]
    assert torch.autograd.gradcheck(outcome, leaves, atol=1e-7, rtol=1e-6)


def test_windows_of_a_batch_do_not_meet():
    mean, root, phi, y, weight = numbers()
    whole = lattice.predict(mean, root @ root.mT, phi, y, weight)
    alone = lattice.predict(*(each[1:] for each in (mean, root @ root.mT, phi, y, weight)))
    assert torch.equal(whole.residual[1:], alone.residual)
    assert torch.equal(whole.spread[1:], alone.spread)


@pytest.mark.parametrize("longest", [None, 4])
@pytest.mark.parametrize("name", ["alpaca-2", "alpaca-unknown-2"])
def test_an_output_that_lacks_takes_nothing_from_the_others(name, longest):
    """As two regressions on the same features, each with the labels that it has."""
    case = BY_NAME[name]
    data, prior = sequences(case, 25), case.prior(2)
    gone = tensor(irregular(2, 25, 2, seed=9)) > 0.5
    y = data.y.masked_fill(gone, torch.nan)
    assert (gone.any(-1) & ~gone.all(-1)).any()
    assert gone.all(-1).any()
    mean = case.model.prior_mean.clone().requires_grad_()
    model = dataclasses.replace(case.model, prior_mean=mean, partial=True)
    prior = moca.make_prior(model, prior.location, torch.ones_like(prior.location))
    found = seg.segment_matrix(model, prior, data._replace(y=y), None, longest)
    assert torch.equal(found.labelled, ~gone.all(-1))
    expected = 0.0
    for o in range(2):
        at, own = slice(o, o + 1), {}
        for name in ("y_offset", "y_scale", "noise_variance"):
            value = getattr(model, name)
            own[name] = None if value is None else value[at]
        if model.noise_prior is not None:
            own["noise_prior"] = NoisePrior(*(each[at] for each in model.noise_prior))
        alone = dataclasses.replace(model, prior_mean=mean[:, at], partial=False, **own)
        start = moca.make_prior(alone, *(torch.ones(2, 1).double(),) * 2)
        matrix = seg.segment_matrix(alone, start, data._replace(y=y[..., at]), None, longest)
        expected = expected + matrix.label
    close(found.label, expected)
    (ours,), (theirs,) = (
        torch.autograd.grad(each[each > -torch.inf].sum(), mean) for each in (found.label, expected)
    )
    close(ours, theirs)


def test_of_whole_labels_nothing_depends_on_whether_some_could_lack():
    case = BY_NAME["alpaca-unknown-2"]
    data, prior = sequences(case, 25, GAPS), case.prior(2)
    model = dataclasses.replace(case.model, partial=True)
    found, expected = (seg.segment_matrix(each, prior, data) for each in (model, case.model))
    assert torch.equal(found.label, expected.label)
    assert torch.equal(found.labelled, expected.labelled)


def wide(scale, noise):
    """A model of 32 features, as large as trained ones, whose prior has the given scale."""
    n, one, parts = 32, tensor([1.0]), {"noise_variance": tensor([0.05])}
    if noise == "unknown":
        parts = {"noise_prior": NoisePrior(tensor([2.0]), tensor([0.05]))}
    weights = tensor(irregular(n, 1, seed=1)), tensor(irregular(n, n, seed=2)) / n**0.5
    biases = tuple(tensor(irregular(n, seed=s)) for s in (3, 4))
    factor = scale * tensor(irregular(n, n, seed=5))
    return Alpaca(
        encoder=Mlp(weights, biases, output_activation="tanh"),
        prior_mean=scale * tensor(irregular(n, 1, seed=6)),
        prior_cov=factor @ factor.mT,
        x_offset=0 * one,
        x_scale=one,
        y_offset=0 * one,
        y_scale=one,
        **parts,
    )


def switching(steps):
    """A sinusoid that moves every fifty observations, and every third label gone at times."""
    t = torch.arange(steps)
    x = 5 * tensor(irregular(2, steps, 1, seed=7))
    y = 3 * torch.sin(x + (t // 50).unsqueeze(-1)) + 0.2 * tensor(irregular(2, steps, 1, seed=8))
    gone = (t % 3 == 0) & (t % 100 > 50)
    return Sequences(x, y.masked_fill(gone.unsqueeze(-1), torch.nan))


def narrowed(model):
    """The same model in float32."""
    network = model.encoder
    parts = {
        name: tuple(each.float() for each in getattr(network, name))
        for name in ("weights", "biases")
    }
    found = {"encoder": dataclasses.replace(network, **parts)}
    for field in dataclasses.fields(model):
        value = getattr(model, field.name)
        if isinstance(value, torch.Tensor):
            found[field.name] = value.float()
    if model.noise_prior is not None:
        found["noise_prior"] = NoisePrior(*(each.float() for each in model.noise_prior))
    return dataclasses.replace(model, **found)


def matrix_and_scores(model, data, chunk=None):
    zero = torch.zeros(2, 1, dtype=data.y.dtype)
    found = seg.segment_matrix(model, moca.make_prior(model, zero, zero + 1), data, chunk)
    hazard = torch.full((1, 1), 0.02, dtype=data.y.dtype)
    score = seg.forward(found, Changes(hazard)).log_score
    return found.label.triu().nan_to_num(neginf=0).double(), score.double()


# Scales of the prior that training starts from (by default, and in the paper), and one far above.
@pytest.mark.one_in(2)
@pytest.mark.parametrize("noise", ["known", "unknown"])
@pytest.mark.parametrize(
    ("scale", "atol", "of_scores"), [(0.18, 1e-9, 1e-11), (1.0, 1e-7, 1e-9), (5.0, 1e-4, 1e-7)]
)
def test_long_sequences_stay_exact(scale, noise, atol, of_scores):
    """400 observations in float64; measured: 5e-11, 6e-9 and 9e-6, scores 2e-13, 1e-11 and 2e-9."""
    model, data = wide(scale, noise), switching(400)
    label, score = matrix_and_scores(model, data, 20)
    found, ours = matrix_and_scores(model, data)
    close(found, label, atol)
    close(ours, score, of_scores)


@pytest.mark.parametrize("noise", ["known", "unknown"])
@pytest.mark.parametrize(("scale", "atol"), [(0.18, 1e-3), (1.0, 5e-2)])
def test_scores_in_float32(scale, noise, atol):
    """400 observations; measured: 1e-4 and 7e-3, by blocks 4e-5 and 3e-3."""
    model, data = wide(scale, noise), switching(400)
    _, score = matrix_and_scores(model, data, 20)
    less = Sequences(data.x.float(), data.y.float())
    _, ours = matrix_and_scores(narrowed(model), less)
    close(ours, score, atol)


@pytest.mark.parametrize("scale", [0.18, 1.0])
def test_long_gradients_are_those_of_blocks(scale):
    found = []
    for chunk in (None, 20):
        model, data = wide(scale, "known"), switching(150)
        factor = torch.linalg.cholesky(model.prior_cov)  # a covariance by itself may lose symmetry
        leaves = [model.prior_mean, factor, *model.encoder.weights]
        for each in leaves:
            each.requires_grad_()
        model = dataclasses.replace(model, prior_cov=factor @ factor.mT)
        zero = torch.zeros(2, 1, dtype=torch.float64)
        changes = Changes(torch.full((1, 1), 0.02, dtype=torch.float64))
        prior = moca.make_prior(model, zero, zero + 1)
        loss = seg.loss(model, prior, data, changes, chunk)
        found.append(torch.autograd.grad(loss, leaves))
    for a, b in zip(*found, strict=True):
        assert ((a - b).abs().max() / b.abs().max()).item() < 1e-8


def test_a_prior_that_knows_everything():
    """No variance at all: windows teach nothing, and nothing is divided by it."""
    model = dataclasses.replace(wide(1.0, "known"), prior_cov=torch.zeros(32, 32).double())
    label, _ = matrix_and_scores(model, switching(20))
    assert torch.isfinite(label).all()
    for t in range(20):
        assert (label[:, : t + 1, t] == label[:, :1, t]).all()


def test_outliers_go_by_blocks():
    """How much a row counts then depends on the window."""
    case = BY_NAME["alpaca-2"]
    data, prior = sequences(case, 12), case.prior(2)
    rate = torch.full((2, 12), 0.1, dtype=torch.float64)
    told = seg.segment_matrix(case.model, prior, data._replace(outlier_rate=rate)).label
    assert not torch.allclose(told.triu(), seg.segment_matrix(case.model, prior, data).label.triu())
    one = seg.segment_matrix(case.model, prior, data._replace(outlier_rate=0 * rate)).label
    close(one, seg.segment_matrix(case.model, prior, data).label)
