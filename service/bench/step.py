"""`moca bench step`: processor time of one filter step, by model, batch and time of life.

Beside models of real labels stand the steps of fast-bocpd and of FOCuS (focus-cpt on PyPI) one
stream at a time, where these packages are installed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from model_core import compiled, quantiles, readout
from model_core import filter as filtering
from model_core.errors import NotCompiled
from model_core.stream import batched, columns
from model_core.stream.events import Watch
from model_core.stream_settings import DEFAULTS
from model_core.table import Layout, Rows
from model_core.transfer import moved, to_arrays, to_device
from model_core.upm.builtin import BUILTIN
from service.bench.report import BenchError, Rounds, show
from service.problems import StartupError
from service.worker.self_test import check_device

Floats = NDArray[np.float64]
Update = Callable[[float], object]  # what a package does with one label
REGIME = 250  # observations between shifts of the made-up series
LIFE_STREAMS = 16  # in whose batch early and late steps are compared
SAMPLE_US = 4000.0  # a measurement is to take at least as long
MOST_STEPS = 50  # of a measurement
WALKED = 100  # steps at a time
RECENT_RUN_LENGTHS = 5
FAST_BOCPD_RUN_LENGTHS = 200  # its default
PEER_STEPS = 500  # of a measurement
LEVELS = quantiles.with_normal((0.05, 0.5, 0.95))  # of an answer
ANSWERED = {False: "", True: ", with mean, variance and quantiles"}


def bench_step(
    *,
    models: Sequence[str] | None,
    batches: Sequence[int],
    max_hypotheses: int,
    early: int,
    late: int,
    rounds: int,
    console: Console | None = None,
) -> dict[str, Rounds]:
    """Measure the compiled steps of models, in microseconds of a thread for a stream; print them.

    models: all built-in ones if None. batches: streams that are stepped at once, as in a worker.
    early, late: observations before the steps. Returns measures by model.
    """
    chosen = list(models or BUILTIN)
    if unknown := [name for name in chosen if name not in BUILTIN]:
        raise BenchError(f"expected models of {', '.join(BUILTIN)}, got {', '.join(unknown)}")
    if not (0 < early < late and min(rounds, max_hypotheses, *batches) > 0):
        raise BenchError("expected 0 < early < late, and positive rounds, hypotheses and batches")
    console = console or Console()
    updates = _installed(console)
    results = {}
    for name in track(chosen, "models", console=console, transient=True):
        young = {
            size: BenchStreams(name, size, max_hypotheses) for size in (*batches, LIFE_STREAMS)
        }
        old = BenchStreams(name, LIFE_STREAMS, max_hypotheses)
        for streams in young.values():
            streams.walk(early)
        old.walk(late)
        peers = updates if BUILTIN[name].build(BUILTIN[name].example).label == "real" else {}
        results[name] = _measure(batches, young, old, peers, rounds)
    for name, measures in results.items():
        show(f"{name}: us of a thread for a step of one stream", measures, console)
    return results


def _measure(
    batches: Sequence[int],
    young: dict[int, BenchStreams],
    old: BenchStreams,
    peers: dict[str, Update],
    rounds: int,
) -> Rounds:
    measures: Rounds = {}
    over = f"step {old.at:,} over step {young[LIFE_STREAMS].at:,}, {LIFE_STREAMS} streams"
    for _ in range(rounds):
        for size in batches:
            for answered, title in ANSWERED.items():
                us = young[size].time_us(answered)
                measures.setdefault(f"{size} streams at once{title}: us", []).append(us)
        ratio = old.time_us(True) / young[LIFE_STREAMS].time_us(True)
        measures.setdefault(over, []).append(ratio)
        for title, update in peers.items():
            measures.setdefault(f"{title}: us", []).append(_time_us(update))
    return measures


def _fast_bocpd(module: Any) -> Update:
    model = module.GaussianNIG(0.0, 1.0, 1.0, 1.0)
    hazard = module.ConstantHazard(float(REGIME))
    update: Update = module.BOCPD(model, hazard, FAST_BOCPD_RUN_LENGTHS).update
    return update


def _focus(module: Any) -> Update:
    detector = module.Detector(type="univariate")

    def update(y: float) -> object:
        detector.update(y)
        return detector.get_statistics(family="gaussian")

    return update


# Filters of other packages: by title, the module to import, and what makes its step of that.
PEERS: dict[str, tuple[str, Callable[[Any], Update]]] = {
    f"fast-bocpd, normal-gamma, {FAST_BOCPD_RUN_LENGTHS} run lengths": ("fast_bocpd", _fast_bocpd),
    "FOCuS, change of a normal mean": ("focus_cpt", _focus),
}


def _installed(console: Console) -> dict[str, Update]:
    """Return the steps of the peers that are installed, by title; name the others."""
    updates = {}
    for title, (module, make) in PEERS.items():
        try:
            updates[title] = make(import_module(module))
        except ImportError:
            console.print(f"{title}: not installed")
    return updates


def _time_us(update: Update) -> float:
    """Thread CPU time of a package's step, over normal labels of one stream."""
    labels = np.random.default_rng().normal(size=PEER_STEPS).tolist()
    began = time.thread_time()
    for y in labels:
        update(y)
    return 1e6 * (time.thread_time() - began) / PEER_STEPS


COPIED_BYTES = 1 << 28  # of a copy, for the bandwidth of a device


def bench_device(
    *,
    models: Sequence[str],
    device: str,
    streams: int,
    max_hypotheses: int,
    early: int,
    rounds: int,
    console: Console | None = None,
) -> dict[str, Rounds]:
    """Measure the steps of batches that torch compiled for a device, in microseconds; print them.

    Host: until all work is sent, then that of the host with the numbers of the steps. Bytes: rows
    read and written, observations, numbers for the host. Returns measures by model.
    """
    console = console or Console()
    if unknown := [name for name in models if name not in BUILTIN]:
        raise BenchError(f"expected models of {', '.join(BUILTIN)}, got {', '.join(unknown)}")
    try:
        check_device(device)
    except StartupError as error:
        raise BenchError(str(error)) from error
    results = {}
    for name in models:
        held = BenchStreams(name, streams, max_hypotheses)
        held.walk(early)
        results[name] = held.on_device(device, rounds)
        show(f"{name}: steps of {streams:,} streams on {device}", results[name], console)
    return results


def _wall_us(work: Callable[[], object], device: str) -> tuple[float, float]:
    """Time of work until it is done, and until it is sent."""
    wait = torch.cuda.synchronize if device.startswith("cuda") else int
    wait()
    began = time.perf_counter()
    work()
    sent = time.perf_counter()
    wait()
    return 1e6 * (time.perf_counter() - began), 1e6 * (sent - began)


class BenchStreams:
    """A batch of streams of one model, at one time of their lives."""

    def __init__(self, name: str, streams: int, max_hypotheses: int) -> None:
        entry = BUILTIN[name]
        model = entry.build(entry.example)
        kernel = compiled.kernel_of(model)
        if kernel is None:
            raise BenchError(f"{name}: expected a compiled model")
        self.at = 0
        self._model = model
        self._kernel = kernel
        self._streams = streams
        ones = torch.ones(streams, model.scaled, dtype=torch.float64)
        location = {"count": 3.0, "binary": 0.5, "positive": 3.0}.get(model.label, 0.0)
        prior = filtering.make_prior(model, location * ones, ones)
        layout = Layout(model, max_hypotheses)
        lines, heads = layout.packed(filtering.init(prior, max_hypotheses), prior)
        self._rows = Rows(layout.slots, lines.numpy(), heads.numpy())
        self._hazards = np.tile(np.atleast_1d(model.hazard), (streams, 1))
        self._steps = 0

    def walk(self, to: int) -> None:
        """Step through the series up to a time."""
        while self.at < to:
            count = min(WALKED, to - self.at)
            self._step_s(count, answered=False)
            self.at += count

    def time_us(self, answered: bool) -> float:
        """Thread CPU time of a step of one stream; the streams stay where they are.

        answered: with what an answer has of a predictive distribution.
        """
        kept = self._rows
        if not self._steps:
            one_us = max(1e6 * self._step_s(1, answered), 1.0)
            self._steps = max(1, min(MOST_STEPS, round(SAMPLE_US / one_us)))
            self._rows = kept
        try:
            return 1e6 * self._step_s(self._steps, answered) / self._steps / self._streams
        finally:
            self._rows = kept

    def on_device(self, device: str, rounds: int) -> Rounds:
        """Times of the next step, always of the same rows, and the bandwidth that it takes."""
        model = moved(self._model, device)
        layout = Layout(model, self._rows.slots - 1, device)
        inputs = self._inputs(self.at)
        packed = columns.Packed(self._labels(self.at), None, self._hazards, inputs)
        lines = to_device(self._rows.lines, device)
        heads = to_device(self._rows.heads, device)
        try:
            step = batched.compiled(model, layout, LEVELS[0].tolist(), device, self._streams)
        except NotCompiled as error:
            raise BenchError(f"cannot compile for {device}: {error}") from error
        room = torch.empty(COPIED_BYTES // 8, dtype=torch.float64, device=device)
        measures: Rounds = {}
        with torch.inference_mode():
            levels = to_device(LEVELS[0], device)
            sent = columns.sent(packed, device)
            numbers = step.advance(lines, heads, packed)[2]
            moves = 2 * (lines.nbytes + heads.nbytes) + sent.nbytes + numbers.nbytes

            def eager() -> object:
                return batched.advance(model, layout, levels, lines, heads, sent)

            def read() -> object:
                (own,) = to_arrays([numbers])
                return readout.table(layout, own, inputs, self._hazards, RECENT_RUN_LENGTHS)

            for _ in range(rounds):
                copied_us, _ = _wall_us(room.clone, device)
                whole_us, host_us = _wall_us(lambda: step.advance(lines, heads, packed), device)
                eager_us, _ = _wall_us(eager, device)
                read_us, _ = _wall_us(read, device)
                values = {
                    "step: us": whole_us,
                    "host, to send it: us": host_us,
                    "host, to read it off: us": read_us,
                    "step of eager torch: us": eager_us,
                    "MB moved": 1e-6 * moves,
                    "GB/s": 1e-3 * moves / whole_us,
                    "share of the bandwidth of a copy": (
                        moves / whole_us / (2 * COPIED_BYTES / copied_us)
                    ),
                }
                for title, value in values.items():
                    measures.setdefault(title, []).append(value)
        return measures

    def _step_s(self, count: int, answered: bool) -> float:
        """Step on a copy of the state; returns the seconds of the steps alone."""
        inputs = [self._inputs(self.at + i) for i in range(count)]
        rows = Rows(self._rows.slots, self._rows.lines.copy(), self._rows.heads.copy())
        every = np.arange(self._streams)
        began = time.thread_time()
        for row in inputs:
            self._kernel.advance(
                rows, every, row, self._hazards, RECENT_RUN_LENGTHS, LEVELS, answered
            )
        took_s = time.thread_time() - began
        self._rows = rows
        return took_s

    def _inputs(self, t: int) -> Floats:
        """Settings, labels and inputs of one observation of each stream."""
        watch = Watch(threshold=DEFAULTS.threshold)
        settings = [1.0, 1.0, float("nan"), self._model.outlier_rate, *watch]
        draw = np.random.default_rng((3, t))
        x = draw.normal(size=(self._streams, self._model.x_dim))
        return np.concatenate((np.tile(settings, (self._streams, 1)), self._labels(t), x), 1)

    def _labels(self, t: int) -> Floats:
        """Labels of a series with a shift every `REGIME` observations."""
        size = (self._streams, self._model.y_dim)
        level = np.random.default_rng((1, t // REGIME)).random(size)
        draw = np.random.default_rng((2, t))
        match self._model.label:
            case "count":
                return draw.poisson(1 + 5 * level).astype(np.float64)
            case "binary":
                return (draw.random(level.shape) < level).astype(np.float64)
            case "class":
                return (level + draw.random(level.shape)).round()
            case "positive":
                return draw.exponential(1 + 5 * level)
        return 6 * level + draw.normal(size=level.shape)
