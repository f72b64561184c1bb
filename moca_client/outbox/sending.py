"""How an outbox sends: for each item it finds out whether it was applied, whatever is lost.

An item is sent with its key and for one position. While the service remembers the key, a repeat is
answered from memory. Later the position decides: an item can only ever be applied at its own. If
the stream is past it, then either this item is there, as the history shows, or it was never
applied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import msgspec

from moca_client import calls, errors
from moca_client.calls import Result, path_of
from moca_client.outbox.store import Failed, OutboxItem, OutboxStore
from moca_client.responses import Answer, HistoryPage, Recorded, StreamSummary
from moca_client.retry import ONCE, Backoff, Call
from moca_client.sync import Client

BATCH_BYTES = 1 << 20
FAULT_TRIES = 5  # of an item that the service fails at, before it is set aside
T = TypeVar("T")


class Delivered(NamedTuple):
    """An item was applied. If found in the history, its answer has only the recorded fields."""

    ticket: int
    stream: str
    answer: Answer


Notice = Delivered | Failed


class Pauses:
    """Pauses before streams are tried again; `""` is the whole service."""

    def __init__(self) -> None:
        self._backoff: dict[str, Backoff] = {}
        self._until: dict[str, float] = {}

    def fail(self, stream: str, problem: errors.Problem | None) -> None:
        """Wait longer than the last time before this stream is tried again."""
        backoff = self._backoff.setdefault(stream, Backoff())
        self._until[stream] = time.monotonic() + backoff.next_s(problem)

    def work(self, stream: str) -> None:
        """Begin with short pauses again."""
        self._backoff.pop(stream, None)
        self._until.pop(stream, None)

    def blocked(self) -> list[str]:
        """Return the streams that are not to be tried now."""
        now = time.monotonic()
        return [stream for stream, until in self._until.items() if stream and until > now]

    def all_s(self) -> float:
        """Return the seconds for which nothing at all is to be tried."""
        return max(0.0, self._until.get("", 0.0) - time.monotonic())

    def next_s(self) -> float | None:
        """Return the seconds until the first stream may be tried again; None: none is blocked."""
        now = time.monotonic()
        left = [until - now for stream, until in self._until.items() if stream and until > now]
        return min(left, default=None)


class Sender:
    """Sends the items of a store, in rounds; `notify` gets what became of each."""

    def __init__(
        self,
        store: OutboxStore,
        batch: int,
        client: Client,
        notify: Callable[[Notice], None],
    ) -> None:
        self._store = store
        self._largest_batch = batch
        self._batch = batch
        self._client = client
        self._notify = notify
        self._pauses = Pauses()
        self.error: str | None = None  # why the service takes nothing at the moment

    def round(self) -> float | None:
        """Send the oldest items once. Returns seconds to wait; None: until something is added."""
        if wait_s := self._pauses.all_s():
            return wait_s
        batch = self._store.waiting(self._pauses.blocked(), self._batch, BATCH_BYTES)
        if not batch:
            return self._pauses.next_s()
        try:
            batch.sort(key=attrgetter("stream"))  # those of each stay in order
            batch = self._store.mark(list(self._placed(batch)))
            results = self._post(batch)
            self._batch = min(2 * self._batch, self._largest_batch)
            pairs = zip(batch, results, strict=True)
            for _, group in groupby(pairs, lambda pair: pair[0].stream):
                self._settle(list(group))
        except errors.ClientError as error:
            self._failed(batch, error)
        else:
            self._pauses.work("")
            self.error = None
        return 0.0

    def _call(self, call: Call[T]) -> T:
        return self._client.call(call, ONCE)

    def _post(self, batch: Sequence[OutboxItem]) -> list[Result]:
        items = []
        for item in batch:
            own = {"stream": item.stream, "key": self._store.key(item), "seq": item.seq}
            items.append(msgspec.json.decode(item.body) | own)
        return self._call(calls.observe_many(items, {}))

    def _placed(self, batch: Sequence[OutboxItem]) -> Iterator[OutboxItem]:
        """Give each item its position.

        One that gets another than before stands behind a refused one: it was never attempted.
        """
        for stream, items in groupby(batch, attrgetter("stream")):
            for seq, item in enumerate(items, self._position(stream)):
                yield item if item.seq == seq else item._replace(seq=seq, sent=0)

    def _position(self, stream: str) -> int:
        """Return the position of a stream's first item; the service is asked for it once."""
        position = self._store.position(stream)
        if position is None:
            try:
                position = self._call(calls.get(path_of(stream), StreamSummary)).seq
            except (errors.NotFound, errors.Invalid):
                position = 0  # its errors are reported when the stream is created
            self._store.set_position(stream, position)
        return position

    def _settle(self, group: Sequence[tuple[OutboxItem, Result]]) -> None:
        """Record the results of one stream's items; none is attempted after the first error."""
        done: list[OutboxItem] = []
        position = 0
        try:
            for item, result in group:
                if not isinstance(result, Answer):
                    break
                self._notify(Delivered(item.id, item.stream, result))
                done.append(item)
                position = result.seq + 1
        finally:
            self._store.applied(done, position)
        if done:
            self._pauses.work(group[0][0].stream)
        if len(done) < len(group):
            item, result = group[len(done)]
            assert isinstance(result, errors.Problem)
            self._refused(item, result)

    def _refused(self, item: OutboxItem, problem: errors.Problem) -> None:
        """Try the item again later, or set it aside, unless an earlier try got through."""
        if isinstance(problem, errors.SeqConflict):
            earlier = item.seq is not None and problem.seq > item.seq and item.sent > 1
            if not (earlier and self._deliver_recorded(item)):
                # Not applied: somebody else writes, too, or the stream began again.
                self._store.renew(item, problem.seq)
            return
        certain = isinstance(problem, errors.NumericalFault | errors.Quarantined)
        fault = isinstance(problem, errors.Fault) and not certain and item.sent < FAULT_TRIES
        if fault or isinstance(problem, errors.Temporary | errors.EarlierItemFailed):
            self._pauses.fail(item.stream, problem)
            return
        if item.sent > 1 and self._deliver_recorded(item):
            return
        self._set_aside(item, problem)

    def _deliver_recorded(self, item: OutboxItem) -> bool:
        """Deliver the history's record of an item, if an earlier try was applied."""
        answer = self._recorded(item)
        if answer is None:
            return False
        self._notify(Delivered(item.id, item.stream, answer))
        self._store.applied([item], answer.seq + 1)
        return True

    def _recorded(self, item: OutboxItem) -> Answer | None:
        """Return the history's record of an item; None when it was not applied."""
        assert item.seq is not None
        try:
            query = {"start": item.seq, "limit": 1}
            path = path_of(item.stream, "/history")
            page = self._call(calls.get(path, HistoryPage, query))
        except errors.NotFound:
            return None
        if page.seq <= item.seq:
            return None
        answer = Answer(item.stream, item.seq, page.model, duplicate=True)
        for record in page.observations:
            if record.seq == item.seq:
                if not _same(msgspec.json.decode(item.body), record):
                    return None
                answer.predictive = record.predictive
                answer.time = record.time
                answer.changed_probability = record.changed_probability
                answer.evidence = record.evidence
                answer.anomaly = record.anomaly
                answer.regime = record.regime
                return answer
        return answer  # no longer retained; the stream has no other writer

    def _failed(self, batch: Sequence[OutboxItem], error: errors.ClientError) -> None:
        """A request failed as a whole: smaller, later, or not at all."""
        problem = error.problem if isinstance(error, errors.Unavailable) else error
        if isinstance(problem, errors.Invalid) and batch:
            if len(batch) > 1:
                self._batch = max(1, len(batch) // 2)
            else:
                self._set_aside(batch[0], problem)
            return
        self.error = str(error)
        self._pauses.fail("", problem if isinstance(problem, errors.Problem) else None)

    def _set_aside(self, item: OutboxItem, problem: errors.Problem) -> None:
        self._notify(Failed(item.id, item.stream, msgspec.json.decode(item.body), problem))
        self._store.set_aside(item, problem)
        self._pauses.work(item.stream)


def _same(posted: dict[str, Any], record: Recorded) -> bool:
    """Whether a record is of this observation, by the fields that no one else can change."""
    return (
        _numbers(posted.get("y")) == _numbers(record.y)
        and (posted.get("x") or None) == (record.x or None)
        and posted.get("time") == record.time
    )


def _numbers(y: Any) -> list[float | None] | None:
    """A label as a list; None where it is missing, and so are all of its outputs."""
    numbers = list(y) if isinstance(y, list) else [y]
    return None if all(number is None for number in numbers) else numbers
