"""When a stream's events would have been confirmed, under many thresholds at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from model_core import belief as beliefs
from model_core import filter as moca
from model_core import warmup
from model_core.belief import Belief
from model_core.events import Reading, Track, track
from model_core.filter import FilterState, Inputs, Prior
from model_core.sensitivity.regimes import Drawn, location_of
from model_core.stream_settings import DEFAULTS
from model_core.upm.base import UnderlyingModel


class Streams(NamedTuple):
    """How streams are filtered; None: the model's own.

    located: whether location and scale are given, and there is no warm-up.
    """

    hazard: float | None = None
    outlier_rate: float | None = None
    max_hypotheses: int = DEFAULTS.max_hypotheses
    warmup: int = DEFAULTS.warmup
    located: bool = False


def watch(
    model: UnderlyingModel,
    drawn: Drawn,
    streams: Streams,
    thresholds: Sequence[float],
    tick: Callable[[int], None] = lambda observations: None,
) -> list[list[list[int]]]:
    """Observations at which events were confirmed, [threshold][series].

    One that is relocated is confirmed again only where its new start is after the confirmation: it
    cannot be the same change. `tick` is told of observations as they are done.
    """
    watched = Watch(len(drawn.y), thresholds)
    prior = _prior(model, drawn, streams)
    state = moca.init(prior, streams.max_hypotheses)
    for t in range(drawn.y.shape[1]):
        state, _ = moca.step(model, state, prior, _inputs(model, drawn, t, streams))
        watched.take(state, t)
        tick(len(drawn.y))
    return watched.confirmed


class Watch:
    """Events of each series under each threshold.

    thresholds: those of all series, or those of each. starts: of the regimes that they begin in.
    """

    def __init__(
        self,
        series: int,
        thresholds: Sequence[float] | Sequence[Sequence[float]],
        starts: Sequence[int] | None = None,
    ) -> None:
        first = [0] * series if starts is None else list(starts)
        self.confirmed: list[list[list[int]]] = [[[] for _ in range(series)] for _ in thresholds]
        self._tracks = [[Track(start, start) for start in first] for _ in thresholds]
        self._starts = torch.tensor([first for _ in thresholds], dtype=torch.int64)
        self._open = torch.zeros(len(thresholds), series, dtype=torch.bool)
        columns = torch.tensor(thresholds, dtype=torch.float64).reshape(len(thresholds), -1)
        self._thresholds = columns.expand(-1, series)

    def take(self, state: FilterState, t: int) -> None:
        """Follow the belief after observation `t`, where there is anything to follow."""
        belief = state.belief
        # Most thresholds have alarmed nowhere yet: their mass is that after the earliest start.
        earliest = self._starts.amin(0)
        common = beliefs.mass_below(belief, t - earliest)
        slot = beliefs.likeliest(belief.log_prob, belief.run_length).unsqueeze(-1)
        start = t - belief.run_length.gather(-1, slot).squeeze(-1)
        busy = (start > self._starts) | self._open | (common >= self._thresholds)
        at = busy.nonzero()
        if not len(at):
            return
        which, rows = at.unbind(-1)
        picked = Belief(*(values[rows] for values in belief))
        below = t - self._starts[which, rows]
        mass, slot = beliefs.suspected(picked, below, self._thresholds[which, rows])
        here = torch.arange(len(rows)), slot
        readings = zip(
            at.tolist(),
            (t - picked.run_length[here]).tolist(),
            picked.log_prob[here].exp().tolist(),
            picked.previous_start[here].tolist(),
            mass.tolist(),
            strict=True,
        )
        for (threshold, row), likely, probability, previous, changed in readings:
            reading = Reading(
                seq=t,
                time=None,
                start=likely,
                probability=probability,
                previous_start=previous,
                totals=None,
                start_totals=None,
                changed_probability=changed,
            )
            self._follow(threshold, row, reading)

    def _follow(self, which: int, row: int, reading: Reading) -> None:
        before = self._tracks[which][row]
        after, _ = track(before, reading, 0, float(self._thresholds[which, row]))
        self._tracks[which][row] = after
        self._starts[which, row] = after.confirmed_start
        self._open[which, row] = after.event is not None
        last = before.last_event
        new = after.last_event
        if new is None or new.confirmed_at != reading.seq:
            return
        confirmed = self.confirmed[which][row]
        if last is None or last.id != new.id or new.start > confirmed[-1]:
            confirmed.append(reading.seq)


def _prior(model: UnderlyingModel, drawn: Drawn, streams: Streams) -> Prior:
    """Location and scale from the first labels, as a stream of the service has them."""
    if streams.located or not model.needs_scale:
        where = torch.full((len(drawn.y), model.scaled), location_of(model), dtype=torch.float64)
        return moca.make_prior(model, where, torch.ones_like(where))
    first = drawn.y[:, : warmup.LONGEST]
    if model.scales_inputs and drawn.x is not None:
        first = torch.cat((first, drawn.x[:, : warmup.LONGEST]), -1)
    moments = [_located(model, rows, streams.warmup) for rows in first.tolist()]
    location, scale = zip(*moments, strict=True)
    return moca.make_prior(
        model,
        torch.tensor(location, dtype=torch.float64),
        torch.tensor(scale, dtype=torch.float64),
    )


def _located(
    model: UnderlyingModel, rows: list[list[float]], labels: int
) -> tuple[list[float], list[float]]:
    for count in range(labels, len(rows) + 1):
        if warmup.complete(rows[:count], model.y_dim, labels, count):
            return warmup.estimate(rows[:count], model)
    return warmup.estimate(rows, model)


def _inputs(model: UnderlyingModel, drawn: Drawn, t: int, streams: Streams) -> Inputs:
    series = len(drawn.y)
    hazard = model.hazard if streams.hazard is None else streams.hazard
    rate = model.outlier_rate if streams.outlier_rate is None else streams.outlier_rate
    table = [hazard] if isinstance(hazard, float) else list(hazard)
    ones = torch.ones(series, dtype=torch.float64)
    return Inputs(
        x=None if drawn.x is None else drawn.x[:, t],
        y=drawn.y[:, t],
        labelled=ones > 0,
        hazard=torch.tensor(table, dtype=torch.float64).expand(series, -1),
        elapsed=ones,
        changepoint=ones * torch.nan,
        outlier_rate=ones * rate,
    )
