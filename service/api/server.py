"""The HTTP server: a signal ends its start as well, and a stop has a bound.

At a stop it ends connections that have no end of their own before it drains.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from service.api.http import Context
from service.process import STOP_WAIT_S, limit_stop
from service.tasks import end

log = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """Uvicorn, waiting for requests at its stop but not for those who follow."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app
        self.stop_wait_s = (config.timeout_graceful_shutdown or 0) + STOP_WAIT_S

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop."""
        if not self.should_exit:
            limit_stop(self.stop_wait_s)
            self._give_up()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, unless a signal came first.

        What is loaded by now stays, and is not looked through for garbage again: it is most of what
        there is, and a full collection would hold the event loop for 0.1 s.
        """
        if self.should_exit:
            return
        gc.collect()
        gc.freeze()
        await super().startup(sockets)

    def _give_up(self) -> None:
        """End a start that is under way: it may wait for the store for long."""
        starting: asyncio.Task[None] | None = self._app.state.starting
        if starting is not None:
            log.info("stopped before it had started")
            starting.get_loop().call_soon_threadsafe(starting.cancel)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End event streams, then stop as usual."""
        context: Context | None = getattr(self._app.state, "context", None)
        if context is not None:
            await asyncio.gather(context.hub.drain(), context.live.drain())
        for connection in list(self.server_state.connections):
            # What is left of them belongs to consumers that take nothing, and would be waited for.
            scope, transport = getattr(connection, "scope", None), connection.transport
            held = transport.get_write_buffer_size() if transport is not None else 0
            if held and scope is not None and "answered_s" in scope.get("state", {}):
                transport.abort()
        await super().shutdown(sockets)
        # Requests that were given up: nothing else would wait for their end, and end it.
        await end(*self.server_state.tasks)
