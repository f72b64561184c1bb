"""What streams at a glance are answered as: for OpenAPI only."""

from __future__ import annotations

from pydantic import Field

from service.api.documents import Document, Event


class Glance(Document):
    """One stream at a glance."""

    stream: str
    model: str
    seq: int = Field(description="position of the next observation")
    warming_up: bool
    updated: str
    regime_start: int | None = Field(description="most probable start of the present regime")
    regime_length: int | None = Field(description="observations since then, that one among them")
    changed_probability: float | None
    event: Event | None = Field(description="the change under suspicion")
    last_event: Event | None = Field(description="the last confirmed change")
    labels: list[float | None] = Field(
        description="the last labels, oldest first; of each the first number, null: missing"
    )


class Overview(Document):
    """A page of streams at a glance, by id."""

    streams: list[Glance]
    total: int = Field(description="streams whose id starts with `prefix`")
    cursor: str | None = Field(description="to be given for the next page; null on the last")
    unreadable: list[str] = Field(
        [], description="streams of the page that are damaged in the store"
    )
