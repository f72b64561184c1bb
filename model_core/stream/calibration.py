"""The threshold of a series' sensitivity, on its own labels."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from model_core.errors import BadInput
from model_core.sensitivity import own, quiet
from model_core.sensitivity.own import Calibrated
from model_core.stream import columns, hindsight
from model_core.stream.columns import Floats
from model_core.stream.local import LocalPipeline
from model_core.stream.slab import Past, Slab
from model_core.stream.state import StatedMoments
from model_core.threads import one_thread

GENERATION = 1  # as of a stream that was never deleted: continuations are drawn by it


def calibrate(
    pipeline: LocalPipeline | None, row: int, name: str, rate: float | None
) -> Calibrated:
    """Set the threshold of a series to that of `rate` false alarms per 1,000 observations.

    name: of the series, by which continuations are drawn as those of a stream. Raises BadInput
    without a rate, and where nothing can be learned from its labels.
    """
    if rate is None:
        raise BadInput("sensitivity: expected this setting, whose threshold is calibrated")
    if pipeline is None:
        raise BadInput(
            f"sensitivity: expected at least {quiet.FEWEST} labels, and that two differ, which is "
            "not so yet"
        )
    model = pipeline.model
    rules = pipeline.rules
    series = pipeline.series[row]
    if not own.fits(model):
        raise BadInput(
            "sensitivity: expected a model of one real label without inputs to calibrate, got one "
            f"of {model.y_dim} {model.label} labels and {model.x_dim} inputs"
        )
    rows = hindsight.known_now(series, min(own.MOST, pipeline.settings.history))
    rates = EffectiveRates(rules.hazard, rules.outlier_rate)
    drawn = Continuations(name, GENERATION, series.seq)
    steps = of_filter(
        pipeline.slab,
        series.row,
        pipeline.past(pipeline.slab, rows),
        series.stated,
        rates,
        rate,
        drawn,
    )
    with one_thread():
        try:
            calibrated = hindsight.outcome(steps)
        except ValueError as error:
            raise BadInput(f"sensitivity: {error}") from error
    series.threshold = calibrated.threshold
    return calibrated


class EffectiveRates(NamedTuple):
    """Hazard (H,) by run length, and outlier rate, of the observations to come."""

    hazard: Floats
    outlier_rate: float


class Continuations(NamedTuple):
    """What quiet continuations are drawn by: name and generation of a stream, and its position."""

    name: str
    generation: int
    seq: int


def of_filter(
    slab: Slab,
    row: int,
    past: Past,
    stated: StatedMoments,
    rates: EffectiveRates,
    requested: float,
    drawn: Continuations,
) -> Generator[None, None, Calibrated]:
    """Threshold of `requested` false alarms per 1,000 of a filter, on the last of its labels.

    The labels, in hindsight, tell how quiet ones go on. Copies of the filter go through such
    series, and what they confirm is a false alarm. Raises ValueError where nothing can be learned
    from the labels. Yields where it can be left for a while.
    """
    there = columns.labelled(slab.model, past.seen.y)
    labels = past.seen.filtered[there, 0]
    quiet.check(labels)
    first = drawn.seq - past.seen.rows
    starts = yield from hindsight.starts(slab, past, stated, first)
    regime = own.learned(labels, there.nonzero()[0] + first, starts)
    y = own.continuations(regime, drawn.name, drawn.generation, drawn.seq)
    hypotheses = slab.max_hypotheses
    passed = own.confirmations(
        slab.model, slab.row(row), hypotheses, y, rates.hazard, rates.outlier_rate
    )
    counts: list[int] = []
    for so_far in passed:
        counts = so_far
        yield
    return own.calibrated(counts, y.size, requested)
