"""One connection that follows the observations of a stream."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

from service import wire
from service.api.sse.events import RETRY_MS, message
from service.api.sse.observation_hub import ObservationHub, Watched, cursor_of
from service.observability import subscriber_metrics as metrics
from service.schema import rendering

ENDS = {
    "deleted": "the stream was deleted or has expired",
    "replaced": "the stream was replaced by another of its name: subscribe again",
}


def differs(head: wire.Head | None, generation: int, at: int) -> str:
    """Say why a stream cannot go on at `at` in one of its lives; empty where it can.

    at: `seq` of the observation to come. Those behind a label that is awaited have theirs already.
    """
    if head is None or head.deleted:
        return "deleted"
    ahead = at > head.seq + len(head.pending)  # of a store that was put back to an earlier state
    return "replaced" if ahead or head.generation != generation else ""


class Follower:
    """How far one consumer has come: `at` is the `seq` of the observation to come.

    state: whether the stream's summary is wanted, too.
    """

    def __init__(
        self, live: ObservationHub, watched: Watched, generation: int, at: int, state: bool
    ) -> None:
        self._live, self._watched = live, watched
        self._generation, self._at, self._state = generation, at, state
        self._told: wire.Head | None = None  # the head that was last summed up
        self._sent_s = 0.0

    async def ready(self) -> None:
        """Read what comes first: where that fails there is still an answer to say why.

        Otherwise a client that reconnects to unreadable records would get no error. Raises
        RedisUnavailable and CorruptState, and follows no longer then.
        """
        try:
            head = self._watched.head
            if not differs(head, self._generation, self._at) and head and self._at < head.seq:
                await self._watched.page(self._at)
        except BaseException:
            self.leave()
            raise

    async def chunks(self, heartbeat_s: float) -> AsyncGenerator[bytes]:
        """Yield messages until the stream ends, or the service stops.

        Raises RedisUnavailable and CorruptState.
        """
        # A consumer that is cut off before its first message goes on here all the same.
        place = cursor_of(self._at - 1, self._generation)
        yield self._noted(f"retry: {RETRY_MS}\n:\nid: {place}\n\n".encode())
        while not self._live.connections.closing:
            count = self._watched.count
            if reason := await self._ending():
                yield message("end", {"reason": reason, "detail": ENDS[reason]})
                return
            left_s = self._sent_s + heartbeat_s - time.monotonic()
            if chunk := await self._news():
                yield self._noted(chunk)
            elif left_s <= 0:
                yield self._noted(b":\n\n")
            else:
                await self._watched.moved(count, left_s)

    def leave(self) -> None:
        """Follow no longer."""
        self._live.leave(self._watched)

    async def _ending(self) -> str:
        """Say why there is no more to come; empty where there is."""
        self._watched.check()
        if not differs(self._watched.head, self._generation, self._at):
            return ""
        # A look that was on its way may have brought an older head.
        await self._watched.look()
        self._watched.check()
        return differs(self._watched.head, self._generation, self._at)

    async def _news(self) -> bytes:
        """Return messages that the consumer has not had."""
        head = self._watched.head
        assert head is not None
        if self._at < head.seq:
            page = await self._watched.page(self._at)
            self._at = page.stop
            metrics.LIVE_OBSERVATIONS.inc(page.observations)
            metrics.LIVE_GAPS.inc(page.gaps)
            return page.chunk
        if self._state and head is not self._told:
            self._told = head
            return message("state", rendering.summary(self._watched.stream, head))
        return b""

    def _noted(self, chunk: bytes) -> bytes:
        self._sent_s = time.monotonic()
        return chunk
