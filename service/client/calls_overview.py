"""The call for streams at a glance. See `service.client.calls`."""

from __future__ import annotations

from typing import NamedTuple

from service import documents
from service.client.calls import as_type
from service.client.retry import Call, Request

_overview = as_type(documents.Overview)


class Wanted(NamedTuple):
    """Which streams, how many in a page, and how many last labels of each."""

    prefix: str
    limit: int
    labels: int
    cursor: str | None


def overview(wanted: Wanted) -> Call[documents.Overview]:
    """One page of streams at a glance."""
    params = [(name, str(value)) for name, value in wanted._asdict().items() if value is not None]
    return Call(Request("GET", "/v1/overview", params), _overview)
