"""The threshold of a series' sensitivity, on its own labels."""

from __future__ import annotations

from model_core.errors import BadInput
from model_core.sensitivity import own, quiet
from model_core.sensitivity.own import Calibrated
from model_core.stream import hindsight
from model_core.stream.pipeline import Pipeline
from model_core.stream.rows import OFFSET
from model_core.threads import one_thread

GENERATION = 1  # as of a stream that was never deleted: continuations are drawn by it


def calibrate(pipeline: Pipeline | None, row: int, name: str, rate: float | None) -> Calibrated:
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
    rows = hindsight.known_now(series, min(own.MOST, rules.history))
    there = pipeline.layout.labelled(rows[:, pipeline.layout.y])
    labels = (rows[:, pipeline.layout.y.start] - rows[:, OFFSET])[there]
    try:
        quiet.check(labels)
    except ValueError as error:
        raise BadInput(f"sensitivity: {error}") from error
    with one_thread():
        first = series.seq - len(rows)
        starts = hindsight.starts(pipeline, rows, first) if series.warm else []
        regime = own.learned(labels, there.nonzero()[0] + first, starts)
        state = pipeline.filters.state(row)
        prior = pipeline.filters.prior(row)
        y = own.continuations(regime, name, GENERATION, series.seq)
        *_, counts = own.confirmations(model, state, prior, y, rules.hazard, rules.outlier_rate)
        calibrated = own.calibrated(counts, y.size, rate)
    series.threshold = calibrated.threshold
    return calibrated
