"""The outlier study: false alarms on quiet data with outliers, delays at real shifts.

40,000 observations of N(0, 1), of which 1 % are replaced by -8 or 8, and streams of the same kind
that shift by 1, 2 or 3 standard deviations.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from model_core.upm.base import UnderlyingModel
from model_core.upm.builtin import Options, build
from training.evaluation.online import Followed, Settings, follow

SHARE = 0.01  # of outliers
SIZE = 8.0  # their absolute value
QUIET_STREAMS = 8
QUIET_LENGTH = 5000
SHIFTS = (1.0, 2.0, 3.0)
SHIFT_STREAMS = 401
SHIFT_AT = 300
SHIFT_LENGTH = 400
ALARM = 0.9  # of `changed_probability`
ALARMS = ("suspected", "confirmed", f"changed_probability > {ALARM}")

Alarms = dict[str, list[int]]


class Findings(NamedTuple):
    """By kind of alarm: false alarms per 1,000 observations, and the median delay at each shift."""

    false_per_1000: dict[str, float]
    delay: dict[str, list[float]]


def study(
    model: UnderlyingModel, settings: Settings, seed: int, advance: Callable[[], None]
) -> Findings:
    """Run the study; `advance` is called after each of its `1 + len(SHIFTS)` parts."""
    rng = np.random.default_rng(seed)
    quiet = follow(model, _labels(rng, QUIET_STREAMS, QUIET_LENGTH).tolist(), settings)
    advance()
    count = QUIET_STREAMS * QUIET_LENGTH
    raised = [alarms(stream) for stream in quiet]
    false = {kind: 1000 * sum(len(one[kind]) for one in raised) / count for kind in ALARMS}
    delay: dict[str, list[float]] = {kind: [] for kind in ALARMS}
    for shift in SHIFTS:
        y = _labels(rng, SHIFT_STREAMS, SHIFT_LENGTH)
        y[:, SHIFT_AT:] += shift
        raised = [alarms(stream) for stream in follow(model, y.tolist(), settings)]
        advance()
        for kind in ALARMS:
            delay[kind].append(statistics.median(_delay(one[kind]) for one in raised))
    return Findings(false, delay)


def alarms(followed: Followed) -> Alarms:
    """Times of each kind of alarm in one stream."""
    first: dict[tuple[str, int], int] = {}
    for t, event in followed.events:
        first.setdefault((event.state, event.id), t)
    high = [mass > ALARM for mass in followed.changed]
    crossed = [t for t in range(1, len(high)) if high[t] and not high[t - 1]]
    by_state = {
        kind: [t for (state, _), t in first.items() if state == kind] for kind in ALARMS[:2]
    }
    return {**by_state, ALARMS[2]: crossed}


def report(model: str, hazard: float, seed: int, console: Console | None = None) -> Findings:
    """Print the study with the model's outlier rate and without; returns the former."""
    torch.set_num_threads(1)
    console = console or Console()
    built = build(model, Options())
    rates = (built.outlier_rate, 0.0)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("filtering", total=len(rates) * (1 + len(SHIFTS)))
        findings = [
            study(
                built, Settings(hazard=hazard, outlier_rate=rate), seed, _advancer(progress, task)
            )
            for rate in rates
        ]
    console.print(_table(model, hazard, dict(zip(rates, findings, strict=True))))
    return findings[0]


def _advancer(progress: Progress, task: object) -> Callable[[], None]:
    return lambda: progress.advance(task)  # type: ignore[arg-type]


def _labels(rng: np.random.Generator, streams: int, length: int) -> NDArray[np.float64]:
    y = rng.normal(size=(streams, length, 1))
    signs = rng.choice((-SIZE, SIZE), size=y.shape)
    return np.where(rng.random(y.shape) < SHARE, signs, y)


def _delay(times: list[int]) -> float:
    return min((t - SHIFT_AT for t in times if t >= SHIFT_AT), default=math.inf)


def _table(model: str, hazard: float, findings: dict[float, Findings]) -> Table:
    share = f"{SHARE:.0%} replaced by ±{SIZE:g}"
    title = f"{model}, hazard {hazard:g}: {QUIET_STREAMS * QUIET_LENGTH:,} of N(0, 1), {share}"
    table = Table("outlier\nrate", box=SIMPLE_HEAD, title=title)
    table.add_column("alarm", no_wrap=True)
    table.add_column("false\nper 1,000", justify="right")
    for shift in SHIFTS:
        table.add_column(f"delay at\n{shift:g} sd", justify="right")
    for rate, result in findings.items():
        for kind in ALARMS:
            delays = (f"{delay:g}" for delay in result.delay[kind])
            table.add_row(f"{rate:g}", kind, f"{result.false_per_1000[kind]:.3f}", *delays)
        table.add_section()
    return table
