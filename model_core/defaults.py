"""What a stream's settings are unless they are given; the service and evaluations share them."""

from __future__ import annotations

from typing import NamedTuple


class Defaults(NamedTuple):
    """Settings of a stream; hazard and outlier rate are the model's.

    confirm_probability: `changed_probability` at which a change is confirmed; None: it is confirmed
    once it was suspected for `confirm_after` observations.
    """

    model: str = "averaged"
    max_hypotheses: int = 50
    confirm_probability: float | None = 0.99
    confirm_after: int = 10
    warmup: int = 20
    history: int = 2000
