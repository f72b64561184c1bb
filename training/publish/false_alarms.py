"""Simulated false-alarm curves of a published model, for the stream setting `sensitivity`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from model_core import artifact
from model_core.errors import CannotSimulate
from model_core.sensitivity import Plan, calibrate
from model_core.sensitivity.regimes import check, windows
from training.data.base import Batch

SERIES = 64  # for each size of shift

Advance = Callable[[int, int], None]  # with the number of new observations, and of all


def silent(done: int, total: int) -> None:
    """Report no progress."""


def simulate(folder: Path, observations: int, batch: Batch, advance: Advance = silent) -> bool:
    """Write the curves into a model's description; False where the model has none.

    A model with inputs gets those of the test sequences, window by window. A model without a
    generator of quiet data has no curves; its streams refuse `sensitivity`.
    """
    if observations == 0:
        return False
    model = artifact.load(folder)
    try:
        check(model)
    except CannotSimulate:
        return False
    plan = Plan(observations, shifted=SERIES)
    total = plan.amount(model)
    inputs = None if batch.x is None else windows(batch.x)
    curves = calibrate(
        model, plan, inputs, lambda done: advance(done, total), "those of the test sequences"
    )
    artifact.amend(folder, sensitivity=curves)
    return True
