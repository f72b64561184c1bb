"""Observations kept until the service has applied them, once: in memory, or in a file."""

from service.client.outbox.asynchronous import AsyncOutbox
from service.client.outbox.blocking import Outbox
from service.client.outbox.box import Bounds
from service.client.outbox.sending import Delivered, Failed
from service.client.outbox.store import OutboxError, OutboxFull

__all__ = [
    "AsyncOutbox",
    "Bounds",
    "Delivered",
    "Failed",
    "Outbox",
    "OutboxError",
    "OutboxFull",
]
