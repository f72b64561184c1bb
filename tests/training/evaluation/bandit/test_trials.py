"""Agents on the wheel bandit: their posteriors, their regret, and that chance is paired."""

import dataclasses

import pytest
import torch

from model_core import filter as moca
from model_core.actions import Strategy
from model_core.filter import Inputs
from model_core.upm.alpaca import NoisePrior
from model_core.upm.base import tree_map
from tests.training.toy import toy
from training.data import wheel
from training.evaluation.bandit import agents
from training.evaluation.bandit import trials as bandit
from training.evaluation.bandit.agents import AGENTS, Moca, Oracle, Random, Window
from training.evaluation.bandit.trials import STRATEGIES, compare, follow, run

THOMPSON = STRATEGIES["thompson"]


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model():
    return toy()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def world(count: int, steps: int, hazard: float = 0.05, seed: int = 1):
    return wheel.world(seeded(seed), count, steps, hazard)


def rows(count: int, steps: int, seed: int = 2):
    """Inputs (B, T, 7), rewards (B, T, 1) and switches (B, T) of the data collection."""
    return wheel.collected(seeded(seed), count, steps, 0.1)


def begun(agent, model, count):
    zeros = torch.zeros(count, 1, dtype=torch.float64)
    prior = moca.make_prior(model, zeros, zeros + 1)
    return agent.begin(model, prior), prior


def refitted(model, x, y):
    """Posterior mean and covariance, solved from all the rows at once."""
    phi, precision = model.encoder(x), torch.linalg.inv(model.prior_cov)
    cov = torch.linalg.inv(precision + phi.T @ phi)
    return cov @ (precision @ model.prior_mean + phi.T @ y), cov


def assert_refit(model, held, trial, x, y):
    mean, cov = refitted(model, x, y)
    torch.testing.assert_close(held.stats.mean[trial, 0], mean, atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(held.stats.cov[trial, 0], cov, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("length", [0, 1, 5, 10, 100])
def test_a_windows_posterior_is_a_refit_of_its_rows(model, length):
    batch, never = rows(2, 25), torch.zeros(2, dtype=torch.bool)
    holder, _ = begun(Window(length), model, 2)
    for t in range(25):
        held, seen = holder.held(never), slice(max(0, t - length), t)
        for i in range(2):
            assert_refit(model, held, i, batch.x[i, seen], batch.y[i, seen])
        holder.learn(batch.x[:, t], batch.y[:, t])


def test_the_oracles_posterior_is_a_refit_since_the_switch(model):
    batch = rows(3, 40)
    holder, _ = begun(Oracle(), model, 3)
    for t in range(40):
        held = holder.held(batch.switch[:, t])
        for i in range(3):
            start = batch.switch[i, : t + 1].nonzero().max().item()
            assert_refit(model, held, i, batch.x[i, start:t], batch.y[i, start:t])
        holder.learn(batch.x[:, t], batch.y[:, t])


@pytest.mark.parametrize("hypotheses", [50, 6])
@pytest.mark.parametrize("known", [True, False])
def test_moca_holds_what_the_filter_does(model, hypotheses, known):
    if not known:
        told = torch.tensor([2.0]).double(), torch.tensor([0.3]).double()
        model = dataclasses.replace(model, noise_variance=None, noise_prior=NoisePrior(*told))
    units = torch.tensor([0.3]).double(), torch.tensor([1.7]).double()
    model = dataclasses.replace(model, y_offset=units[0], y_scale=units[1])
    batch = rows(2, 30)
    holder, prior = begun(Moca(0.07, hypotheses), model, 2)
    state, ones = moca.init(prior, hypotheses), torch.ones(2, dtype=torch.float64)
    for t in range(30):
        x, y, table = batch.x[:, t], batch.y[:, t], 0.07 * ones[:, None]
        inputs = Inputs(x, y, ones > 0, table, ones, ones * torch.nan, 0 * ones)
        expected, _ = moca.grow(state, prior, inputs)
        assert_holds(holder.held(batch.switch[:, t]), expected)
        state, _ = moca.step(model, state, prior, inputs)
        assert_holds(holder.learn(x, y), state)


def assert_holds(held, state):
    """The same hypotheses, in the same slots."""
    torch.testing.assert_close(held.log_prob, state.belief.log_prob, atol=1e-9, rtol=1e-9)
    there = torch.isfinite(held.log_prob)
    assert torch.equal(held.run_length[there], state.belief.run_length[there])
    for got, expected in zip(held.stats, state.stats, strict=True):
        torch.testing.assert_close(got[there], expected[there], atol=1e-9, rtol=1e-9)


def test_a_prior_is_not_changed_by_moca(model):
    holder, prior = begun(Moca(0.1, 3), model, 2)
    before = tree_map(torch.clone, prior.stats)
    batch = rows(2, 6)
    for t in range(6):
        holder.held(batch.switch[:, t])
        holder.learn(batch.x[:, t], batch.y[:, t])
    assert all(torch.equal(a, b) for a, b in zip(before, prior.stats, strict=True))


def test_regret_is_the_best_mean_less_that_of_the_action(model):
    met = world(2, 60)
    found = run(Moca(0.05, 20), model, met, THOMPSON, seeded())
    for i in range(2):
        for t in range(60):
            every = [
                wheel.reward_mean(met.states[i, t], torch.tensor(a), met.delta[i, t])
                for a in range(5)
            ]
            mean = every[found.action[i, t]]
            assert found.regret[i, t] == max(every) - mean
            assert found.reward[i, t] == mean + met.noise[i, t]
    torch.testing.assert_close(found.cumulative()[:, -1], found.regret.sum(-1))
    assert (found.cumulative().diff(dim=-1) >= 0).all()


def test_the_random_agents_regret_is_what_it_must_be():
    met = world(20, 1000)
    found = run(Random(), toy(100), met, THOMPSON, seeded())
    every = torch.arange(5)
    means = wheel.reward_mean(met.states[..., None, :], every, met.delta[..., None])
    expected = (wheel.best_mean(met.states, met.delta) - means.mean(-1)).mean().item()
    assert found.regret.mean().item() == pytest.approx(expected, abs=0.02)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_who_knows_more_regrets_less(model, strategy):
    """A well specified model: random, then sliding windows and MOCA, then the oracle."""
    met = world(8, 500, hazard=0.01)
    chosen = {"oracle": Oracle(), "moca": Moca(0.01, 60), "random": Random(), "five": Window(5)}
    found = compare(chosen, model, met, STRATEGIES[strategy], seed=3)
    percent = {name: each.percent_of(found["random"]).mean().item() for name, each in found.items()}
    assert percent["random"] == 100
    assert percent["oracle"] < percent["moca"] < percent["five"] < 60


def test_agents_meet_the_same_noise_and_states(model):
    met = world(3, 40)
    found = compare({"toe": Window(0), "oracle": Oracle()}, model, met, THOMPSON, seed=3)
    toe, oracle = found["toe"], found["oracle"]
    same = toe.action == oracle.action
    assert same.any()
    assert torch.equal(toe.reward[same], oracle.reward[same])
    # Before they know anything, agents with the same seeds act alike.
    assert same[:, 0].all()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", AGENTS)
def test_a_seed_decides_and_batch_mates_do_not(model, name, monkeypatch):
    met, agent = world(4, 40), AGENTS[name]
    together = run(agent, model, met, STRATEGIES["optimistic-3"], seeded(5))
    again = run(agent, model, met, STRATEGIES["optimistic-3"], seeded(5))
    assert all(torch.equal(a, b) for a, b in zip(together, again, strict=True))
    monkeypatch.setattr(bandit, "CACHED", 1)  # one trial after another
    apart = run(agent, model, met, STRATEGIES["optimistic-3"], seeded(5))
    assert torch.equal(together.action, apart.action)
    other = run(agent, model, met, STRATEGIES["optimistic-3"], seeded(6))
    assert not torch.equal(together.action, other.action)


def test_what_the_figure_shows_is_the_first_trial_of_the_run(model):
    met, agent = world(2, 60), Moca(0.05, 70)
    shown = follow(agent, model, met, THOMPSON, seeded(7), at=20, points=11)
    whole = run(agent, model, met, THOMPSON, seeded(7))
    assert torch.equal(shown.trials.action[0], whole.action[0])
    torch.testing.assert_close(shown.belief.sum(-1), torch.ones(60))
    assert torch.equal(shown.belief, shown.belief.tril())
    assert torch.equal(shown.switch, met.switch[0])
    assert shown.mean.isnan().any()
    assert torch.equal(shown.mean.isnan(), shown.truth.isnan())


def test_the_figures_mean_is_the_mixtures_over_the_past(model):
    """By the posteriors of all starts, refitted, weighted by the belief that the filter grew."""
    met, at, hazard = world(1, 12), 9, 0.1
    shown = follow(Moca(hazard, 30), model, met, THOMPSON, seeded(8), at=at, points=5)
    action = shown.trials.action
    x, y = wheel.inputs(met.states, action)[0], shown.trials.reward[0].unsqueeze(-1)
    before = shown.belief[at - 1].double()
    for i, j in [(3, 3), (2, 1), (1, 3)]:
        state = torch.stack((shown.axis[j], shown.axis[i]))
        phi = model.encoder(wheel.inputs(state, torch.tensor(1)))
        expected = hazard * (phi @ model.prior_mean).item()
        for r in range(at):
            mean, _ = refitted(model, x[at - 1 - r : at], y[at - 1 - r : at])
            expected += (1 - hazard) * before[r].item() * (phi @ mean).item()
        assert shown.mean[i, j].item() == pytest.approx(expected, abs=1e-6)
        delta = met.delta[0, at]
        assert shown.truth[i, j] == wheel.reward_mean(state, torch.tensor(1), delta)


def test_a_step_that_is_not_there_is_refused(model):
    with pytest.raises(ValueError, match="from 0 to 9, got 10"):
        follow(Moca(), model, world(1, 10), THOMPSON, seeded(), at=10)


@pytest.mark.parametrize("reward", [torch.nan, torch.inf])
def test_what_is_not_finite_is_an_error(model, reward):
    holder, _ = begun(Moca(0.1, 3), model, 1)
    holder.held(torch.ones(1, dtype=torch.bool))
    with pytest.raises(FloatingPointError):
        holder.learn(rows(1, 1).x[:, 0], torch.tensor([[reward]], dtype=torch.float64))


def test_all_agents_and_strategies_have_names():
    assert set(STRATEGIES.values()) == {
        Strategy("thompson"),
        Strategy("optimistic", 3),
        Strategy("optimistic", 5),
        Strategy("greedy"),
    }
    assert [each.length for each in AGENTS.values() if isinstance(each, agents.Window)] == [
        5,
        10,
        50,
        0,
    ]
