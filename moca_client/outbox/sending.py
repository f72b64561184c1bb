"""How an outbox sends: for each item it finds out whether it was applied, whatever is lost.

An item is sent with its key and, by an outbox that is the only writer of its streams, for one
position. While the service remembers the key, a repeat is answered from memory. Later the position
decides: an item can only ever be applied at its own. If the stream is past it, then either this
item is there, as the history shows, or it was never applied.

Without positions an item whose outcome is unknown for longer than keys are remembered is set
aside, never sent again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import msgspec

from moca_client import calls, errors
from moca_client.calls import Result, path_of
from moca_client.outbox.store import Failed, OutboxItem, OutboxStore
from moca_client.responses import Answer, HistoryPage, Recorded, StreamSummary
from moca_client.retry import KEY_MEMORY_S, ONCE, Backoff, Call
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
        exclusive: bool,
        client: Client,
        notify: Callable[[Notice], None],
    ) -> None:
        self._store = store
        self._exclusive = exclusive
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
            self._find_positions(batch)
            batch = self._without_lapsed(batch)
            if not batch:
                return 0.0
            batch = self._store.mark([item for g in _by_stream(batch) for item in self._placed(g)])
            results = self._post(batch)
            self._batch = min(2 * self._batch, self._largest_batch)
            for group in _by_stream(list(zip(batch, results, strict=True))):
                self._settle(group)
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
            body = {**msgspec.json.decode(item.body), "stream": item.stream}
            body["key"] = self._store.key(item)
            items.append(body if item.seq is None else {**body, "seq": item.seq})
        return self._call(calls.observe_many(items, {}))

    def _find_positions(self, batch: Sequence[OutboxItem]) -> None:
        for stream in dict.fromkeys(item.stream for item in batch):
            if self._exclusive and self._store.position(stream) is None:
                try:
                    position = self._call(calls.get(path_of(stream), StreamSummary)).seq
                except (
                    errors.NotFound,
                    errors.Invalid,
                ):  # its errors are reported when the stream is created
                    position = 0
                self._store.set_position(stream, position)

    def _without_lapsed(self, batch: list[OutboxItem]) -> list[OutboxItem]:
        """Set aside items that may have been applied, once their keys are forgotten."""
        if self._exclusive:
            return batch
        kept = []
        now = time.time()
        for item in batch:
            # A clock that was set back proves nothing.
            if item.sent == 0 or 0 <= now - (item.first_sent or now) <= KEY_MEMORY_S:
                kept.append(item)
                continue
            detail = (
                f"sent more than {KEY_MEMORY_S:g} s ago without an answer; may have been applied"
            )
            self._set_aside(item, errors.outcome_unknown(detail))
        return kept

    def _placed(self, items: Sequence[OutboxItem]) -> Iterator[OutboxItem]:
        """Give each of a stream's items its position.

        One that gets another than before stands behind a refused one: it was never attempted.
        """
        if not self._exclusive:
            yield from items
            return
        first = self._store.position(items[0].stream) or 0
        for seq, item in enumerate(items, first):
            if item.seq == seq:
                yield item
            else:
                yield item._replace(seq=seq, sent=0, first_sent=None)

    def _settle(self, group: Sequence[tuple[OutboxItem, Result]]) -> None:
        """Record the results of one stream's items; none is attempted after the first error."""
        done: list[OutboxItem] = []
        position = None
        try:
            for item, result in group:
                if not isinstance(result, Answer):
                    break
                self._notify(Delivered(item.id, item.stream, result))
                done.append(item)
                position = result.seq + 1 if self._exclusive else None
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
        if isinstance(problem, errors.SeqConflict) and item.seq is not None:
            earlier = problem.seq > item.seq and item.sent > 1
            if not (earlier and self._deliver_recorded(item)):
                # Not applied: somebody else writes, too, or the stream began again.
                self._store.renew(item, problem.seq)
            return
        certain = isinstance(problem, errors.NumericalFault | errors.Quarantined)
        fault = isinstance(problem, errors.Fault) and not certain and item.sent < FAULT_TRIES
        if fault or isinstance(problem, errors.Temporary | errors.EarlierItemFailed):
            self._pauses.fail(item.stream, problem)
            return
        if item.sent > 1 and item.seq is not None and self._deliver_recorded(item):
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


def _by_stream(items: Sequence[Any]) -> list[list[Any]]:
    """Group items, or pairs that begin with one, by their streams; each group stays in order."""

    def stream_of(entry: Any) -> str:
        item = entry if isinstance(entry, OutboxItem) else entry[0]
        return str(item.stream)

    return [list(group) for _, group in groupby(sorted(items, key=stream_of), key=stream_of)]


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
