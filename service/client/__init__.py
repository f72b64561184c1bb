"""Clients of the REST interface, and an outbox that loses nothing; see docs/client.md."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.client.asynchronous import AsyncClient
    from service.client.base import DEFAULT_URL
    from service.client.errors import (
        ClientError,
        InvalidRequest,
        OutcomeUnknown,
        PartlyObserved,
        Problem,
        Unavailable,
        UnexpectedAnswer,
    )
    from service.client.outbox import AsyncOutbox, Bounds, Outbox, OutboxError, OutboxFull
    from service.client.subscriptions import Ended, Followed, Missed
    from service.client.sync import Client
    from service.schema.responses import Answer, Event, Gap, StreamChange, StreamEvent

__all__ = [
    "DEFAULT_URL",
    "Answer",
    "AsyncClient",
    "AsyncOutbox",
    "Bounds",
    "Client",
    "ClientError",
    "Ended",
    "Event",
    "Followed",
    "Gap",
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

_MODULES = ("sync", "asynchronous", "outbox", "subscriptions", "errors", "base", "frames")


def __getattr__(name: str) -> Any:
    """Import the clients, and httpx with them, at their first use alone.

    In the wheels the service reads the answers' definitions from this package, without a client.
    """
    if name in _MODULES:
        return import_module(f"service.client.{name}")
    if name in __all__:
        value = _value(name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _value(name: str) -> Any:
    for module in (import_module(f"service.client.{each}") for each in _MODULES):
        if hasattr(module, name):
            return getattr(module, name)
    return getattr(import_module("service.schema.responses"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
