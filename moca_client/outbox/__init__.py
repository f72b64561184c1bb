"""Observations kept until the service has applied them, once: in memory, or in a file."""

from moca_client.outbox.box import Outbox
from moca_client.outbox.sending import Delivered
from moca_client.outbox.store import Failed, OutboxError, OutboxFull
