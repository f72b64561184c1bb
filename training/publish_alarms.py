"""False alarms of a model that is published, at each threshold: for the setting `sensitivity`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from model_core import artifact
from model_core.errors import CannotSimulate
from model_core.sensitivity import Plan, calibrate
from model_core.sensitivity.regimes import check, windows
from training.data.base import Batch

SERIES = 64  # for each size of shift

Said = Callable[[int, int], None]


def silent(done: int, total: int) -> None:
    """Say nothing."""


def simulate(folder: Path, observations: int, batch: Batch, said: Said = silent) -> bool:
    """Enter the curves in a model's description; False where there are none.

    A model that takes inputs gets those of the test sequences, window by window. There are no
    curves of a model that no quiet data can be drawn from; its streams are told so.
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
    about = "those of the test sequences"
    found = calibrate(model, plan, inputs, lambda done: said(done, total), about)
    artifact.amend(folder, sensitivity=found)
    return True
