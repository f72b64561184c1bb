"""Observations of many streams in one request: streams side by side, each one's items in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import msgspec

from service import wire
from service.api.forms import BadItem, GoodItem, digest
from service.api.http import Context
from service.errors import EarlierItemFailed, ServiceError

_encode = msgspec.json.Encoder().encode
_STATUS_200 = b'{"status":200,'


class Bulk:
    """One request's items and what becomes of each."""

    def __init__(self, context: Context, items: Sequence[GoodItem | BadItem], belief: bool) -> None:
        self._context, self._items, self._belief = context, items, belief
        self._rendered: list[bytes] = [b""] * len(items)

    async def run(self) -> list[bytes]:
        """Apply all items and return one JSON object for each, in order."""
        by_stream: dict[str, list[int]] = {}
        for i, item in enumerate(self._items):
            if item.stream is None:
                self._fail([i], item)
            else:
                by_stream.setdefault(item.stream, []).append(i)
        await asyncio.gather(*(self._run_stream(places) for places in by_stream.values()))
        return self._rendered

    async def _run_stream(self, places: list[int]) -> None:
        """Apply one stream's items; after a failed one nothing more is attempted."""
        done = 0
        for command, count in self._commands(places):
            part = places[done : done + count]
            done += count
            if isinstance(command, BadItem):
                self._fail(part, command)
                break
            try:
                outcome = await self._context.gateway.submit(command, count)
            except ServiceError as error:
                self._refuse(part, error)
                break
            if not self._answer(part, outcome):
                break
        self._skip(places[done:])

    def _commands(self, places: list[int]) -> Iterator[tuple[wire.Observe | BadItem, int]]:
        """Group a stream's items: neighbours without a key go together, one with a key alone."""
        group: list[GoodItem] = []
        size = self._part_size(places)
        for place in places:
            item = self._items[place]
            alone = isinstance(item, BadItem) or item.key is not None or item.seq is not None
            if group and (alone or len(group) == size):
                yield self._command(group), len(group)
                group = []
            if isinstance(item, BadItem):
                yield item, 1
            elif item.key is not None:
                yield self._command([item]), 1
            else:
                group.append(item)
        if group:
            yield self._command(group), len(group)

    def _part_size(self, places: list[int]) -> int:
        good = [item for item in (self._items[p] for p in places) if isinstance(item, GoodItem)]
        return self._context.forms.parts([item.observation for item in good])

    def _command(self, group: list[GoodItem]) -> wire.Observe:
        first = group[0]
        observations = [item.observation for item in group]
        digested = digest(wire.encode(first.observation)) if first.key is not None else None
        return wire.Observe(
            first.stream, observations, first.key, digested, 0, first.seq, self._belief
        )

    def _answer(self, places: list[int], outcome: wire.Outcome) -> bool:
        """Enter a command's outcome; False when not all of it was applied."""
        for place, answer in zip(places, outcome.body, strict=False):
            self._rendered[place] = _STATUS_200 + answer[1:]
        if outcome.status < 400:
            return True
        failed = len(outcome.body) - 1
        document = msgspec.json.decode(outcome.body[-1])
        document.pop("applied", None)  # of the command, which the client does not know
        self._rendered[places[failed]] = self._document(places[failed], document)
        self._skip(places[failed + 1 :])
        return False

    def _refuse(self, places: list[int], error: ServiceError) -> None:
        for place in places:
            self._rendered[place] = self._document(place, error.document())

    def _fail(self, places: list[int], item: BadItem) -> None:
        self._refuse(places, item.error)

    def _skip(self, places: list[int]) -> None:
        """Answer items that were not attempted."""
        detail = "not applied, because an earlier item of the same stream failed"
        self._refuse(places, EarlierItemFailed(detail))

    def _document(self, place: int, document: dict[str, object]) -> bytes:
        stream = self._items[place].stream
        return _encode({**document, "stream": stream} if stream is not None else document)
