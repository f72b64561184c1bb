"""The switching wheel bandit (MOCA, app. on problem settings, after Riquelme et al. 2018).

States are uniform in the unit disc. Action 0 has reward `MEDIUM`; actions 1 to 4 belong to a
quadrant each, and have `HIGH` for states of theirs farther out than the radius `delta`, else `LOW`;
rewards are `N(mean, NOISE^2)`. At each step, with probability `hazard`, the radius is drawn anew
from U[0, 1]. Inputs are the state and the action as one-hot, labels the reward.

`moca evaluate bandit`: an agent holds a posterior of the reward, MOCA's or a baseline's; it learns
one reward at a time and gives the hypotheses that the next action is chosen from. Agents meet the
same states, switches and noise of the reward (`BanditWorld`), so that they may be compared trial by
trial. All choose by `model_core.actions` from their hypotheses: MOCA from its mixture, the others
from one. Regret is that of Garivier and Moulines (2011): the mean reward of the best action, with
switches and radius known, less that of the action taken.

`B` trials of `T` steps; actions are 0 to 4.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from torch import Tensor

from model_core import actions
from model_core import filter as moca
from model_core.actions import Hypotheses, Strategy
from model_core.filter import Prior
from model_core.stream.columns import inputs_of, packed
from model_core.stream_settings import DEFAULTS
from model_core.upm.alpaca import Alpaca
from model_core.upm.base import select
from training import catalogue, figures, online, paper
from training.data.files import Place
from training.data.windows import (
    Batch,
    Source,
    Splits,
    held,
    switches,
    uniform,
    windows,
)
from training.errors import BadConfig, BadRun
from training.figures import CHOSEN, VALUE, Chart
from training.meta_training.runs import Run
from training.paper import Charts, Comparison, Study, save_charts, show_table
from training.results import estimate

LOW = 0.0
MEDIUM = 1.0
HIGH = 2.0
NOISE = 0.5
ACTIONS = 5
X_DIM = 2 + ACTIONS
TRAIN_STEPS = 64 * 562
VALIDATION_STEPS = 16 * 562
EXPLORE = 0.5  # probability that the data collection takes a random action

SEED = 20_200_108  # of worlds and of choices, the same for all agents
STEPS = 1000
HYPOTHESES = 100  # of MOCA
PROTOCOL = paper.Protocol(50, 400)  # of the report of a run that is published
METRIC = "regret, % of the random agent's"
STRATEGIES = {
    "thompson": Strategy("thompson"),
    "optimistic-3": Strategy("optimistic", 3),
    "optimistic-5": Strategy("optimistic", 5),
    "greedy": Strategy("greedy"),
}
# Of the paper's figure: hazard, step of the disc, length, samples of the reward.
PAPER_HAZARD = 0.02
PAPER_STEP = 135
PAPER_LENGTH = 200
SAMPLES = 600
AXIS = torch.linspace(-1, 1, 101, dtype=torch.float64)  # of the disc
EVERY = 5  # steps between points of a regret curve


class BanditWorld(NamedTuple):
    """Environment of B agents over T steps, independent of their actions.

    states: (B, T, 2). delta: (B, T). switch: (B, T) whether the radius was drawn anew; at the first
    step it was. noise: (B, T) of the reward of any action.
    """

    states: Tensor
    delta: Tensor
    switch: Tensor
    noise: Tensor


def world(generator: torch.Generator, count: int, steps: int, hazard: float) -> BanditWorld:
    """`count` independent runs of the process, in float64."""
    shape = (count, steps)
    radius = uniform(generator, shape).sqrt()
    angle = uniform(generator, shape, (0.0, 2 * math.pi))
    states = torch.stack((radius * angle.cos(), radius * angle.sin()), -1)
    switch = switches(generator, count, steps, hazard)
    delta = held(uniform(generator, shape), switch)
    noise = torch.randn(count, steps, generator=generator, dtype=torch.float64)
    return BanditWorld(states, delta, switch, NOISE * noise)


def quadrant(states: Tensor) -> Tensor:
    """Quadrant (...), 1 to 4, of states (..., 2), and so the action that belongs to it.

    Counted as in geometry: upper right, upper left, lower left, lower right. The paper does not
    specify the order; the problem is the same for any.
    """
    right = states[..., 0] > 0
    upper = states[..., 1] > 0
    return torch.where(upper, torch.where(right, 1, 2), torch.where(right, 4, 3))


def reward_mean(states: Tensor, action: Tensor, delta: Tensor) -> Tensor:
    """Mean reward (...) of actions (...) in states (..., 2) under radii (...)."""
    wins = (action == quadrant(states)) & (states.norm(dim=-1) > delta)
    low = torch.full_like(states[..., 0], LOW)
    return torch.where(action == 0, MEDIUM, torch.where(wins, HIGH, low))


def best_mean(states: Tensor, delta: Tensor) -> Tensor:
    """Mean reward (...) of the best action in states (..., 2) under radii (...)."""
    return torch.where(states.norm(dim=-1) > delta, HIGH, MEDIUM).to(delta)


def inputs(states: Tensor, action: Tensor) -> Tensor:
    """Inputs (..., 7) of states (..., 2) and actions (...): the state, then one-hot actions."""
    hot = torch.nn.functional.one_hot(action, ACTIONS).to(states)
    return torch.cat((states, hot), -1)


def collected(generator: torch.Generator, count: int, steps: int, hazard: float) -> Batch:
    """Collected data: half random actions, half that of the state's quadrant."""
    drawn = world(generator, count, steps, hazard)
    explore = torch.rand(count, steps, generator=generator) < EXPLORE
    anything = torch.randint(ACTIONS, (count, steps), generator=generator)
    action = torch.where(explore, anything, quadrant(drawn.states))
    reward = reward_mean(drawn.states, action, drawn.delta) + drawn.noise
    return Batch(inputs(drawn.states, action), reward.unsqueeze(-1), drawn.switch)


def splits(place: Place, hazard: float, seed: int) -> Splits:
    """Training on 64 x 562 steps and validation on 16 x 562, each one stream; test is fresh."""
    generator = torch.Generator().manual_seed(seed)

    def stream(steps: int, name: str) -> Source:
        (one,) = collected(generator, 1, steps, hazard).series()
        return windows([one._replace(name=name)])

    train = stream(TRAIN_STEPS, "train")
    validation = stream(VALIDATION_STEPS, "validation")
    return Splits(train, validation, partial(collected, hazard=hazard), X_DIM, 1)


# An agent's state during its trials: `held` are the hypotheses before the next reward, valid until
# `learn` changes them, which returns the belief after it, if there is one.


class Filtered:
    """MOCA: the filter, one reward after another.

    Nothing is pruned in the first `hypotheses` steps. Their number hardly matters: with 32
    trained features, 10 trials of 1000 steps and hazards 0.005, 0.02 and 0.1, Thompson sampling
    with 20 to 1000 of them had regrets within 0.3 % of the random agent's.
    """

    def __init__(self, model: Alpaca, prior: Prior, hypotheses: int = HYPOTHESES) -> None:
        settings = DEFAULTS._replace(max_hypotheses=hypotheses, history=0)
        self._pipeline = online.begun(model, settings, count=len(prior.location))
        self._rows = range(len(prior.location))
        self._coming = inputs_of(model, packed(model, self._pipeline.coming(len(self._rows))))

    def held(self, switch: Tensor) -> Hypotheses:
        """The mixture with the new hypothesis; MOCA does not use `switch`."""
        states, priors = self._pipeline.slab.batch(self._rows)
        grown, _ = moca.grow(states, priors, self._coming)
        return actions.hypotheses(grown)

    def learn(self, x: Tensor, y: Tensor) -> Hypotheses:
        """One step of the filter."""
        if None in self._pipeline.take(self._rows, online.observations(y, x)):
            raise FloatingPointError(
                "a step of the filter gave a log probability that is not finite"
            )
        return actions.hypotheses(self._pipeline.slab.batch(self._rows)[0])


class Posterior:
    """The posterior of the last `length` observations; None: of those since the last true switch.

    With length 0, the prior, it trains on everything (TOE). A window is refitted each time: no
    downdates, so no error accumulates.
    """

    def __init__(self, model: Alpaca, prior: Prior, length: int | None = None) -> None:
        self._model = model
        self._prior = prior
        self._since_switch = prior.stats if length is None else None
        self._window: deque[tuple[Tensor, Tensor]] = deque(maxlen=length or 0)

    def held(self, switch: Tensor) -> Hypotheses:
        """One hypothesis; switch: (B,) whether the radius was drawn anew."""
        stats = self._prior.stats
        if self._since_switch is not None:
            stats = select(switch.unsqueeze(-1), stats, self._since_switch)
            self._since_switch = stats
        for phi, y in self._window:
            stats = self._model.update(stats, phi, y, torch.ones_like(y))
        zeros = torch.zeros_like(self._prior.location[:, :1])
        return Hypotheses(zeros, zeros.long(), stats, self._prior.context)

    def learn(self, x: Tensor, y: Tensor) -> None:
        """Append the observation; drop the oldest of a full window."""
        phi = self._model.encode(x, self._prior.context)
        self._window.append((phi, y))
        if self._since_switch is not None:
            self._since_switch = self._model.update(self._since_switch, phi, y, torch.ones_like(y))


# What begins the trials of a prior; None: uniformly random actions, whatever the strategy.
Agent = Callable[[Alpaca, Prior], Filtered | Posterior] | None
AGENTS: Mapping[str, Agent] = {
    "MOCA": Filtered,
    "oracle": Posterior,
    "SW5": partial(Posterior, length=5),
    "SW10": partial(Posterior, length=10),
    "SW50": partial(Posterior, length=50),
    "TOE": partial(Posterior, length=0),
}


# A step of B trials: hypotheses before the action, actions (B,), the belief after the reward.
# MOCA's hypotheses stay as they were before the reward, those of others may not.
Step = tuple[Hypotheses, Tensor, Hypotheses | None]


def simulate(
    agent: Agent,
    model: Alpaca,
    world: BanditWorld,
    strategy: Strategy,
    generator: torch.Generator,
) -> Tensor:
    """An agent's actions (B, T) in all trials of a world.

    The generator gives each trial a seed of its own, so a trial is the same whatever others are run
    beside it. The model is in float64.
    """
    chance = _generators(generator, world)
    if agent is None:
        shape = (world.delta.shape[1],)
        return torch.stack([torch.randint(ACTIONS, shape, generator=one) for one in chance])
    steps = _play(agent, model, world, strategy, chance)
    return torch.stack([action for _, action, _ in steps], 1)


def regret(world: BanditWorld, action: Tensor) -> Tensor:
    """Regret (B, T) of actions (B, T)."""
    mean = reward_mean(world.states, action, world.delta)
    return best_mean(world.states, world.delta) - mean


@torch.no_grad()
def follow(model: Alpaca, world: BanditWorld, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """MOCA in a world of one trial, by Thompson sampling as in `simulate`.

    Its belief (T, T) by [t, r], `b_t(r | x_t, y_t)`; and before the reward of step `PAPER_STEP` the
    mean of the mixture for action 1, (G, G) at states [i, j] = (x_2, x_1) of `AXIS` (G,), nan
    outside the disc.
    """
    steps = world.delta.shape[1]
    grid = torch.stack(torch.meshgrid(AXIS, AXIS, indexing="xy"), -1)
    first = torch.ones(grid.shape[:2], dtype=torch.int64)
    mean = torch.full(grid.shape[:2], torch.nan, dtype=grid.dtype)
    belief = []
    chance = _generators(generator, world)
    played = _play(Filtered, model, world, STRATEGIES["thompson"], chance)
    for t, (before, _, after) in enumerate(played):
        if t == PAPER_STEP:
            candidates = inputs(grid, first).reshape(1, -1, X_DIM)
            mean = actions.mean(model, before, candidates).reshape(mean.shape)
        assert after is not None
        length = after.run_length[0].clamp(0, steps - 1)
        belief.append(torch.bincount(length, after.log_prob[0].exp(), steps))
    return torch.stack(belief), mean.masked_fill(grid.norm(dim=-1) > 1, torch.nan)


@torch.no_grad()
def _play(
    begin: Callable[[Alpaca, Prior], Filtered | Posterior],
    model: Alpaca,
    world: BanditWorld,
    strategy: Strategy,
    chance: list[torch.Generator],
) -> Iterator[Step]:
    count, steps = world.delta.shape
    zeros = world.delta.new_zeros(count, 1)
    holder = begin(model, moca.make_prior(model, zeros, zeros + 1))
    every = torch.arange(ACTIONS).expand(count, -1)
    rows = torch.arange(count)
    for t in range(steps):
        state = world.states[:, t]
        candidates = inputs(state.unsqueeze(1).expand(-1, ACTIONS, -1), every)
        before = holder.held(world.switch[:, t])
        action = actions.choose(model, before, candidates, strategy, chance).chosen
        reward = reward_mean(state, action, world.delta[:, t]) + world.noise[:, t]
        after = holder.learn(candidates[rows, action], reward.unsqueeze(-1))
        yield before, action, after


def _generators(generator: torch.Generator, world: BanditWorld) -> list[torch.Generator]:
    seeds = torch.randint(2**62, (len(world.delta),), generator=generator).tolist()
    return actions.seeded(seeds)


def seeded(more: int = 0) -> torch.Generator:
    """Chance of all agents."""
    return torch.Generator().manual_seed(SEED + more)


def evaluate(wanted: Study, trials: int, strategies: Sequence[str]) -> None:
    """Print and write a table for each strategy, and figures; raises BadRun or BadConfig."""
    torch.set_num_threads(1)
    console = Console()
    unknown = [name for name in strategies if name not in STRATEGIES]
    if unknown:
        raise BadConfig(f"--strategy: expected one of {', '.join(STRATEGIES)}, got {unknown[0]!r}")
    runs = {key: run for key, run in wanted.chosen().items() if key[1] in AGENTS}
    charts: Charts = []
    for strategy in strategies:
        played = {
            key: play(run, wanted, trials, strategy)
            for key, run in track(runs.items(), strategy, console=console, transient=True)
        }
        values = {key: one["percent"] for key, one in played.items()}
        comparison = Comparison(f"bandit, {strategy}", METRIC, -1, values)
        show_table(comparison, runs, wanted.out / strategy, console)
        if len(comparison.settings()) > 1:
            charts.append((f"regret-{strategy}", comparison.chart()))
        panels = {
            f"hazard {setting:g}": {
                method: {
                    float(t + 1): estimate(one["cumulative"][:, t]) for t in range(0, STEPS, EVERY)
                }
                for (hazard, method), one in played.items()
                if hazard == setting
            }
            for setting in comparison.settings()
        }
        title = f"Cumulative regret, {strategy}"
        chart = figures.over_time(panels, "cumulative regret", title)
        charts.append((f"cumulative-{strategy}", chart))
    for (hazard, method), run in runs.items():
        if method == "MOCA":
            charts.append((f"losses-{hazard:g}", paper.validations(run)))
    if (PAPER_HAZARD, "MOCA") in runs:
        charts.append(("wheel", _paper_chart(wanted, runs[PAPER_HAZARD, "MOCA"])))
    save_charts(charts, wanted.out, console)


def model(run: Run, wanted: Study) -> Alpaca:
    """A run's best model; raises BadRun where its kind is not alpaca."""
    best_model = paper.load(run, catalogue.splits(run.config, wanted.place)).model()
    if not isinstance(best_model, Alpaca):
        raise BadRun(f"{run.folder}: expected a model of kind alpaca, got {best_model.kind!r}")
    return best_model


def play(run: Run, wanted: Study, trials: int, strategy: str) -> dict[str, NDArray[np.float64]]:
    """Regret of an agent's trials with its own model, kept in the run's folder.

    percent: (trials,) in % of the random agent's. cumulative: (trials, T).
    """
    hazard = run.config.setting("data.hazard")
    if hazard is None:
        raise BadRun(f"{run.folder}: the run's data have no hazard setting")

    @torch.no_grad()
    def measure() -> dict[str, NDArray[np.float64]]:
        shared = world(seeded(), trials, STEPS, hazard)
        own = model(run, wanted)
        chosen = STRATEGIES[strategy]
        random, ours = (
            regret(shared, simulate(agent, own, shared, chosen, seeded()))
            for agent in (None, AGENTS[run.config.method])
        )
        percent = 100 * ours.sum(-1) / random.sum(-1)
        return {"percent": percent.numpy(), "cumulative": ours.cumsum(-1).numpy()}

    return paper.kept(run, "regret", [trials, STEPS, strategy, SEED], measure)


def _paper_chart(wanted: Study, run: Run) -> Chart:
    """The paper's figure of the bandit: rewards, their posterior mean at t = 135, the belief."""
    whole = world(seeded(), 1, STEPS, PAPER_HAZARD)
    short = BanditWorld(*(value[:, :PAPER_LENGTH] for value in whole))
    chance = seeded()
    belief, mean = follow(model(run, wanted), short, chance)
    states = world(seeded(1), 1, SAMPLES, 0.5).states[0]
    delta = short.delta[0, PAPER_STEP].expand(SAMPLES)
    noise = NOISE * torch.randn(SAMPLES, generator=chance, dtype=states.dtype)
    reward = reward_mean(states, torch.ones(SAMPLES, dtype=torch.int64), delta) + noise
    title = f"Switching wheel bandit: action 1 at t = {PAPER_STEP}, hazard {PAPER_HAZARD}"
    return disc_chart((states, reward), mean, belief, short.switch[0], title)


@figures.styled
def disc_chart(
    samples: tuple[Tensor, Tensor], mean: Tensor, belief: Tensor, switch: Tensor, title: str
) -> Chart:
    """Samples of states (N, 2) and rewards (N,), posterior mean at `PAPER_STEP`, and the belief.

    mean, belief: as of `follow`. switch: (T,) true switches.
    """
    states, reward = samples
    figure = Figure((8, 7))
    grid = figure.add_gridspec(2, 2, height_ratios=(4, 3))
    left, right = (figure.add_subplot(grid[0, k]) for k in range(2))
    points = left.scatter(states[:, 0], states[:, 1], c=reward.numpy(), cmap=VALUE, s=14, lw=0)
    figures.colour_bar(left, points, "reward")
    shown = np.ma.masked_invalid(mean.numpy())
    axis = AXIS.numpy()
    mesh = right.pcolormesh(axis, axis, shown, cmap=VALUE, shading="nearest", rasterized=True)
    figures.colour_bar(right, mesh, "mean reward")
    for axes, name in ((left, "reward samples"), (right, "posterior mean reward")):
        axes.grid(False)
        axes.set(xlabel="state x₁", ylabel="state x₂", title=name)
        axes.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), aspect="equal")
    lower = figure.add_subplot(grid[1, :])
    figures.draw_belief(lower, belief.numpy(), switch.numpy())
    figures.draw_rules(lower, [PAPER_STEP], "time shown above", color=CHOSEN, ls=":", lw=1.6)
    text = "Reward samples and posterior mean reward over the unit disc, and run-length belief."
    return figures.finished(figure, title, text)
