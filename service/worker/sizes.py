"""Sizes of streams, checked before they take memory that there may not be."""

from __future__ import annotations

from msgspec.structs import replace

from service.errors import UnfitSettings
from service.wire import Head
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
    each = engine.catalogue.hypothesis_bytes(engine.catalogue.of(shaped))
    most = STATE_BYTES // each - 1  # there is a slot for the one that is born
    if max_hypotheses > most:
        fit = f"at most {most} fit" if most > 1 else "not even 2 fit"
        raise UnfitSettings(
            f"max_hypotheses: {max_hypotheses} of {each} bytes each, with so many numbers"
            f" in x and y; {fit}",
            field="max_hypotheses",
        )
