"""Clients of the REST interface, and an outbox that loses nothing; see docs/client.md."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moca_client.client import AsyncClient, Client
    from moca_client.errors import (
        ClientError,
        InvalidRequest,
        OutcomeUnknown,
        PartlyObserved,
        Problem,
        Unavailable,
        UnexpectedAnswer,
    )
    from moca_client.outbox import Outbox, OutboxError, OutboxFull
    from moca_client.responses import Answer, Event, Gap, Incident, StreamChange, StreamEvent
    from moca_client.subscriptions import Ended, Followed, Missed

DEFAULT_URL = "http://127.0.0.1:8000"

__all__ = [
    "DEFAULT_URL",
    "Answer",
    "AsyncClient",
    "Client",
    "ClientError",
    "Ended",
    "Event",
    "Followed",
    "Gap",
    "Incident",
    "InvalidRequest",
    "Missed",
    "Outbox",
    "OutboxError",
    "OutboxFull",
    "OutcomeUnknown",
    "PartlyObserved",
    "Problem",
    "StreamChange",
    "StreamEvent",
    "Unavailable",
    "UnexpectedAnswer",
]

# Where each name is; the service has the definitions of answers from here, without httpx.
_MODULES = ("client", "outbox", "subscriptions", "errors", "responses")
_OTHERS = ("frames", "retry")


def __getattr__(name: str) -> Any:
    """Import the clients, and httpx with them, at their first use alone."""
    if name in _MODULES + _OTHERS:
        return import_module(f"moca_client.{name}")
    if name in __all__:
        for module in (import_module(f"moca_client.{module_name}") for module_name in _MODULES):
            if hasattr(module, name):
                globals()[name] = getattr(module, name)
                return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
