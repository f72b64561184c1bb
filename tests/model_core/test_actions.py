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
from tests.model_core.cases import run, series
from tests.model_core.registry import case, irregular, linear_case, lstm_case, tensor

DRAWS = 20_000
REGRESSIONS = ["alpaca-1", "alpaca-unknown-1"]
STRATEGIES = [Strategy("thompson"), Strategy("optimistic", 4), Strategy("greedy")]


def grown(model_case, batch: int = 1) -> Hypotheses:
    """Hypotheses before the label to come, after six labels; each stream has its own."""
    streams = [series(model_case, i, 6, hazard=0.2) for i in range(batch)]
    last = run(model_case, streams, 4)[-1]
    return actions.hypotheses(moca.grow(last.state, model_case.prior(batch), last.inputs)[0])


def candidates(batch: int, count: int = 4):
    return tensor(irregular(batch, count, 2, seed=3))


def rows(held: Hypotheses, at: slice) -> Hypotheses:
    """Those of some streams."""
    stats = tree_map(lambda each: each[at], held.stats)
    return Hypotheses(held.log_prob[at], held.run_length[at], stats, held.context[at])


def only(held: Hypotheses, slot: int) -> Hypotheses:
    """One hypothesis for certain."""
    log_prob = torch.full_like(held.log_prob, -torch.inf)
    log_prob[:, slot] = 0.0
    return held._replace(log_prob=log_prob)


@pytest.mark.parametrize("name", REGRESSIONS)
def test_draws_are_of_the_posterior_of_the_function(name):
    """Normal where the noise is known, Student-t where it is not; any contrast is one, too."""
    model, held = case(name).model, only(grown(case(name)), 1)
    asked = candidates(1)
    drawn = actions.draw(model, held, asked, DRAWS, seeded([2]))[0].numpy()
    phi = model.encode(asked[0], held.context)
    scale = model.y_scale.item()
    mean = (phi @ held.stats.mean[0, 1]).squeeze(-1) * scale + model.y_offset
    form = phi @ held.stats.cov[0, 1] @ phi.T * scale**2
    if name == "alpaca-1":
        cov = form * model.noise_variance
        law = stats.norm
    else:
        alpha, beta = (each[0, 1].item() for each in held.stats[2:])
        cov = form * beta / alpha
        law = stats.t(2 * alpha)
    for contrast in (*torch.eye(4).double(), tensor([1.0, -2.0, 0.5, 1.5])):
        spread = (contrast @ cov @ contrast).sqrt().item()
        values = (drawn @ contrast.numpy() - (contrast @ mean).item()) / spread
        assert stats.kstest(values, law.cdf).pvalue > 1e-3


@pytest.mark.parametrize("name", REGRESSIONS)
def test_a_seed_means_a_function_whatever_it_is_asked_at(name):
    """Without noise: asked twice at one input, it answers the same."""
    held, asked = grown(case(name)), candidates(1, 6)
    twice = torch.cat((asked, asked), 1)
    whole = actions.draw(case(name).model, held, twice, 5, seeded([5]))
    torch.testing.assert_close(whole[..., :6], whole[..., 6:], atol=1e-12, rtol=0)
    part = actions.draw(case(name).model, held, asked[:, 3:], 5, seeded([5]))
    torch.testing.assert_close(whole[..., 3:6], part, atol=1e-12, rtol=0)


def test_slots_are_the_inverse_cdf_shortest_run_first():
    log_prob = tensor([[0.5, 0.0, 0.2, 0.3]]).log()
    run_length = torch.tensor([[7, 0, 1, 3]])
    uniform = tensor([[0.0, 0.199, 0.201, 0.499, 0.501, 1 - 1e-16]])
    assert draw_slots(log_prob, run_length, uniform).tolist() == [[2, 2, 3, 3, 0, 0]]
    # A belief that sums to a little less than one draws no empty slot.
    short = log_prob + np.log1p(-1e-9)
    assert draw_slots(short, run_length, tensor([[1 - 1e-12]])).tolist() == [[0]]


@pytest.mark.parametrize("name", REGRESSIONS)
def test_the_mean_is_that_of_the_predictive_mixture_and_of_draws(name):
    model_case = case(name)
    held, asked = grown(model_case, 3), candidates(3)
    found = actions.mean(model_case.model, held, asked)
    for a in range(4):
        components = model_case.model.predictive(
            held.stats, model_case.model.encode(asked[:, a], held.context)
        )
        expected = (held.log_prob.exp() * components.mean().squeeze(-1)).sum(-1)
        torch.testing.assert_close(found[:, a], expected)
    # And so says the method that models which are no regressions have.
    phi = model_case.model.encode(asked.flatten(0, 1), held.context).reshape(3, 4, -1)
    general = UnderlyingModel.means(model_case.model, held.stats, phi)
    torch.testing.assert_close(model_case.model.means(held.stats, phi), general)
    drawn = actions.draw(model_case.model, held, asked, 5000, seeded([7, 8, 9]))
    assert ((drawn.mean(1) - found).abs() < 4 * drawn.std(1) / 5000**0.5).all()


@pytest.mark.parametrize("name", [*REGRESSIONS, "lstm-1", "linear-1"])
def test_a_stream_sees_neither_its_batch_mates_nor_its_slots(name):
    others = {"lstm-1": lstm_case, "linear-1": linear_case}
    model_case = others[name](1) if name in others else case(name)
    held, asked = grown(model_case, 3), candidates(3)
    order = torch.tensor([3, 0, 4, 2, 1])
    moved = held._replace(
        log_prob=held.log_prob[:, order],
        run_length=held.run_length[:, order],
        stats=tree_map(lambda each: each[:, order], held.stats),
    )
    kept = [each.clone() for each in (*held[:2], asked)]
    for strategy in STRATEGIES:
        together = choose(model_case.model, held, asked, strategy, seeded([8, 9, 10]))
        for i in range(3):
            one = slice(i, i + 1)
            for each in (held, moved):
                alone = choose(
                    model_case.model, rows(each, one), asked[one], strategy, seeded([8 + i])
                )
                assert alone.chosen[0] == together.chosen[i]
                torch.testing.assert_close(alone.values[0], together.values[i], atol=1e-12, rtol=0)
    assert all(map(torch.equal, kept, (*held[:2], asked)))


def test_strategies_take_the_best_of_what_they_draw():
    model_case = case("alpaca-1")
    held, asked = grown(model_case, 2), candidates(2)
    thompson, _, greedy = (
        choose(model_case.model, held, asked, each, seeded([12, 13])) for each in STRATEGIES
    )
    optimistic = choose(model_case.model, held, asked, Strategy("optimistic", 5), seeded([12, 13]))
    drawn = actions.draw(model_case.model, held, asked, 1, seeded([12, 13]))
    assert torch.equal(thompson.values, drawn[:, 0])
    drawn = actions.draw(model_case.model, held, asked, 5, seeded([12, 13]))
    # The best candidate of all drawn functions, found one by one.
    for i in range(2):
        best, place = max((drawn[i, d, a].item(), a) for d in range(5) for a in range(4))
        assert (optimistic.values[i].max(), optimistic.chosen[i]) == (best, place)
    assert torch.equal(greedy.values, actions.mean(model_case.model, held, asked))
    for each in (thompson, optimistic, greedy):
        assert torch.equal(each.chosen, each.values.argmax(-1))


def test_other_models_draw_labels_of_the_drawn_hypothesis():
    model_case = lstm_case(1)
    held, asked = only(grown(model_case), 1), candidates(1, 2)
    drawn = actions.draw(model_case.model, held, asked, DRAWS, seeded([18]))[0]
    for a in range(2):
        each = model_case.model.predictive(
            held.stats, model_case.model.encode(asked[:, a], held.context)
        )
        law = stats.norm(each.loc[0, 1, 0].item(), each.scale[0, 1, 0].item())
        assert stats.kstest(drawn[:, a].numpy(), law.cdf).pvalue > 1e-3
    assert abs(np.corrcoef(drawn.T.numpy())[0, 1]) < 4 / DRAWS**0.5


def test_what_orders_no_actions_is_refused():
    nothing = torch.zeros(1, 1, dtype=torch.float64)
    held = Hypotheses(nothing, nothing.long(), None, nothing[:, :0])
    for name in ("alpaca-2", "pcoc-3", "gaussian-1"):
        with pytest.raises(ValueError, match="one ordered label"):
            choose(case(name).model, held, candidates(1), Strategy("greedy"), [])
    model_case = case("alpaca-1")
    for shape in ((1, 0, 2), (1, 3, 1), (1, 2)):
        with pytest.raises(ValueError, match="candidates"):
            choose(model_case.model, grown(model_case), torch.zeros(shape), Strategy("greedy"), [])


def test_roots_of_covariances_with_no_variance_left_in_a_direction():
    full, thin = tensor(irregular(5, 5, seed=20)), tensor(irregular(5, 2, seed=21))
    broken = torch.full((5, 5), torch.nan, dtype=torch.float64)
    cov = torch.stack((full @ full.T, thin @ thin.T, torch.zeros(5, 5).double(), broken))
    root = covariance_root(cov)
    torch.testing.assert_close(root[:3] @ root[:3].mT, cov[:3], atol=1e-9, rtol=1e-9)
    assert root[3].isnan().all()
    torch.testing.assert_close(covariance_root(cov[0]), root[0])
