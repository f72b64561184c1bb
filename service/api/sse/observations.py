"""Live subscription to the observations of one stream."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

from service import wire
from service.api.sse.events import RETRY_MS, message
from service.api.sse.observation_hub import ObservationHub, Watched, cursor_of
from service.observability import metrics
from service.schema import rendering

ENDS = {
    "deleted": "the stream was deleted or has expired",
    "replaced": "the stream was replaced by another of its name: subscribe again",
}


def differs(head: wire.Head | None, generation: int, at: int) -> str:
    """Return why a stream cannot continue at `at` in this generation; empty if it can.

    at: `seq` of the next observation. Those queued behind a pending label already have a `seq`.
    """
    if head is None or head.deleted:
        return "deleted"
    ahead = at > head.seq + len(head.pending)  # of a store that was restored to an earlier state
    return "replaced" if ahead or head.generation != generation else ""


class Follower:
    """Position of one consumer: `at` is the `seq` of its next observation.

    state: whether to send the stream's summary as well.
    """

    def __init__(
        self, hub: ObservationHub, watched: Watched, generation: int, at: int, state: bool
    ) -> None:
        self._hub, self._watched = hub, watched
        self._generation, self._at, self._state = generation, at, state
        self._sent_head: wire.Head | None = None  # the head of the last summary sent
        self._sent_s = 0.0

    async def ready(self) -> None:
        """Read the first page before the response begins, so that its errors become a problem.

        Otherwise a client that reconnects to unreadable records would get no error. Raises
        RedisUnavailable and CorruptState, and stops following then.
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
        # A consumer that disconnects before its first message resumes here as well.
        place = cursor_of(self._at - 1, self._generation)
        yield self._mark_sent(f"retry: {RETRY_MS}\n:\nid: {place}\n\n".encode())
        while not self._hub.connections.closing:
            count = self._watched.count
            if reason := await self._end_reason():
                yield message("end", {"reason": reason, "detail": ENDS[reason]})
                return
            left_s = self._sent_s + heartbeat_s - time.monotonic()
            if chunk := await self._news():
                yield self._mark_sent(chunk)
            elif left_s <= 0:
                yield self._mark_sent(b":\n\n")
            else:
                await self._watched.moved(count, left_s)

    def leave(self) -> None:
        """Stop following."""
        self._hub.leave(self._watched)

    async def _end_reason(self) -> str:
        """Return why the subscription ends; empty if it continues."""
        self._watched.check()
        if not differs(self._watched.head, self._generation, self._at):
            return ""
        # A poll in flight may have returned an older head.
        await self._watched.look()
        self._watched.check()
        return differs(self._watched.head, self._generation, self._at)

    async def _news(self) -> bytes:
        """Return messages that the consumer has not received."""
        head = self._watched.head
        assert head is not None
        if self._at < head.seq:
            page = await self._watched.page(self._at)
            self._at = page.stop
            metrics.LIVE_OBSERVATIONS.inc(page.observations)
            metrics.LIVE_GAPS.inc(page.gaps)
            return page.chunk
        if self._state and head is not self._sent_head:
            self._sent_head = head
            return message("state", rendering.summary(self._watched.stream, head))
        return b""

    def _mark_sent(self, chunk: bytes) -> bytes:
        self._sent_s = time.monotonic()
        return chunk
