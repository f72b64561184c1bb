"""What `moca bench step` steps: batches of streams of one model, eagerly and by its kernel."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from model_core import compiled, quantiles, readout
from model_core import filter as filtering
from model_core.filter import Inputs
from model_core.predictive import Mixture
from model_core.stream.events import Watch
from model_core.stream_settings import DEFAULTS
from model_core.table import Layout, Rows
from model_core.upm import untrained
from model_core.upm.builtin import BUILTIN
from service.bench.processes import BenchError

if TYPE_CHECKING:
    from model_core.upm.base import UnderlyingModel

Floats = NDArray[np.float64]
REGIME = 250  # observations between shifts of the made-up series
WATCH = Watch(threshold=DEFAULTS.threshold)
RECENT_RUN_LENGTHS = 5
LEVELS = (0.05, 0.5, 0.95)  # quantiles of the summary
ALPACA = "alpaca"  # with the 32 features of `untrained.alpaca`
ALPACA_STREAMS = 64  # of a batch at most: a state has 430 kB
MODELS = (*BUILTIN, ALPACA)


class Seen(NamedTuple):
    """One observation of each stream: labels (B, d) and inputs (B, x)."""

    y: Floats
    x: Floats


def model_of(name: str) -> UnderlyingModel:
    """A built-in model, or an ALPaCA that was never trained."""
    if name == ALPACA:
        return untrained.alpaca()
    if name not in BUILTIN:
        raise BenchError(f"expected one of {', '.join(MODELS)}, got {name!r}")
    entry = BUILTIN[name]
    return entry.build(entry.example)


def label(kind: str, outputs: int, streams: int, t: int) -> Floats:
    """Draw labels (B, d) of a series with a shift every `REGIME` observations."""
    level = np.random.default_rng((1, t // REGIME)).random((streams, outputs))
    draw = np.random.default_rng((2, t))
    match kind:
        case "count":
            return draw.poisson(1 + 5 * level).astype(np.float64)
        case "binary":
            return (draw.random(level.shape) < level).astype(np.float64)
        case "class":
            return (level + draw.random(level.shape)).round()
        case "positive":
            return draw.exponential(1 + 5 * level)
    return 6 * level + draw.normal(size=level.shape)


class Subject:
    """A batch of streams of one model, at one time of their lives."""

    def __init__(self, name: str, streams: int, max_hypotheses: int) -> None:
        """Have the model's kernel, if it has one."""
        self.name = name
        self.streams = streams
        self.max_hypotheses = max_hypotheses
        self.model = model_of(name)
        self.at = 0
        self._kernel = compiled.kernel_of(self.model)
        ones = torch.ones(streams, self.model.scaled, dtype=torch.float64)
        location = {"count": 3.0, "binary": 0.5, "positive": 3.0}.get(self.model.label, 0.0)
        self._prior = filtering.make_prior(self.model, location * ones, ones)
        self._layout = Layout(self.model, max_hypotheses)
        self.state = filtering.init(self._prior, max_hypotheses)
        table = torch.tensor(np.atleast_1d(self.model.hazard), dtype=torch.float64)
        self._table = table.repeat(streams, 1)

    @property
    def ways(self) -> list[str]:
        """How a step can be computed."""
        return ["eager"] if self._kernel is None else ["eager", "compiled"]

    def walk(self, to: int) -> None:
        """Step through the series up to a time, by the quickest way."""
        way = self.ways[-1]
        while self.at < to:
            count = min(100, to - self.at)
            self._step(way, [self._seen(self.at + i) for i in range(count)], False)
            self.at += count

    def time_us(self, way: str, summarised: bool, steps: int) -> float:
        """Thread CPU time of a step of one stream; the streams stay where they are."""
        window = [self._seen(self.at + i) for i in range(steps)]
        kept = self.state
        try:
            return 1e6 * self._step(way, window, summarised) / steps / self.streams
        finally:
            self.state = kept

    def _seen(self, t: int) -> Seen:
        draw = np.random.default_rng((3, t))
        y = label(self.model.label, self.model.y_dim, self.streams, t)
        return Seen(y, draw.normal(size=(self.streams, self.model.x_dim)))

    def _step(self, way: str, window: list[Seen], summarised: bool) -> float:
        """Step the streams on; returns the seconds of the steps alone."""
        if way == "eager":
            return self._step_eagerly(window, summarised)
        return self._step_compiled(window, summarised)

    def _step_eagerly(self, window: list[Seen], summarised: bool) -> float:
        state = self.state
        ready = [self._inputs(seen) for seen in window]
        watch = torch.tensor([WATCH] * self.streams, dtype=torch.float64)
        began = time.thread_time()
        for inputs in ready:
            state, info = filtering.step(self.model, state, self._prior, inputs)
            readout.table(state, info, inputs.hazard, watch, RECENT_RUN_LENGTHS)
            if summarised:
                summarise(info.predictive, inputs)
        took_s = time.thread_time() - began
        self.state = state
        return took_s

    def _step_compiled(self, window: list[Seen], summarised: bool) -> float:
        assert self._kernel is not None
        parts = self._layout.packed(self.state, self._prior)
        lines, heads = (part.numpy() for part in parts)
        held = Rows(self._layout.slots, lines, heads)
        ready = [self._packed(seen) for seen in window]
        levels = quantiles.with_normal(LEVELS)
        rows = np.arange(self.streams)
        hazards = self._table.numpy()
        began = time.thread_time()
        for inputs in ready:
            self._kernel.advance(
                held, rows, inputs, hazards, RECENT_RUN_LENGTHS, levels, summarised
            )
        took_s = time.thread_time() - began
        self.state = self._layout.state(*parts)
        return took_s

    def _inputs(self, seen: Seen) -> Inputs:
        ones = torch.ones(self.streams, dtype=torch.float64)
        x, y = (torch.from_numpy(array) for array in (seen.x, seen.y))
        return Inputs(
            x if self.model.x_dim else None, y, ones > 0, self._table, ones, ones * float("nan"),
            ones * self.model.outlier_rate,
        )  # fmt: skip

    def _packed(self, seen: Seen) -> Floats:
        settings = [1.0, 1.0, float("nan"), self.model.outlier_rate, *WATCH]
        return np.concatenate((np.tile(settings, (self.streams, 1)), seen.y, seen.x), 1)


def summarise(mixture: Mixture, inputs: Inputs) -> None:
    """Compute what a kernel's summary has."""
    mixture.mean()
    if mixture.components.support == "class":
        return
    mixture.covariance()
    mixture.cdf(inputs.y)
    mixture.quantile(torch.tensor(LEVELS, dtype=torch.float64), 1e-4)
