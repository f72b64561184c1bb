"""Labels some of whose outputs are missing: beside what is left of them, and beside integrals."""

from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats as distributions

from model_core import codec
from model_core import filter as moca
from model_core.components.real import MultivariateStudentT
from model_core.upm.robust_averaged import RobustAveraged
from tests.model_core.cases import BELIEVING, BY_NAME, inputs, run, series, tensor

STEPS = 60
SEVERAL = [case for case in BELIEVING if case.model.y_dim > 1]
cases = pytest.mark.parametrize("case", SEVERAL, ids=lambda case: case.name)
TOLD = {"outlier_rate": 0.02, "labelled": [True] * 9 + [False]}


def gappy(case, seed, steps=STEPS, share=0.3):
    """A series whose labels lack outputs at random, but never all; one has a far one."""
    one, rng = series(case, seed, steps, **TOLD), np.random.default_rng(seed)
    gone = rng.random(one.y.shape) < share
    gone[gone.all(1)] = False
    one.y[steps // 2] += 20.0
    one.y[gone] = np.nan
    assert 5 < gone.sum() < gone.size
    return one


@pytest.mark.parametrize("there", [0, 1])
def test_an_output_that_is_always_missing_leaves_the_other_alone(there):
    case = BY_NAME["robust-averaged-2"]
    both = series(case, 7, STEPS, **TOLD)
    both.y[STEPS // 2] += 20.0
    both.y[:, 1 - there] = np.nan
    own = case.model
    single = RobustAveraged(1, own.kappa, own.slope, own.autoregression, own.alpha, own.beta)
    at = slice(there, there + 1)
    alone = case._replace(model=single, location=case.location[at], scale=case.scale[at])
    one = both._replace(y=both.y[:, at])
    for a, b in zip(run(case, [both], 20), run(alone, [one], 20), strict=True):
        close = {"atol": 1e-12, "rtol": 1e-12, "equal_nan": True}
        torch.testing.assert_close(a.info.log_score, b.info.log_score, **close)
        change = a.info.changepoint_probability, b.info.changepoint_probability
        torch.testing.assert_close(*change, **close)
        means = a.info.predictive.mean()[:, at], b.info.predictive.mean()
        torch.testing.assert_close(*means, **close)
        assert a.info.ok.all()


@pytest.mark.one_in(2)
@cases
@pytest.mark.parametrize("there", [0, 1])
def test_the_density_of_a_partial_label_is_the_integral_over_the_rest(case, there):
    mixture = run(case, [gappy(case, 8)], 6)[-1].info.predictive
    spread = 2 * case.scale[1 - there]
    y = mixture.mean()[0] + 0.7 * tensor(case.scale)
    # Points far out are far apart: tails are those of three degrees of freedom.
    u = torch.linspace(-22, 22, 20_001, dtype=torch.float64)
    points = y.repeat(len(u), 1)
    points[:, 1 - there] = y[1 - there] + spread * torch.sinh(u)
    wide = mixture._replace(
        log_weight=mixture.log_weight.expand(len(u), -1),
        components=mixture.components.rebuilt(
            *(p.expand(len(u), *p.shape[1:]) for p in mixture.components.parameters())
        ),
    )
    whole = torch.trapezoid(wide.log_prob(points).exp() * spread * torch.cosh(u), u)
    y[1 - there] = torch.nan
    part = mixture.log_prob(y[None])
    assert part.item() == pytest.approx(whole.log().item(), abs=1e-6)


PATTERNS = [each for each in product([False, True], repeat=3) if not all(each)]


@pytest.mark.parametrize("missing", PATTERNS, ids=str)
def test_what_a_student_t_says_of_missing_outputs(missing):
    """Beside the conditional of Ding (2016), with inverses."""
    rng = np.random.default_rng(0)
    root, loc, df = rng.normal(size=(3, 3)), rng.normal(size=3), 4.5
    scale, y = root @ root.T + 0.2 * np.eye(3), rng.normal(size=3) * 3
    gone = np.array(missing)
    y[gone] = np.nan
    one = MultivariateStudentT(
        tensor([[[df]]]), tensor(loc)[None, None], torch.linalg.cholesky(tensor(scale))[None, None]
    )
    found = one.explain(tensor(y)[None, None])
    inner = np.linalg.inv(scale[np.ix_(~gone, ~gone)])
    error = (y - loc)[~gone]
    across = scale[np.ix_(gone, ~gone)]
    expected = np.where(gone, 0.0, y - loc)
    expected[gone] = across @ inner @ error
    rest = np.zeros((3, 3))
    rest[np.ix_(gone, gone)] = scale[np.ix_(gone, gone)] - across @ inner @ across.T
    np.testing.assert_allclose(found.error[0, 0], expected, atol=1e-12)
    assert found.square.item() == pytest.approx(error @ inner @ error, rel=1e-12)
    if gone.any():
        np.testing.assert_allclose(found.rest[0, 0], rest, atol=1e-12)
    else:
        assert found.rest is None
    marginal = distributions.multivariate_t(loc[~gone], scale[np.ix_(~gone, ~gone)], df)
    density = one.joint_log_density(tensor(y)[None, None])
    assert density.item() == pytest.approx(marginal.logpdf(y[~gone]), abs=1e-12)


@pytest.mark.one_in(2)
@cases
def test_rows_do_not_influence_each_other(case):
    batch = [gappy(case, seed) for seed in (1, 2)] + [series(case, 3, STEPS, **TOLD)]
    together = run(case, batch, 8)
    for row, one in enumerate(batch):
        for a, b in zip(together, run(case, [one], 8), strict=True):
            pairs = zip(moca.leaves(a.state), moca.leaves(b.state), strict=True)
            for ours, own in pairs:
                torch.testing.assert_close(ours[row], own[0], atol=1e-12, rtol=1e-12)
            score = a.info.log_score[row], b.info.log_score[0]
            torch.testing.assert_close(*score, atol=1e-12, rtol=1e-12, equal_nan=True)


@pytest.mark.one_in(2)
@cases
def test_segments_have_the_moments_of_what_would_be_there(case):
    """Labels of one level and spread, a third of whose outputs is missing at random."""
    steps, rng = 400, np.random.default_rng(5)
    level, spread = np.array([3.0, -40.0]), np.array([0.5, 8.0])
    y = level + spread * rng.normal(size=(steps, 2))
    gone = rng.random(y.shape) < 0.33
    gone[gone.all(1)] = False
    one = series(case, 5, steps, hazard=1e-4)._replace(y=np.where(gone, np.nan, y))
    far = case._replace(location=level + 2.0 * spread, scale=1.5 * spread)
    steps_ = run(far, [one], 8)
    assert all(step.info.ok.all() for step in steps_)
    count, *sums = steps_[-1].state.totals[0].tolist()
    assert count == steps
    means, squares = np.array(sums[:2]) / steps, np.array(sums[2:]) / steps
    error = spread / np.sqrt((~gone).sum(0))
    assert (np.abs(means + far.location - level) < 4 * error).all()
    deviation = np.sqrt(squares - means**2)
    assert (np.abs(deviation / spread - 1) < 4 * np.sqrt(0.5 / (~gone).sum(0)) + 0.03).all()


@pytest.mark.one_in(2)
@cases
def test_a_state_survives_being_stored(case):
    one, prior = gappy(case, 9), case.prior()
    steps = run(case, [one], 12)
    at = STEPS // 2 + 5
    blob = codec.encode(case.model, steps[at].state)
    state = codec.decode(case.model, prior, 12, blob)
    assert codec.encode(case.model, state) == blob
    for t in range(at + 1, STEPS):
        state, info = moca.step(case.model, state, prior, inputs([one], t))
        assert info.ok.all()
        score = info.log_score, steps[t].info.log_score
        torch.testing.assert_close(*score, atol=1e-11, rtol=0, equal_nan=True)
