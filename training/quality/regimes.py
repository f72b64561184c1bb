"""`moca evaluate regimes`: what a memory of regimes gives and costs, beside the same without one.

On NAB, whose labelled windows are looked at, on bees and an accelerometer, and on simulations whose
states are known. A kind is that of a change at its confirmation: `returned` to a remembered regime,
or `changed` to a new one. A row is a dict, by the names that its function gives.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from model_core.encoder import Mlp
from model_core.stream.events import Event
from model_core.stream_settings import DEFAULTS
from model_core.upm.alpaca import Alpaca
from model_core.upm.base import UnderlyingModel
from model_core.upm.builtin import Options, build
from training.experiments.sinusoid import INPUTS, NOISE_VARIANCE, sinusoids
from training.online import Followed, follow
from training.quality.series import VECTOR_MODELS, Annotated, Corpora, Scalars, spans
from training.results import Table
from training.statistics import estimate
from training.trained import DTYPE

Floats = NDArray[np.float64]
Row = dict[str, Any]
GAPS = (1.0, 2.0, 4.0)  # sd between the levels of simulated states
STATES = 4  # of a series whose states recur
SPREAD = 12.0  # gaps: levels of states that never recur lie within it on both sides
APART = 8  # last states that a new one is a gap from
SHORTEST, LONGEST = 30, 170  # observations of a state
IN_TIME = 30  # observations in which the confirmation of a change counts for it
AT = 200  # position of a first step; the second one is as long after it
SHIFTS = (1.0, 2.0, 3.0)

# Of vectors whose states recur: a phase of the dance, an activity.
HALF_SECOND = 50  # observations of the accelerometer
LEAST_SPREAD = 1e-3  # of an axis in its range, of a window at rest
BLOCK = 50  # observations that a gain's interval takes for independent of others
GAIN = "{gain.mean:.3f} ({gain.low:.3f}, {gain.high:.3f})"

# Of sinusoids that recur.
FEATURES = 32  # of the model: random, of one hidden layer
DRAWN = 400  # sinusoids that its fitted prior is of
POINTS = 80  # of each
SWITCHING = 0.05  # hazard
TASKS = 4  # that recur
LENGTH = 500
SKIPPED = 100  # first observations, whose log scores do not count


class Simulated(NamedTuple):
    """A series (T,), the state of each observation, and its changes: position, whether back."""

    y: Floats
    state: NDArray[np.int64]
    changes: list[tuple[int, bool]]


def kinds(followed: Followed) -> list[tuple[int, bool]]:
    """Positions at which changes were confirmed, and whether they were called returned."""
    first: dict[int, tuple[int, Event]] = {}
    for seq, event in followed.events:
        if event.state == "confirmed":
            first.setdefault(event.id, (seq, event))
    return sorted((seq, event.returned is not None) for seq, event in first.values())


def recorded(model: UnderlyingModel, series: Sequence[Scalars], regimes: int) -> Row:
    """Labelled series: `changed` and `returned` per 1,000 observations, mean `log_score`.

    hit: labelled windows that hold a `changed`, of `windows`. step_us: CPU time of an observation.
    """
    counts = np.zeros(2)
    hit = 0
    windows = 0
    scores: list[Floats] = []
    took_s = 0.0
    for one in series:
        began = time.thread_time()
        followed = follow(model, one.y, DEFAULTS._replace(regimes=regimes))
        took_s += time.thread_time() - began
        confirmed = kinds(followed)
        for _, returned in confirmed:
            counts[int(returned)] += 1
        scores.append(followed.log_score)
        for start, end in () if one.window is None else spans(one.window):
            windows += 1
            hit += any(start <= seq < end and not returned for seq, returned in confirmed)
    total = sum(len(one.y) for one in series)
    changed, returned = (1000 * counts / total).tolist()
    return {
        "changed": changed,
        "returned": returned,
        "log_score": float(np.nanmean(np.concatenate(scores))),
        "hit": hit,
        "windows": windows,
        "step_us": 1e6 * took_s / total,
    }


def vectors(corpora: Corpora) -> list[Annotated]:
    """Sequences of bees, and of HASC the log standard deviations of windows of half a second.

    Every output is in its own standard deviations.
    """
    series = list(corpora.annotated.get("bees", []))
    for one in corpora.annotated.get("HASC", []):
        count = len(one.y) // HALF_SECOND
        pieces = one.y[: count * HALF_SECOND].reshape(count, HALF_SECOND, -1)
        series.append(Annotated(f"{one.name} windows", np.log(pieces.std(1) + LEAST_SPREAD), {}))
    return [one._replace(y=(one.y - one.y.mean(0)) / one.y.std(0)) for one in series]


def gained(model: UnderlyingModel, y: Floats, regimes: int) -> Row:
    """Vectors (T, d): mean `log_score` without a memory and with one, and its `gain`.

    The gain's interval is over blocks of observations. changes: confirmed, without and with.
    back: those that were called returned.
    """
    plain, remembering = (
        follow(model, y, DEFAULTS._replace(regimes=memory)) for memory in (0, regimes)
    )
    gain = remembering.log_score - plain.log_score
    gain = gain[np.isfinite(gain)]
    blocks = np.array_split(gain, max(2, len(gain) // BLOCK))
    confirmed = kinds(remembering)
    return {
        "log_score": [float(np.nanmean(one.log_score)) for one in (plain, remembering)],
        "gain": estimate([float(block.mean()) for block in blocks]),
        "changes": [len(kinds(plain)), len(confirmed)],
        "back": sum(returned for _, returned in confirmed),
    }


def states(rng: np.random.Generator, recurring: bool, gap: float, length: int) -> Simulated:
    """A series of unit noise that moves between states."""
    y = rng.normal(size=length)
    state = np.zeros(length, np.int64)
    pool = (rng.permutation(STATES) * 1.3 * gap).tolist()
    levels: list[float] = []
    numbers: dict[float, int] = {}
    changes: list[tuple[int, bool]] = []
    at = 0
    while at < length:
        level = _level(rng, levels, pool if recurring else [], gap)
        end = at + int(rng.integers(SHORTEST, LONGEST + 1))
        if at:
            changes.append((at, level in levels))
        y[at:end] += level
        state[at:end] = numbers.setdefault(level, len(numbers))
        levels.append(level)
        at = end
    return Simulated(y, state, changes)


def _level(
    rng: np.random.Generator, before: Sequence[float], pool: Sequence[float], gap: float
) -> float:
    if pool:
        return float(rng.choice([level for level in pool if not before or level != before[-1]]))
    while True:
        level = float(rng.uniform(-SPREAD * gap, SPREAD * gap))
        if all(abs(level - other) >= gap for other in before[-APART:]):
            return level


class Simulations(NamedTuple):
    """Simulated series of a kind: how many, and observations of each of those that move on."""

    model: UnderlyingModel
    seed: int
    count: int  # type: ignore[assignment]
    length: int = 3000


def simulated(wanted: Simulations, regimes: int, recurring: bool, gap: float) -> Row:
    """Simulated states a gap apart, the same ones for every memory: true changes by kind.

    new, back: how many of those to a new state, and to one that was there before, were called
    returned, and how many there are. elsewhere: confirmed where there was no change. log_score:
    mean. pure: share of the observations of the second half whose remembered regime is that of
    their state.
    """
    rng = np.random.default_rng([wanted.seed, int(gap), int(recurring)])
    settings = DEFAULTS._replace(regimes=regimes)
    half = wanted.length // 2
    called = np.zeros((2, 2), int)  # by truth: called returned, and all
    elsewhere = 0
    scores: list[float] = []
    pure: list[float] = []
    for _ in range(wanted.count):
        series = states(rng, recurring, gap, wanted.length)
        followed = follow(wanted.model, series.y, settings)
        scores.append(float(np.nanmean(followed.log_score)))
        own = series.state[half:]
        names = followed.regime[half:]
        same = sum(int(np.bincount(own[names == name]).max()) for name in np.unique(names))
        pure.append(same / len(own))
        left = list(series.changes)
        for seq, returned in kinds(followed):
            truth = next((one for one in left if one[0] <= seq < one[0] + IN_TIME), None)
            if truth is None:
                elsewhere += 1
                continue
            left.remove(truth)
            called[int(truth[1])] += (int(returned), 1)
    new, back = called.tolist()
    return {
        "new": new,
        "back": back,
        "elsewhere": elsewhere,
        "log_score": statistics.fmean(scores),
        "pure": statistics.fmean(pure),
    }


def delays(wanted: Simulations, regimes: int, shift: float) -> Row:
    """Steps of normal series: median observations to the first confirmation after a step.

    first: of a series at rest for 200. back: of one that was there, left for 200 and comes back.
    right: how many of these were called right.
    """
    rng = np.random.default_rng([wanted.seed, int(10 * shift)])
    settings = DEFAULTS._replace(regimes=regimes)
    waits: dict[int, list[float]] = {AT: [], 2 * AT: []}
    right = 0
    for _ in range(wanted.count):
        y = rng.normal(size=3 * AT)
        y[AT : 2 * AT] += shift
        confirmed = kinds(follow(wanted.model, y, settings))
        for step, of_step in waits.items():
            seq = next((seq for seq, _ in confirmed if step <= seq < step + AT), math.inf)
            of_step.append(seq - step + 1.0)
        called = next((returned for seq, returned in confirmed if seq >= 2 * AT), None)
        right += called == (regimes > 0)
    first, back = map(statistics.median, waits.values())
    return {"first": first, "back": back, "right": right / wanted.count}


def tables(
    wanted: Simulations, corpora: Corpora, memories: tuple[int, int], most: int
) -> Iterator[Table]:
    """Every table; memories: numbers of regimes that are remembered, 0 the first.

    most: observations of each recorded series, the first ones.
    """
    regimes = ("regimes", "{regimes}")
    gain = ("gain, 95 % interval", GAIN)

    def rows(measure: Callable[..., Row], cases: Sequence[Row]) -> list[Row]:
        return [
            {"regimes": memory, **case, **measure(regimes=memory, **case)}
            for case in cases
            for memory in memories
        ]

    if series := [one.first(most) for one in corpora.scalars.get("NAB", [])]:
        yield Table.of(
            "recorded series",
            "",
            rows(partial(recorded, wanted.model, series), [{}]),
            regimes,
            ("changed / 1,000", "{changed:.2f}"),
            ("returned / 1,000", "{returned:.2f}"),
            ("log score", "{log_score:.4f}"),
            ("windows", "{hit}/{windows}"),
            ("us", "{step_us:.0f}"),
        )
    yield Table.of(
        "simulated states",
        "",
        rows(
            partial(simulated, wanted),
            [{"recurring": recur, "gap": gap} for recur in (False, True) for gap in GAPS],
        ),
        ("states recur", "{recurring}"),
        ("gap", "{gap:g} sd"),
        regimes,
        ("new called returned", "{new[0]} of {new[1]}"),
        ("back called so", "{back[0]} of {back[1]}"),
        ("elsewhere", "{elsewhere}"),
        ("log score", "{log_score:.4f}"),
        ("purity", "{pure:.2f}"),
        named=3,
    )
    yield Table.of(
        "median delays",
        "",
        rows(partial(delays, wanted), [{"shift": shift} for shift in SHIFTS]),
        ("shift", "{shift:g} sd"),
        regimes,
        ("first", "{first:g}"),
        ("back", "{back:g}"),
        ("kind right", "{right:.2f}"),
        named=2,
    )
    if whole := vectors(corpora):
        yield Table.of(
            "recorded vectors",
            "",
            [
                {
                    "series": one.name,
                    "model": name,
                    **gained(build(name, Options(y_dim=one.y.shape[1])), one.y, memories[1]),
                }
                for one in whole
                for name in VECTOR_MODELS
            ],
            ("series", "{series}"),
            ("model", "{model}"),
            ("log score", "{log_score[0]:.3f}"),
            ("with", "{log_score[1]:.3f}"),
            gain,
            ("changes", "{changes[0]}"),
            ("with", "{changes[1]}"),
            ("back", "{back}"),
            named=2,
        )
    yield Table.of(
        "switching sinusoid",
        "",
        recurring(wanted, memories),
        ("prior", "{prior}"),
        ("tasks recur", "{recur}"),
        regimes,
        ("log score", "{log_score:.3f}"),
        gain,
        named=3,
    )


# --- tasks that recur: what `alpaca` gains if it remembers regimes ------------------------------
# The model is a regression on random features: nothing is trained.


def random_features(fitted: bool) -> Alpaca:
    """Regression on random features; its prior is fitted to sinusoids or as wide in all of them."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(FEATURES, 1, generator=generator, dtype=DTYPE)
    bias = INPUTS[1] * weight[:, 0] * (2 * torch.rand(FEATURES, generator=generator) - 1)
    encoder = Mlp((weight,), (-bias.double(),), output_activation="tanh")
    drawn = sinusoids(0.0)(generator, DRAWN, POINTS)
    assert drawn.x is not None
    phi = encoder(drawn.x)
    ridge = NOISE_VARIANCE * torch.eye(FEATURES, dtype=DTYPE)
    weights = torch.linalg.solve(phi.mT @ phi + ridge, phi.mT @ drawn.y)[..., 0]
    mean = weights.mean(0).unsqueeze(-1)
    cov = torch.cov(weights.mT) / NOISE_VARIANCE
    if not fitted:
        mean = torch.zeros_like(mean)
        cov = torch.eye(FEATURES, dtype=DTYPE) * cov.diagonal().mean()
    nothing, one = torch.zeros(1, dtype=DTYPE), torch.ones(1, dtype=DTYPE)
    return Alpaca(
        encoder=encoder,
        x_offset=nothing,
        x_scale=one,
        y_offset=nothing,
        y_scale=one,
        prior_mean=mean,
        prior_cov=0.5 * (cov + cov.mT),
        noise_variance=NOISE_VARIANCE * one,
        hazard=SWITCHING,
    )


def recurring(wanted: Simulations, memories: Sequence[int]) -> list[Row]:
    """Mean `log_score` on the switching sinusoid, and its `gain` over the first memory."""
    rows = []
    for fitted in (True, False):
        model = random_features(fitted)
        for tasks in (TASKS, 0):
            scores = []
            for memory in memories:
                own = []
                for one in range(wanted.count):
                    generator = torch.Generator().manual_seed(wanted.seed + one)
                    batch = sinusoids(SWITCHING, tasks)(generator, 1, LENGTH)
                    assert batch.x is not None
                    settings = DEFAULTS._replace(regimes=memory)
                    x = batch.x[0].numpy()
                    followed = follow(model, batch.y[0].numpy(), settings, inputs=x)
                    own.append(float(np.nanmean(followed.log_score[SKIPPED:])))
                scores.append(np.array(own))
                rows.append(
                    {
                        "prior": "fitted" if fitted else "generic",
                        "recur": tasks or "never",
                        "regimes": memory,
                        "log_score": scores[-1].mean(),
                        "gain": estimate(scores[-1] - scores[0]),
                    }
                )
    return rows
