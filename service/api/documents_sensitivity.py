"""What a stream's sensitivity comes to, as the REST interface answers it."""

from __future__ import annotations

from pydantic import BaseModel, Field


class Sensitivity(BaseModel):
    """What a stream's setting `sensitivity` comes to."""

    false_alarms_per_1000: float = Field(description="as asked for")
    threshold: float = Field(
        description="`changed_probability` at which a change is confirmed, at once"
    )
    expected_delay: list[dict[str, float | None]] = Field(
        description="observations of the new regime until then, for a `shift` of 1, 2 and 3 "
        "standard deviations: `median` and `mean` of those changes that are `detected` in time"
    )
    differs: list[str] = Field(
        description="settings other than those of the simulation, so that the rate is not certain"
    )
