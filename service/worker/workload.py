"""What a read may cost: its worker answers nobody else meanwhile, and has to keep its leases."""

from __future__ import annotations

from service.unfit import UnfitModel
from service.wire import Head, Observe, Predict
from service.worker.engine import Engine
from service.worker.stream import Stream

# In evaluations of a quantile of one component, about 1 us each on one core.
COVARIANCE = 1 / 32  # of an entry, for each component
NUMBER = 4  # in the answer
COMPONENT = 64  # its moments and its family's parameters in the answer
PATH = 1 / 4  # of a step of one component on a path
PATH_BYTES = 1 << 30  # of the states of all paths


def check_predictions(engine: Engine, stream: Stream, command: Predict, points: int) -> None:
    """Raise UnfitModel for predictions of so many labels that they would take too long."""
    head = stream.live()
    outputs, hypotheses = head.y_dim or 1, head.settings.max_hypotheses
    levels = len(command.quantiles) + 1 + COMPONENT * command.components
    each = hypotheses * levels + outputs * (hypotheses * COVARIANCE + NUMBER)
    work = points * outputs * (each + NUMBER * command.samples)
    _check(engine, work, f"{points} predictions of {outputs} numbers")


def check_details(engine: Engine, head: Head, command: Observe) -> None:
    """Raise UnfitModel for quantiles or components of observations that would take too long."""
    levels = len(command.quantiles or ()) + COMPONENT * command.components
    count = len(command.observations)
    work = count * (head.y_dim or 1) * head.settings.max_hypotheses * levels
    _check(engine, work, f"quantiles or components of {count} observations")


def check_paths(engine: Engine, stream: Stream, command: Predict, count: int) -> None:
    """Raise UnfitModel for so many paths that they would take too long, or too much memory."""
    assert stream.slab is not None
    head = stream.live()
    steps = count * command.horizon * (head.y_dim or 1)
    what = f"{count} paths of {command.horizon} labels"
    _check(engine, steps * head.settings.max_hypotheses * PATH, what)
    if count * stream.slab.row_bytes > PATH_BYTES:
        raise UnfitModel(f"horizon: {what} do not fit into memory; ask for less", field="horizon")


def _check(engine: Engine, work: float, what: str) -> None:
    limit = engine.settings.max_read_work
    if work > limit:
        raise UnfitModel(
            f"{what}, with so many hypotheses, quantiles and samples, cost {work:.0f} evaluations; "
            f"at most {limit}: ask for less at a time"
        )
