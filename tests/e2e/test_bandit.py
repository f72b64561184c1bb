"""The wheel bandit played through REST: the world here, belief and choice in the service."""

import asyncio
import subprocess
import sys

import pytest
import torch

from model_core import artifact
from service.client import AsyncClient
from training.data import wheel
from training.evaluation.bandit.agents import AGENTS, Random
from training.evaluation.bandit.trials import STRATEGIES, run
from training.statistics.intervals import paired

HAZARD, HYPOTHESES = 0.02, AGENTS["MOCA"].hypotheses
TRAIN = f"train bandit --hazard {HAZARD} --mode moca --set optimiser.iterations=400 --runs"


@pytest.fixture
def wheel_model(tmp_path, processes):
    """A model of the wheel, trained and published by the command line as users do."""
    folder = str(tmp_path / "runs")
    _moca(processes, *TRAIN.split(), folder)
    (done,) = (tmp_path / "runs").rglob("result.json")
    _moca(processes, "publish", str(done.parent), "--name", "wheel", "--no-page", "--sensitivity=0")
    return artifact.load(processes.folder / "models" / "wheel" / "1")


def _moca(processes, *arguments):
    command = [sys.executable, "-m", "service.commands.main", *arguments]
    subprocess.run(command, env=processes.environment, check=True, timeout=600)


@pytest.mark.slow
def test_regret_is_that_of_the_agent_offline(serve, processes, wheel_model):
    url, seeded = serve(), torch.Generator().manual_seed(5)
    met = wheel.world(seeded, 40, 250, HAZARD)
    offline = {
        name: run(AGENTS["MOCA"], wheel_model, met, STRATEGIES[name], seeded)
        for name in ("greedy", "thompson")
    }
    anything = run(Random(), wheel_model, met, STRATEGIES["greedy"], seeded)
    served = {name: asyncio.run(_play(url, met, name)) for name in offline}
    # Greedy choices hold no chance: the service takes the very same actions.
    assert torch.equal(served["greedy"], offline["greedy"].action)
    percent = {
        "served": 100 * _regret(met, served["thompson"]) / anything.regret.sum(-1),
        "offline": offline["thompson"].percent_of(anything),
    }
    print({name: f"{each.mean():.2f} %" for name, each in percent.items()})
    assert percent["offline"].mean() < 60  # the model has learned the wheel
    apart = paired(percent["served"].numpy(), percent["offline"].numpy())
    print(apart)
    assert apart.low < 0 < apart.high


async def _play(url: str, met: wheel.World, strategy: str) -> torch.Tensor:
    """Actions (B, T), a stream for each trial."""
    async with AsyncClient(url) as client:
        trials = [_trial(client, met, i, strategy) for i in range(len(met.delta))]
        return torch.tensor(await asyncio.gather(*trials))


async def _trial(client: AsyncClient, met: wheel.World, i: int, strategy: str) -> list[int]:
    stream, every, taken = f"{strategy}-{i}", torch.arange(wheel.ACTIONS), []
    settings = {"model": "wheel", "max_hypotheses": HYPOTHESES}
    await client.put_stream(stream, settings)
    for t, state in enumerate(met.states[i]):
        candidates = wheel.inputs(state.expand(wheel.ACTIONS, -1), every).tolist()
        seed = i * met.states.shape[1] + t
        chosen = (await client.act(stream, candidates, strategy=strategy, seed=seed)).chosen
        reward = wheel.reward_mean(state, torch.tensor(chosen), met.delta[i, t]) + met.noise[i, t]
        await client.observe(stream, {"x": candidates[chosen], "y": float(reward)})
        taken.append(chosen)
    return taken


def _regret(met: wheel.World, action: torch.Tensor) -> torch.Tensor:
    """Total regret of each trial (B,)."""
    mean = wheel.reward_mean(met.states, action, met.delta)
    return (wheel.best_mean(met.states, met.delta) - mean).sum(-1)
