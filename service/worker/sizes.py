"""Sizes of streams, checked before they take memory that there may not be."""

from __future__ import annotations

from msgspec.structs import replace

from model_core.upm.base import UnderlyingModel
from service.errors import UnfitSettings
from service.wire import Head
from service.worker.answers import LEVELS
from service.worker.checks import Known
from service.worker.engine import Engine

STATE_BYTES = 32 << 20  # of one stream's hypotheses: a step goes through all of them


def check_sizes(engine: Engine, head: Head, known: Known, max_hypotheses: int) -> None:
    """Raise UnfitSettings where a stream with these dimensions would be too large to step."""
    shaped = replace(head, x_dim=known.x_dim, y_dim=known.y_dim)
    settings, outputs, limit = head.settings, known.y_dim or 1, engine.settings.max_dimension
    lags = settings.order * outputs
    if settings.model.partition("@")[0] == "autoregressive" and lags > limit:
        detail = f"{settings.order} labels of {outputs} numbers are {lags} inputs"
        raise UnfitSettings(f"order: {detail}, at most {limit} are taken", field="order")
    model = engine.catalogue.of(shaped)
    each, work = engine.catalogue.hypothesis_bytes(model), _work(model)
    # In memory there is a slot for the one that is born.
    most = min(STATE_BYTES // each - 1, engine.settings.max_step_work // max(work, 1))
    if max_hypotheses > most:
        fit = f"at most {most} fit" if most > 1 else "not even 2 fit"
        raise UnfitSettings(
            f"max_hypotheses: {max_hypotheses} of {each} bytes and {work} evaluations each, with so"
            f" many numbers in x and y; {fit}",
            field="max_hypotheses",
        )


def _work(model: UnderlyingModel) -> int:
    """Evaluations for the quantiles of an answer, of one hypothesis."""
    if model.label in ("class", "binary"):
        return 0
    return len(LEVELS) * model.y_dim * model.parts
