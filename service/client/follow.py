"""The observations of one stream as they come."""

from __future__ import annotations

import httpx
import msgspec
from httpx_sse import ServerSentEvent
from msgspec import Struct

from service.client.calls import path_of
from service.client.errors import Problem
from service.client.feed import Feed, Patience
from service.documents import Recorded


class Followed(Recorded):
    """An observation as it came. `cursor` resumes after it."""

    cursor: str = ""


class Missed(Struct):
    """Observations from `start` to before `end` that the service retains no longer."""

    start: int
    end: int
    cursor: str = ""


class Ended(Struct):
    """A stream that is not there to be followed any more: `deleted` or `replaced`."""

    reason: str
    detail: str = ""


Message = Followed | Missed | Ended
_observation = msgspec.json.Decoder(Followed).decode
_missed = msgspec.json.Decoder(Missed).decode
_ended = msgspec.json.Decoder(Ended).decode
ENDED = {"unknown-stream": "deleted", "stream-replaced": "replaced"}  # while nobody was connected


class Follow(Feed[Message]):
    """One stream's observations, from a place on."""

    def __init__(self, stream: str, after: int | str | None, patience: Patience) -> None:
        place = None if after is None else str(after)
        super().__init__(path_of(stream, "/observations/live"), {}, place, patience)
        self._begun = False

    def opened(self, response: httpx.Response) -> Message | None:
        """Check the head of a response; of a later one it may be that the stream has ended."""
        try:
            super().opened(response)
        except Problem as problem:
            reason = ENDED.get(problem.type)
            if not self._begun or reason is None:
                raise
            self.over = True
            return Ended(reason, problem.detail)
        self._begun = True
        return None

    def read(self, message: ServerSentEvent) -> Message | None:
        """Return an observation, what is not retained any more, or the stream's end."""
        if message.event == "observation":
            return _observation(message.data)
        if message.event == "gap":
            return _missed(message.data)
        if message.event == "end":
            self.over = True
            return _ended(message.data)
        return None

    def mark(self, found: Message, cursor: str) -> None:
        """Note the cursor."""
        if not isinstance(found, Ended):
            found.cursor = cursor
