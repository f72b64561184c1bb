"""The wheel bandit: agents' posteriors and regret, tables and figures of trained runs."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from torch import Tensor

from model_core import filter as moca
from model_core.filter import Inputs
from model_core.upm.alpaca import Alpaca, NoisePrior
from tests.training.moca import moca as command
from training.data import wheel
from training.errors import BadRun
from training.evaluation import bandit
from training.evaluation.bandit import AGENTS, STRATEGIES, Moca, Oracle, Random, Window, simulate
from training.evaluation.paper import Study
from training.evaluation.trained import best, trained
from training.experiments.catalogue import Place
from training.experiments.jobs import Training, train
from training.statistics import estimate

THOMPSON = STRATEGIES["thompson"]
SMALL = {
    "model": {"widths": (8,), "features": 4},
    "optimiser": {"iterations": 3, "batch": 3, "length": 12},
    "validation": {"every": 3, "windows": 3},
}
HAZARDS, METHODS, STEPS, TRIALS = (0.02, 0.1), {"MOCA", "SW5", "oracle"}, 140, 3


RINGS = 8


class Rings:
    """Indicators: action 0, the quadrant's own action by ring, any other action."""

    def __call__(self, x: Tensor) -> Tensor:
        states, action = x[..., :2], x[..., 2:].argmax(-1)
        own = action == wheel.quadrant(states)
        ring = (states.norm(dim=-1) * RINGS).long().clamp(max=RINGS - 1)
        kind = torch.where(action == 0, RINGS, torch.where(own, ring, RINGS + 1))
        return torch.nn.functional.one_hot(kind, RINGS + 2).to(x)


def toy(samples: int = 20_000) -> Alpaca:
    """The prior's moments are those of the functions that the radii make, as far as rings go."""
    generator = torch.Generator().manual_seed(0)
    delta = torch.rand(samples, 1, generator=generator, dtype=torch.float64)
    edge = torch.arange(RINGS, dtype=torch.float64) / RINGS
    # Uniform in the ring's radius, near enough.
    within = edge + torch.rand(samples, RINGS, generator=generator, dtype=torch.float64) / RINGS
    value = torch.where(within > delta, wheel.HIGH, wheel.LOW).double()
    fixed = value.new_tensor([wheel.MEDIUM, wheel.LOW]).expand(samples, -1)
    weights = torch.cat((value, fixed), -1)
    noise = wheel.NOISE**2
    cov = weights.T.cov() / noise + 1e-6 * torch.eye(RINGS + 2, dtype=torch.float64)
    ones = torch.ones(wheel.X_DIM, dtype=torch.float64)
    return Alpaca(
        encoder=Rings(),
        prior_mean=weights.mean(0).unsqueeze(-1),
        prior_cov=0.5 * (cov + cov.T),
        noise_variance=torch.tensor([noise], dtype=torch.float64),
        x_offset=0 * ones,
        x_scale=ones,
        y_offset=0 * ones[:1],
        y_scale=ones[:1],
        hazard=0.02,
    )


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


def test_posteriors_of_windows_and_of_the_oracle_are_refits_of_their_rows(model):
    batch, never = rows(2, 25), torch.zeros(2, dtype=torch.bool)
    for length in (0, 1, 5, 100):
        holder, _ = begun(Window(length), model, 2)
        for t in range(25):
            held, seen = holder.held(never), slice(max(0, t - length), t)
            for i in range(2):
                assert_refit(model, held, i, batch.x[i, seen], batch.y[i, seen])
            holder.learn(batch.x[:, t], batch.y[:, t])
    holder, _ = begun(Oracle(), model, 2)
    for t in range(25):
        held = holder.held(batch.switch[:, t])
        for i in range(2):
            start = batch.switch[i, : t + 1].nonzero().max().item()
            assert_refit(model, held, i, batch.x[i, start:t], batch.y[i, start:t])
        holder.learn(batch.x[:, t], batch.y[:, t])


@pytest.mark.parametrize(("hypotheses", "known"), [(50, True), (6, False)])
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


def test_regret_is_the_best_mean_less_that_of_the_action(model):
    met = world(2, 60)
    found = simulate(Moca(0.05, 20), model, met, THOMPSON, seeded())
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


def test_who_knows_more_regrets_less_and_the_random_agent_what_it_must(model):
    """A well specified model: random, then sliding windows and MOCA, then the oracle."""
    met = world(8, 300, hazard=0.01)
    chosen = {"oracle": Oracle(), "moca": Moca(0.01, 60), "random": Random(), "five": Window(5)}
    found = {name: simulate(each, model, met, THOMPSON, seeded(3)) for name, each in chosen.items()}
    percent = {name: each.percent_of(found["random"]).mean().item() for name, each in found.items()}
    assert percent["random"] == 100
    assert percent["oracle"] < percent["moca"] < percent["five"] < 60
    means = wheel.reward_mean(met.states[..., None, :], torch.arange(5), met.delta[..., None])
    expected = (wheel.best_mean(met.states, met.delta) - means.mean(-1)).mean().item()
    assert found["random"].regret.mean().item() == pytest.approx(expected, abs=0.04)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(bandit, "STEPS", STEPS)


def wanted_of(runs, out):
    return Study("bandit", "quick", runs, Place(None, runs / "cache"), out)


@pytest.mark.slow
def test_regret_of_trained_runs_from_runs_to_tables_and_figures(tmp_path, short, monkeypatch):
    runs, out = tmp_path / "runs", tmp_path / "out"
    place, modes = Place(None, runs / "cache"), ["moca", "sw5", "oracle", "coe"]  # coe: no agent
    train(Training("bandit", "quick", runs), SMALL, place, HAZARDS, modes, [], [])
    asked = ["--strategy", "thompson", "--strategy", "greedy", "--trials", TRIALS]
    found = command("evaluate", "bandit", "--runs", runs, "--out", out, *asked)
    assert found.exit_code == 0, found.stderr
    chosen, wanted = best(list(trained(runs / "bandit" / "quick"))), wanted_of(runs, out)
    met = wheel.world(seeded(bandit.SEED), TRIALS, STEPS, 0.02)
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
                simulate(agent, own, met, chosen_by, seeded(bandit.SEED))
                for agent in (AGENTS["MOCA"], Random())
            )
        expected = 100 * ours.regret.sum(-1) / anything.regret.sum(-1)
        np.testing.assert_allclose(played.percent, expected)
        (row,) = (r for r in rows if (r["hazard"], r["method"]) == (0.02, "MOCA"))
        assert (row["mean"], row["sequences"]) == (estimate(played.percent)[0], TRIALS)
    names = {file.name for file in out.iterdir()}
    assert {"wheel.png", "losses-0.02.png", "regret-greedy.png", "cumulative-greedy.svg"} <= names
    monkeypatch.setattr(bandit, "load", None)  # nothing is played again
    again = bandit.play(one, wanted, TRIALS, "greedy")
    np.testing.assert_array_equal(played.percent, again.percent)
    with pytest.raises(TypeError):
        bandit.play(one, wanted, TRIALS + 1, "greedy")


def test_what_no_agent_can_play_is_refused(tmp_path):
    for arguments, said in (
        (("--runs", tmp_path, "--strategy", "bold"), "optimistic-3"),
        (("--runs", tmp_path), "moca train bandit"),
    ):
        found = command("evaluate", "bandit", "--out", tmp_path / "out", *arguments)
        assert found.exit_code == 2
        assert said in found.stderr
    place = Place(None, tmp_path / "cache")
    settings = SMALL | {"model": {"kind": "lstm", "hidden": 4, "decoder": (4,)}}
    train(Training("bandit", "quick", tmp_path), settings, place, [0.1], ["moca"], [], [])
    (each,) = trained(tmp_path)
    with pytest.raises(BadRun, match="got 'lstm'"):
        bandit.model(each, wanted_of(tmp_path, tmp_path))
