"""Choosing among candidates: draws against the exact posterior, and whose chance is whose."""

import numpy as np
import pytest
import torch
from scipy import stats

from model_core import actions
from model_core import filter as moca
from model_core.actions import Hypotheses, Strategy, choose, draw_slots, seeded
from model_core.upm.base import UnderlyingModel, tree_map
from model_core.upm.regression import covariance_root
from tests.model_core.case import irregular, tensor
from tests.model_core.cases import BY_NAME
from tests.model_core.learned_cases import lstm_case
from tests.model_core.regression_cases import linear_case

DRAWS = 20_000
REGRESSIONS = ["alpaca-1", "alpaca-unknown-1"]


def grown(case, batch: int = 1, steps: int = 6, seed: int = 0) -> Hypotheses:
    """Hypotheses before the label to come, after some labels; each stream has its own."""
    prior = case.prior(batch)
    state, ones = moca.init(prior, 4), torch.ones(batch, dtype=torch.float64)
    for t in range(steps):
        drawn = [case.draw(np.random.default_rng(seed + i), steps) for i in range(batch)]
        x, y = (tensor(np.stack([each[t] for each in row])) for row in zip(*drawn, strict=True))
        inputs = moca.Inputs(x, y, ones > 0, 0.2 * ones[:, None], ones, ones * np.nan, 0 * ones)
        state, _ = moca.step(case.model, state, prior, inputs)
    return actions.hypotheses(moca.grow(state, prior, inputs)[0])


def candidates(batch: int, count: int = 4, seed: int = 3):
    return tensor(irregular(batch, count, 2, seed=seed))


def only(held: Hypotheses, slot: int) -> Hypotheses:
    """One hypothesis for certain."""
    log_prob = torch.full_like(held.log_prob, -torch.inf)
    log_prob[:, slot] = 0.0
    return held._replace(log_prob=log_prob)


@pytest.mark.parametrize("slot", [0, 2])
def test_draws_have_the_posteriors_moments(slot):
    case = BY_NAME["alpaca-1"]
    model, held = case.model, only(grown(case), slot)
    asked = candidates(1)
    drawn = actions.draw(model, held, asked, DRAWS, seeded([1]))[0].numpy()
    scale = model.y_scale.item()
    phi = model.encode(asked[0], held.context)
    cov = phi @ held.stats.cov[0, slot] @ phi.T * model.noise_variance * scale**2
    mean = (phi @ held.stats.mean[0, slot]).squeeze(-1) * scale + model.y_offset
    sd = cov.diagonal().sqrt().numpy()
    assert (np.abs(drawn.mean(0) - mean.numpy()) < 4 * sd / DRAWS**0.5).all()
    # Of a sample covariance the variance is (s_ii s_jj + s_ij^2) / n.
    error = np.sqrt((np.outer(sd, sd) ** 2 + cov.numpy() ** 2) / DRAWS)
    assert (np.abs(np.cov(drawn.T) - cov.numpy()) < 4 * error).all()
    for each, centre, spread in zip(drawn.T, mean.tolist(), sd, strict=True):
        assert stats.kstest(each, "norm", (centre, spread)).pvalue > 1e-3


def test_with_unknown_noise_draws_are_student():
    case = BY_NAME["alpaca-unknown-1"]
    model, held, asked = case.model, only(grown(case), 1), candidates(1)
    drawn = actions.draw(model, held, asked, DRAWS, seeded([2]))[0].numpy()
    scale, (alpha, beta) = model.y_scale.item(), (each[0, 1].item() for each in held.stats[2:])
    phi = model.encode(asked[0], held.context)
    mean = (phi @ held.stats.mean[0, 1]).squeeze(-1) * scale + model.y_offset
    form = phi @ held.stats.cov[0, 1] @ phi.T * beta / alpha * scale**2
    for i in range(4):
        law = stats.t(2 * alpha, mean[i].item(), form[i, i].sqrt().item())
        assert stats.kstest(drawn[:, i], law.cdf).pvalue > 1e-3
    # Jointly: any contrast of the candidates is a Student-t too.
    contrast = torch.tensor([1.0, -2.0, 0.5, 1.5], dtype=torch.float64)
    spread = (contrast @ form @ contrast).sqrt().item()
    law = stats.t(2 * alpha, (contrast @ mean).item(), spread)
    assert stats.kstest(drawn @ contrast.numpy(), law.cdf).pvalue > 1e-3


@pytest.mark.parametrize("name", REGRESSIONS)
def test_draws_are_of_the_function_not_of_labels(name):
    """Asked twice at one input, a function answers the same."""
    case = BY_NAME[name]
    asked = candidates(2).repeat(1, 2, 1)
    drawn = actions.draw(case.model, grown(case, 2), asked, 50, seeded([3, 4]))
    torch.testing.assert_close(drawn[..., :4], drawn[..., 4:], atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", REGRESSIONS)
def test_a_seed_means_a_function_whatever_it_is_asked_at(name):
    case = BY_NAME[name]
    held, asked = grown(case), candidates(1, 6)
    whole = actions.draw(case.model, held, asked, 5, seeded([5]))
    part = actions.draw(case.model, held, asked[:, 3:], 5, seeded([5]))
    torch.testing.assert_close(whole[..., 3:], part, atol=1e-12, rtol=0)


def test_hypotheses_are_drawn_as_often_as_they_are_believed():
    held = grown(BY_NAME["alpaca-1"])
    uniform = torch.rand(1, DRAWS, generator=seeded([6])[0], dtype=torch.float64)
    slots = draw_slots(held.log_prob, held.run_length, uniform)
    belief = held.log_prob[0].exp()
    share = torch.bincount(slots[0], minlength=len(belief)) / DRAWS
    error = (belief * (1 - belief) / DRAWS).sqrt()
    assert ((share - belief).abs() <= 4 * error).all()


def test_slots_are_the_inverse_cdf_shortest_run_first():
    log_prob = tensor([[0.5, 0.0, 0.2, 0.3]]).log()
    run_length = torch.tensor([[7, 0, 1, 3]])
    uniform = tensor([[0.0, 0.199, 0.201, 0.499, 0.501, 1 - 1e-16]])
    assert draw_slots(log_prob, run_length, uniform).tolist() == [[2, 2, 3, 3, 0, 0]]
    # A belief that sums to a little less than one draws no empty slot.
    short = log_prob + np.log1p(-1e-9)
    assert draw_slots(short, run_length, tensor([[1 - 1e-12]])).tolist() == [[0]]


def test_draws_mix_over_run_lengths():
    """The mean and variance over everything are the mixture's, without the noise."""
    case = BY_NAME["alpaca-1"]
    held, asked = grown(case), candidates(1)
    drawn = actions.draw(case.model, held, asked, DRAWS, seeded([7]))[0]
    mean = actions.mean(case.model, held, asked)[0]
    sd = drawn.std(0)
    assert ((drawn.mean(0) - mean).abs() < 4 * sd / DRAWS**0.5).all()
    phi = case.model.encode(asked[0], held.context)
    scale = case.model.y_scale.item()
    each = (held.stats.mean[0].squeeze(-1) @ phi.T) * scale + case.model.y_offset
    form = torch.einsum("an,snm,am->sa", phi, held.stats.cov[0], phi)
    inside = form * case.model.noise_variance * scale**2 + (each - mean).square()
    variance = (held.log_prob[0].exp() @ inside).sqrt()
    torch.testing.assert_close(sd, variance, rtol=0.03, atol=0)


@pytest.mark.parametrize("name", ["alpaca-1", "alpaca-unknown-1"])
def test_the_mean_is_that_of_the_predictive_mixture(name):
    case = BY_NAME[name]
    held, asked = grown(case, 3), candidates(3)
    got = actions.mean(case.model, held, asked)
    for a in range(4):
        components = case.model.predictive(held.stats, case.model.encode(asked[:, a], held.context))
        expected = (held.log_prob.exp() * components.mean().squeeze(-1)).sum(-1)
        torch.testing.assert_close(got[:, a], expected)
    # And so says the method that models which are no regressions have.
    phi = case.model.encode(asked.flatten(0, 1), held.context).reshape(3, 4, -1)
    general = UnderlyingModel.means(case.model, held.stats, phi)
    torch.testing.assert_close(case.model.means(held.stats, phi), general)


STRATEGIES = [Strategy("thompson"), Strategy("optimistic", 4), Strategy("greedy")]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda each: each.name)
@pytest.mark.parametrize("name", REGRESSIONS)
def test_a_stream_never_sees_its_batch_mates(name, strategy):
    case = BY_NAME[name]
    held, asked = grown(case, 3), candidates(3)
    together = choose(case.model, held, asked, strategy, seeded([8, 9, 10]))
    for i in range(3):
        own = Hypotheses(
            held.log_prob[i : i + 1],
            held.run_length[i : i + 1],
            tree_map(lambda each, i=i: each[i : i + 1], held.stats),
            held.context[i : i + 1],
        )
        alone = choose(case.model, own, asked[i : i + 1], strategy, seeded([8 + i]))
        assert alone.chosen[0] == together.chosen[i]
        torch.testing.assert_close(alone.values[0], together.values[i], atol=1e-12, rtol=0)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda each: each.name)
def test_slots_do_not_matter(strategy):
    case = BY_NAME["alpaca-1"]
    held, asked = grown(case), candidates(1)
    order = torch.tensor([3, 0, 4, 2, 1])
    moved = Hypotheses(
        held.log_prob[:, order],
        held.run_length[:, order],
        tree_map(lambda each: each[:, order], held.stats),
        held.context,
    )
    one, two = (choose(case.model, each, asked, strategy, seeded([11])) for each in (held, moved))
    torch.testing.assert_close(one.values, two.values, atol=1e-12, rtol=0)


def test_strategies_take_the_best_of_what_they_say():
    case = BY_NAME["alpaca-1"]
    held, asked = grown(case, 2), candidates(2)
    thompson = choose(case.model, held, asked, Strategy("thompson"), seeded([12, 13]))
    drawn = actions.draw(case.model, held, asked, 1, seeded([12, 13]))
    assert torch.equal(thompson.values, drawn[:, 0])
    optimistic = choose(case.model, held, asked, Strategy("optimistic", 5), seeded([12, 13]))
    drawn = actions.draw(case.model, held, asked, 5, seeded([12, 13]))
    # The best candidate of all drawn functions, found one by one.
    for i in range(2):
        pairs = [(drawn[i, d, a].item(), a) for d in range(5) for a in range(4)]
        assert optimistic.chosen[i] == max(pairs)[1]
        assert optimistic.values[i].max() == max(pairs)[0]
    greedy = choose(case.model, held, asked, Strategy("greedy"), seeded([12, 13]))
    assert torch.equal(greedy.values, actions.mean(case.model, held, asked))
    for each in (thompson, optimistic, greedy):
        assert torch.equal(each.chosen, each.values.argmax(-1))


def test_nothing_given_is_changed():
    case = BY_NAME["alpaca-1"]
    held, asked = grown(case), candidates(1)
    before = [each.clone() for each in (*held.stats, *held[:2], asked)]
    choose(case.model, held, asked, Strategy("optimistic"), seeded([1]))
    after = (*held.stats, *held[:2], asked)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_model_without_training_takes_inputs_too():
    """Draws at the stream's own scaling of inputs, mixed over run lengths."""
    case = linear_case(y_dim=1)
    held, asked = grown(case, 2), candidates(2)
    drawn = actions.draw(case.model, held, asked, 4000, seeded([14, 15]))
    found = actions.mean(case.model, held, asked)
    assert ((drawn.mean(1) - found).abs() < 5 * drawn.std(1) / 4000**0.5).all()


def test_a_trend_starts_with_each_hypothesis():
    case = BY_NAME["autoregressive-all"]
    state = moca.init(case.prior(2), 4)
    stats = state.stats._replace(origin=torch.tensor([-1.0, 0, 1, 2, 3]).double()[None, :, None])
    stats = stats._replace(origin=stats.origin.expand(2, -1, -1), mean=stats.mean + 1)
    phi = case.model.encode(None, state.context).unsqueeze(1)
    phi = torch.cat((phi, phi + 5), 1)
    general = UnderlyingModel.means(case.model, stats, phi)
    torch.testing.assert_close(case.model.means(stats, phi), general)
    certain = stats._replace(beta=0 * stats.beta)  # no noise: the function is its mean
    drawn = case.model.draw(certain, phi, seeded([16, 17]))
    torch.testing.assert_close(drawn, general)


def test_other_models_draw_labels_of_the_drawn_hypothesis():
    case = lstm_case(1)
    held, asked = only(grown(case, 2), 1), candidates(2, 2)
    drawn = actions.draw(case.model, held, asked, DRAWS, seeded([18, 19]))
    for i in range(2):
        for a in range(2):
            each = case.model.predictive(held.stats, case.model.encode(asked[:, a], held.context))
            law = stats.norm(each.loc[i, 1, 0].item(), each.scale[i, 1, 0].item())
            assert stats.kstest(drawn[i, :, a].numpy(), law.cdf).pvalue > 1e-3
        correlation = np.corrcoef(drawn[i].T.numpy())[0, 1]
        assert abs(correlation) < 4 / DRAWS**0.5


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda each: each.name)
def test_other_models_do_not_see_batch_mates(strategy):
    case = lstm_case(1)
    held, asked = grown(case, 3), candidates(3)
    together = choose(case.model, held, asked, strategy, seeded([8, 9, 10]))
    own = Hypotheses(
        *(each[2:] for each in held[:2]), tree_map(lambda t: t[2:], held.stats), held[3][2:]
    )
    alone = choose(case.model, own, asked[2:], strategy, seeded([10]))
    torch.testing.assert_close(alone.values[0], together.values[2], atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["alpaca-2", "pcoc-3", "gaussian-1"])
def test_a_model_that_orders_no_actions_is_refused(name):
    model = BY_NAME[name].model
    nothing = torch.zeros(1, 1, dtype=torch.float64)
    held = Hypotheses(nothing, nothing.long(), None, nothing[:, :0])
    with pytest.raises(ValueError, match="expected a model with inputs and one ordered label"):
        choose(model, held, candidates(1), Strategy("greedy"), [])


@pytest.mark.parametrize("shape", [(1, 0, 2), (1, 3, 1), (1, 2)])
def test_candidates_of_another_shape_are_refused(shape):
    case = BY_NAME["alpaca-1"]
    with pytest.raises(ValueError, match=r"expected candidates \(B, A, 2\), got"):
        choose(case.model, grown(case), torch.zeros(shape), Strategy("greedy"), [])


def test_roots_of_covariances_with_no_variance_left_in_a_direction():
    full, thin = tensor(irregular(5, 5, seed=20)), tensor(irregular(5, 2, seed=21))
    broken = torch.full((5, 5), torch.nan, dtype=torch.float64)
    cov = torch.stack((full @ full.T, thin @ thin.T, torch.zeros(5, 5).double(), broken))
    root = covariance_root(cov)
    torch.testing.assert_close(root[:3] @ root[:3].mT, cov[:3], atol=1e-9, rtol=1e-9)
    assert root[3].isnan().all()
    torch.testing.assert_close(covariance_root(cov[0]), root[0])
