"""Clients of the REST interface, and an outbox that loses nothing; see docs/client.md."""

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

__all__ = [
    "DEFAULT_URL",
    "AsyncClient",
    "AsyncOutbox",
    "Bounds",
    "Client",
    "ClientError",
    "Ended",
    "Followed",
    "InvalidRequest",
    "Missed",
    "Outbox",
    "OutboxError",
    "OutboxFull",
    "OutcomeUnknown",
    "PartlyObserved",
    "Problem",
    "Unavailable",
    "UnexpectedAnswer",
]
