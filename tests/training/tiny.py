"""Training runs of a second, in this process."""

import itertools
from typing import NamedTuple

import torch

from training import catalogue
from training.data.files import Place
from training.data.windows import Batch
from training.learners import learner
from training.meta_training.loop import Job
from training.meta_training.loop import train as loop
from training.meta_training.processes import World
from training.meta_training.runs import Progress, Run

SETTINGS = {
    "model": {"widths": [8], "features": 4, "hidden": 6, "decoder": [8]},
    "optimiser": {"iterations": 12, "batch": 4, "length": 12, "dtype": "float64"},
    "validation": {"every": 3, "windows": 4},
}


def tiny(**others):
    """Settings of a small run on the sinusoid; others by section."""
    return catalogue.preset("sinusoid", "quick", SETTINGS, others)


def splits(config, wrap=lambda source: source):
    """The experiment's, the source for training wrapped."""
    sources = catalogue.splits(config, Place(None, None))
    return sources._replace(train=wrap(sources.train))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


class Trained(NamedTuple):
    progress: Progress
    losses: list[float]
    states: list[dict[str, torch.Tensor]]  # parameters after each iteration
    run: Run


def train(
    config, folder, *, resume=False, wrap=lambda source: source, world=None, built=None
) -> Trained:
    """Train from the first parameters or the checkpoint; `built`: as whose learner."""
    sources = splits(config, wrap)
    new, run = learner(built or config, sources), Run(folder)
    losses, states = [], []

    def report(progress, measured):
        losses.append(measured["loss"])
        states.append({name: value.clone() for name, value in new.state_dict().items()})

    job = Job(config, sources, new, run)
    return Trained(loop(job, world or World(), report, resume=resume), losses, states, run)


def gaps(source):
    """Every third label is missing, more of them in later windows."""

    def draw(generator, count, length):
        batch = source(generator, count, length)
        window, t = torch.meshgrid(torch.arange(count), torch.arange(length), indexing="ij")
        gone = ((window + t) % 3 == 0) | (t > length - window)
        return Batch(batch.x, batch.y.masked_fill(gone.unsqueeze(-1), torch.nan), batch.switch)

    return draw


def untold(source):
    """A source that does not say where its regimes switch."""
    return lambda *drawn: source(*drawn)._replace(switch=None)


def endless(source, draws):
    """Labels of some draws, counted from 0, are infinite."""
    counted = itertools.count()

    def draw(generator, count, length):
        batch = source(generator, count, length)
        return batch._replace(y=batch.y + torch.inf) if next(counted) in draws else batch

    return draw


def same(one, other):
    """Whether two states are equal bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
