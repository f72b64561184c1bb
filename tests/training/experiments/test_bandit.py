"""The wheel bandit: agents' posteriors and regret, tables and figures of trained runs."""

import dataclasses
import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from model_core import filter as moca
from model_core.filter import Inputs
from model_core.upm.alpaca import Alpaca, NoisePrior
from tests.model_core.registry import tensor
from tests.training.moca import moca as command
from tests.training.tiny import SETTINGS, seeded
from training.config import merged
from training.data.files import Place
from training.errors import BadRun
from training.experiments import bandit
from training.experiments.bandit import AGENTS, STRATEGIES, Filtered, Posterior, simulate
from training.jobs import Training, train
from training.paper import Study, finished
from training.results import estimate

THOMPSON = STRATEGIES["thompson"]
HAZARDS, METHODS, STEPS, TRIALS = (0.02, 0.1), {"MOCA", "SW5", "oracle"}, 140, 3
RINGS = 8


class Rings:
    """Indicators: action 0, the quadrant's own action by ring, any other action."""

    def __call__(self, x: Tensor) -> Tensor:
        states, action = x[..., :2], x[..., 2:].argmax(-1)
        own = action == bandit.quadrant(states)
        ring = (states.norm(dim=-1) * RINGS).long().clamp(max=RINGS - 1)
        kind = torch.where(action == 0, RINGS, torch.where(own, ring, RINGS + 1))
        return torch.nn.functional.one_hot(kind, RINGS + 2).to(x)


@pytest.fixture(scope="module")
def model() -> Alpaca:
    """Who knows what the other actions give, and what an own one may give, nearer the edge more."""
    edge = torch.arange(RINGS, dtype=torch.float64) / RINGS
    mean = torch.cat((bandit.HIGH * edge, tensor([bandit.MEDIUM, bandit.LOW])))
    spread = torch.cat((bandit.HIGH * (edge * (1 - edge)).sqrt() + 0.1, tensor([1e-3, 1e-3])))
    noise = bandit.NOISE**2
    ones = torch.ones(bandit.X_DIM, dtype=torch.float64)
    return Alpaca(
        encoder=Rings(),
        prior_mean=mean.unsqueeze(-1),
        prior_cov=torch.diag(spread**2) / noise,
        noise_variance=torch.tensor([noise], dtype=torch.float64),
        x_offset=0 * ones,
        x_scale=ones,
        y_offset=0 * ones[:1],
        y_scale=ones[:1],
        hazard=0.02,
    )


def literal(x1: float, x2: float, action: int, delta: float) -> float:
    """Mean reward as the paper has it, one state and action at a time."""
    if action == 0:
        return 1.0
    own = {(True, True): 1, (False, True): 2, (False, False): 3, (True, False): 4}[x1 > 0, x2 > 0]
    return 2.0 if action == own and math.hypot(x1, x2) > delta else 0.0


@pytest.fixture(scope="module")
def met():
    return bandit.world(seeded(1), 40, 1000, 0.05)


def test_mean_rewards_are_the_papers(met):
    states, delta = met.states[0, :300], met.delta[0, :300]
    # The edges of quadrants, and a state at the radius itself.
    states = torch.cat((states, torch.tensor([[0.0, 0.5], [0.5, 0.0], [0.0, 0.0], [0.6, 0.8]])))
    delta = torch.cat((delta, torch.tensor([0.1, 0.1, 0.0, 1.0])))
    means = []
    for action in range(bandit.ACTIONS):
        got = bandit.reward_mean(states, torch.full((304,), action), delta)
        pairs = zip(states.tolist(), delta.tolist(), strict=True)
        assert got.tolist() == [literal(*state, action, radius) for state, radius in pairs]
        means.append(got)
    assert torch.equal(bandit.best_mean(states, delta), torch.stack(means).amax(0))


def test_the_world_of_the_wheel_is_the_papers(met):
    squared = met.states.square().sum(-1).flatten()
    assert squared.max() <= 1
    for inside in (0.25, 0.5, 0.75):  # uniform in the disc
        assert (squared < inside).double().mean().item() == pytest.approx(inside, abs=0.01)
    counts = torch.bincount(bandit.quadrant(met.states).flatten(), minlength=5) / squared.numel()
    assert counts.tolist() == pytest.approx([0.0, 0.25, 0.25, 0.25, 0.25], abs=0.01)
    moved = met.delta[:, 1:] != met.delta[:, :-1]
    assert torch.equal(moved, met.switch[:, 1:])
    drawn = met.delta[met.switch]
    assert drawn.mean().item() == pytest.approx(0.5, abs=0.03)
    assert drawn.var().item() == pytest.approx(1 / 12, abs=0.01)
    assert met.noise.std().item() == pytest.approx(0.5, abs=0.01)


def rows(count: int, steps: int, seed: int = 2):
    """Inputs (B, T, 7), rewards (B, T, 1) and switches (B, T) of the data collection."""
    return bandit.collected(seeded(seed), count, steps, 0.1)


def begun(agent, model, count):
    zeros = torch.zeros(count, 1, dtype=torch.float64)
    prior = moca.make_prior(model, zeros, zeros + 1)
    return agent(model, prior), prior


def refitted(model, x, y):
    """Posterior mean and covariance, solved from all the rows at once."""
    phi, precision = model.encoder(x), torch.linalg.inv(model.prior_cov)
    cov = torch.linalg.inv(precision + phi.T @ phi)
    return cov @ (precision @ model.prior_mean + phi.T @ y), cov


def assert_refit(model, held, trial, x, y):
    mean, cov = refitted(model, x, y)
    torch.testing.assert_close(held.stats.mean[trial, 0], mean, atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(held.stats.cov[trial, 0], cov, atol=1e-8, rtol=1e-8)


def test_posteriors_of_windows_and_of_the_oracle_are_refits_of_their_rows(model):
    batch, never = rows(2, 12), torch.zeros(2, dtype=torch.bool)
    for length in (0, 5, 100):
        holder, _ = begun(partial(Posterior, length=length), model, 2)
        for t in range(12):
            held, seen = holder.held(never), slice(max(0, t - length), t)
            for i in range(2):
                assert_refit(model, held, i, batch.x[i, seen], batch.y[i, seen])
            holder.learn(batch.x[:, t], batch.y[:, t])
    holder, _ = begun(Posterior, model, 2)
    for t in range(12):
        held = holder.held(batch.switch[:, t])
        for i in range(2):
            start = batch.switch[i, : t + 1].nonzero().max().item()
            assert_refit(model, held, i, batch.x[i, start:t], batch.y[i, start:t])
        holder.learn(batch.x[:, t], batch.y[:, t])


@pytest.mark.parametrize(("hypotheses", "known_noise"), [(50, True), (6, False)])
def test_moca_holds_what_the_filter_does(model, hypotheses, known_noise):
    if not known_noise:
        noise = torch.tensor([2.0]).double(), torch.tensor([0.3]).double()
        model = dataclasses.replace(model, noise_variance=None, noise_prior=NoisePrior(*noise))
    units = torch.tensor([0.3]).double(), torch.tensor([1.7]).double()
    model = dataclasses.replace(model, y_offset=units[0], y_scale=units[1], hazard=0.07)
    batch = rows(2, 30)
    holder, prior = begun(partial(Filtered, hypotheses=hypotheses), model, 2)
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


def test_regret_is_the_best_mean_less_that_of_the_action(model):
    met = bandit.world(seeded(1), 2, 60, 0.05)
    action = simulate(partial(Filtered, hypotheses=20), model, met, THOMPSON, seeded())
    regret = bandit.regret(met, action)
    for i in range(2):
        for t in range(60):
            every = [
                bandit.reward_mean(met.states[i, t], torch.tensor(a), met.delta[i, t])
                for a in range(5)
            ]
            assert regret[i, t] == max(every) - every[action[i, t]]


def test_who_knows_more_regrets_less_and_the_random_agent_what_it_must(model):
    met = bandit.world(seeded(1), 8, 150, 0.02)
    chosen = {
        "oracle": Posterior,
        "moca": partial(Filtered, hypotheses=30),
        "random": None,
        "five": partial(Posterior, length=5),
    }
    played = {
        name: bandit.regret(met, simulate(agent, model, met, THOMPSON, seeded(3)))
        for name, agent in chosen.items()
    }
    regret = {name: steps.sum().item() for name, steps in played.items()}
    assert regret["oracle"] < regret["moca"] < regret["five"] < 0.6 * regret["random"]
    means = bandit.reward_mean(met.states[..., None, :], torch.arange(5), met.delta[..., None])
    expected = (bandit.best_mean(met.states, met.delta) - means.mean(-1)).mean().item()
    assert played["random"].mean().item() == pytest.approx(expected, abs=0.1)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(bandit, "STEPS", STEPS)


def wanted_of(runs, out):
    return Study("bandit", "quick", runs, Place(None, runs / "cache"), out)


@pytest.mark.slow
def test_regret_of_trained_runs_from_runs_to_tables_and_figures(tmp_path, short, monkeypatch):
    runs, out = tmp_path / "runs", tmp_path / "out"
    place, modes = Place(None, runs / "cache"), ["moca", "sw5", "oracle", "coe"]  # coe: no agent
    train(Training("bandit", "quick", runs, hazards=HAZARDS, modes=modes), SETTINGS, place)
    asked = ["--strategy", "thompson", "--strategy", "greedy", "--trials", TRIALS]
    result = command("evaluate", "bandit", "--runs", runs, "--out", out, *asked)
    assert result.exit_code == 0, result.stderr
    wanted = wanted_of(runs, out)
    chosen = wanted.chosen()
    met = bandit.world(seeded(bandit.SEED), TRIALS, STEPS, 0.02)
    for strategy in ("thompson", "greedy"):
        rows = json.loads((out / strategy / "table.json").read_text())["rows"]
        assert {(row["hazard"], row["method"]) for row in rows} == {
            (hazard, method) for hazard in HAZARDS for method in METHODS
        }
        one = chosen[0.02, "MOCA"]
        played = bandit.play(one, wanted, TRIALS, strategy)
        with torch.no_grad():  # percent of the random agent's regret on the same worlds
            own, chosen_by = bandit.model(one, wanted), STRATEGIES[strategy]
            ours, anything = (
                bandit.regret(met, simulate(agent, own, met, chosen_by, seeded(bandit.SEED)))
                for agent in (AGENTS["MOCA"], None)
            )
        expected = 100 * ours.sum(-1) / anything.sum(-1)
        np.testing.assert_allclose(played["percent"], expected)
        (row,) = (r for r in rows if (r["hazard"], r["method"]) == (0.02, "MOCA"))
        assert (row["mean"], row["count"]) == (estimate(played["percent"])[0], TRIALS)
    names = {file.name for file in out.iterdir()}
    assert {"wheel.png", "losses-0.02.png", "regret-greedy.png", "cumulative-greedy.svg"} <= names
    monkeypatch.setattr(bandit, "model", None)  # nothing is played again
    again = bandit.play(one, wanted, TRIALS, "greedy")
    np.testing.assert_array_equal(played["percent"], again["percent"])
    with pytest.raises(TypeError):
        bandit.play(one, wanted, TRIALS + 1, "greedy")


def test_what_no_agent_can_play_is_refused(tmp_path):
    for arguments, message in (
        (("--runs", tmp_path, "--strategy", "bold"), "optimistic-3"),
        (("--runs", tmp_path), "moca train bandit"),
    ):
        result = command("evaluate", "bandit", "--out", tmp_path / "out", *arguments)
        assert result.exit_code == 2
        assert message in result.stderr
    place = Place(None, tmp_path / "cache")
    settings = merged(SETTINGS, {"model": {"kind": "lstm"}})
    wanted = Training("bandit", "quick", tmp_path, hazards=[0.1], modes=["moca"])
    train(wanted, settings, place)
    (run,) = finished(tmp_path)
    with pytest.raises(BadRun, match="got 'lstm'"):
        bandit.model(run, wanted_of(tmp_path, tmp_path))
