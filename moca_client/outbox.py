"""The outbox: observations are taken at once, and a thread sends them until they are applied, once.

What it holds is in SQLite: in memory, or in a file that outlives its process. An item's key and
position are on disk before it is sent, so that a restart after a crash sends exactly the same.
Additions survive the death of the process; marks of sending, and so all that was added before,
survive the loss of power too.

An item is sent with its key and for one position. While the service remembers the key, a repeat is
answered from memory. Later the position decides: an item can only ever be applied at its own. If
the stream is past it, then either this item is there, as the history shows, or it was never
applied.
"""

from __future__ import annotations

import json
import logging
import operator
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from moca_client import calls, errors
from moca_client.calls import Observed, Result, path_of
from moca_client.client import Client
from moca_client.errors import ClientError, InvalidRequest, Problem, problem_of
from moca_client.responses import Answer, HistoryPage, Recorded, StreamSummary
from moca_client.retry import Backoff, Call

log = logging.getLogger("moca_client.outbox")
RESERVED = ("stream", "key", "seq")
# Of an answer that the history has.
RECORDED = ("predictive", "time", "changed_probability", "evidence", "anomaly", "regime")
STOP_S = 0.5  # for which a closed outbox waits for a request under way
BATCH_BYTES = 1 << 20
FAULT_TRIES = 5  # of an item that the service fails at, before it is set aside
T = TypeVar("T")
FORMAT = "2"
LOCK_WAIT_S = 2.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS items (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again: keys are made of it
    stream TEXT NOT NULL,
    body BLOB NOT NULL,
    renewed INTEGER NOT NULL DEFAULT 0,    -- keys spent on refusals
    seq INTEGER,                           -- position it is sent for
    sent INTEGER NOT NULL DEFAULT 0,       -- times sent with this key and position
    problem TEXT                           -- why it was set aside
);
CREATE INDEX IF NOT EXISTS waiting ON items (id) WHERE problem IS NULL;
CREATE TABLE IF NOT EXISTS streams (stream TEXT PRIMARY KEY, next INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS box (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
_COLUMNS = "id, stream, body, renewed, seq, sent"


class OutboxError(ClientError):
    """The outbox cannot accept or store observations; the message has the reason."""


class OutboxFull(OutboxError):
    """As many observations wait, or were set aside, as the outbox may hold."""


class OutboxItem(NamedTuple):
    """One observation on its way."""

    id: int
    stream: str
    body: bytes
    renewed: int
    seq: int | None
    sent: int


class Failed(NamedTuple):
    """An item was refused and set aside."""

    ticket: int
    stream: str
    observation: dict[str, Any]
    problem: Problem


class OutboxStore:
    """Items in order, and the position that each stream's next item is meant for."""

    def __init__(self, path: str | Path | None, max_items: int) -> None:
        """Open or make the file; OutboxError when it is in use, or something else."""
        self._lock = threading.RLock()
        self._max = max_items
        self._path = path
        try:
            self._db = sqlite3.connect(
                ":memory:" if path is None else str(path),
                timeout=LOCK_WAIT_S,
                isolation_level=None,
                check_same_thread=False,
            )
        except sqlite3.Error as error:
            raise OutboxError(f"{path}: {error}") from error
        try:
            self._open()
        except (sqlite3.Error, OutboxError) as error:
            self._db.close()
            raise OutboxError(f"{path}: {_reason(error)}") from error

    def _open(self) -> None:
        # Held until the process ends, however it ends: two senders would not know of each other.
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.executescript("BEGIN EXCLUSIVE;" + _SCHEMA + "COMMIT;")
        values = (("id", secrets.token_hex(8)), ("format", FORMAT))
        self._db.executemany("INSERT OR IGNORE INTO box VALUES (?, ?)", values)
        stored = dict(self._db.execute("SELECT name, value FROM box"))
        if stored["format"] != FORMAT:
            raise OutboxError(f"format {stored['format']}, expected {FORMAT}")
        self.id = stored["id"]
        count = "SELECT count(*) - count(problem), count(problem) FROM items"
        self.waiting_count, self.aside_count = self._db.execute(count).fetchone()

    @contextmanager
    def _transaction(self, durable: bool = False) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield self._db
                except BaseException:
                    self._db.execute("ROLLBACK")
                    raise
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                raise OutboxError(f"{self._path or 'in memory'}: {_reason(error)}") from error

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def key(self, item: OutboxItem) -> str:
        """Return an item's idempotency key: the same after any restart."""
        return f"{self.id}-{item.id}" + (f".{item.renewed}" if item.renewed else "")

    def add(self, stream: str, body: bytes, source: tuple[str, int] | None = None) -> int:
        """Add an item at the end and return its id; OutboxFull when there is no room.

        source: name and offset of where it is from, which are kept with it, for good; 0: its offset
        was had before.
        """
        with self._lock:
            if source is not None:
                name = f"offset {source[0]}"
                row = self._db.execute("SELECT value FROM box WHERE name = ?", (name,)).fetchone()
                if row is not None and source[1] <= int(row[0]):
                    return 0
            if self.waiting_count + self.aside_count >= self._max:
                raise OutboxFull(
                    f"the outbox is full: {self.waiting_count} observations waiting, "
                    f"{self.aside_count} set aside; max_items is {self._max}"
                )
            with self._transaction(durable=source is not None) as db:
                insert = "INSERT INTO items (stream, body) VALUES (?, ?)"
                number = db.execute(insert, (stream, body)).lastrowid
                if source is not None:
                    db.execute("INSERT OR REPLACE INTO box VALUES (?, ?)", (name, str(source[1])))
            self.waiting_count += 1
        assert number is not None
        return number

    def waiting(self, blocked: Collection[str], limit: int, max_bytes: int) -> list[OutboxItem]:
        """Return the oldest items of streams that are not blocked."""
        items: list[OutboxItem] = []
        size = 0
        select = (
            f"SELECT {_COLUMNS} FROM items WHERE problem IS NULL"  # noqa: S608  # nosec B608  # a constant
            " AND stream NOT IN (SELECT value FROM json_each(?)) ORDER BY id LIMIT ?"
        )
        with self._lock:
            for row in self._db.execute(select, (json.dumps(list(blocked)), limit)):
                item = OutboxItem(*row)
                size += len(item.body)
                if items and size > max_bytes:
                    break
                items.append(item)
        return items

    def position(self, stream: str) -> int | None:
        """Return the position of a stream's first item that waits; None when it is not known."""
        with self._lock:
            select = "SELECT next FROM streams WHERE stream = ?"
            row = self._db.execute(select, (stream,)).fetchone()
        return None if row is None else int(row[0])

    def set_position(self, stream: str, position: int) -> None:
        """Say where a stream is."""
        with self._transaction() as db:
            _put(db, stream, position)

    def mark(self, items: Sequence[OutboxItem]) -> list[OutboxItem]:
        """Enter, for good, that these are about to be sent as they are."""
        marked = [item._replace(sent=item.sent + 1) for item in items]
        update = "UPDATE items SET seq = ?, sent = ? WHERE id = ?"
        with self._transaction(durable=True) as db:
            db.executemany(update, [(item.seq, item.sent, item.id) for item in marked])
        return marked

    def applied(self, items: Sequence[OutboxItem], position: int) -> None:
        """Forget items of one stream that were applied."""
        if not items:
            return
        with self._transaction() as db:
            db.executemany("DELETE FROM items WHERE id = ?", [(item.id,) for item in items])
            _put(db, items[0].stream, position)
            self.waiting_count -= len(items)

    def renew(self, item: OutboxItem, position: int) -> None:
        """Have an item that was certainly not applied sent for another position."""
        update = "UPDATE items SET renewed = renewed + 1, seq = NULL, sent = 0 WHERE id = ?"
        with self._transaction() as db:
            db.execute(update, (item.id,))
            _put(db, item.stream, position)

    def set_aside(self, item: OutboxItem, problem: Problem) -> None:
        """Keep an item, with its problem, out of the way of the others."""
        kept = {"status": problem.status, "document": problem.document}
        text = json.dumps({**kept, "request_id": problem.request_id})
        with self._transaction() as db:
            db.execute("UPDATE items SET problem = ? WHERE id = ?", (text, item.id))
            self.waiting_count -= 1
            self.aside_count += 1

    def aside(self) -> list[Failed]:
        """Return all items that were set aside, oldest first."""
        select = "SELECT id, stream, body, problem FROM items WHERE problem IS NOT NULL ORDER BY id"
        with self._lock:
            rows = self._db.execute(select).fetchall()
        failed = []
        for number, stream, body, text in rows:
            kept = json.loads(text)
            headers = {"x-request-id": kept["request_id"]}
            problem = problem_of(kept["status"], kept["document"], headers)
            failed.append(Failed(number, stream, json.loads(body), problem))
        return failed

    def remove(self, ids: Collection[int], again: bool = False) -> list[int]:
        """Forget items that were set aside; returns their ids.

        again: send them as new ones at the end, whose ids are returned. At their old places they
        would shift the positions of items that are under way.
        """
        select = (
            "SELECT id FROM items WHERE problem IS NOT NULL"
            " AND id IN (SELECT value FROM json_each(?)) ORDER BY id"
        )
        copy = "INSERT INTO items (stream, body) SELECT stream, body FROM items WHERE id = ?"
        with self._transaction() as db:
            there = [number for (number,) in db.execute(select, (json.dumps(list(ids)),))]
            made = there
            if again:
                made = [int(db.execute(copy, (number,)).lastrowid or 0) for number in there]
            db.executemany("DELETE FROM items WHERE id = ?", [(number,) for number in there])
            self.aside_count -= len(there)
            self.waiting_count += len(there) if again else 0
        return made


def _put(db: sqlite3.Connection, stream: str, position: int) -> None:
    db.execute("INSERT OR REPLACE INTO streams VALUES (?, ?)", (stream, position))


def _reason(error: Exception) -> str:
    if "locked" in str(error):
        return "in use by another outbox"
    return str(error)


# --- sending --------------------------------------------------------------------------------------


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

    def fail(self, stream: str, problem: Problem | None) -> None:
        """Wait longer than the last time before this stream is tried again."""
        backoff = self._backoff.setdefault(stream, Backoff())
        self._until[stream] = time.monotonic() + backoff.next_s(problem)

    def work(self, stream: str) -> None:
        """Begin with short pauses again."""
        self._backoff.pop(stream, None)
        self._until.pop(stream, None)

    def left(self) -> dict[str, float]:
        """Return the seconds for which streams, or all of them, are not to be tried."""
        now = time.monotonic()
        return {stream: until - now for stream, until in self._until.items() if until > now}


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
        paused = self._pauses.left()
        if "" in paused:
            return paused[""]
        batch = self._store.waiting(paused, self._batch, BATCH_BYTES)
        if not batch:
            return min(paused.values(), default=None)
        try:
            batch.sort(key=attrgetter("stream"))  # those of each stay in order
            batch = self._store.mark(list(self._placed(batch)))
            results = self._post(batch)
            self._batch = min(2 * self._batch, self._largest_batch)
            pairs = zip(batch, results, strict=True)
            for _, group in groupby(pairs, lambda pair: pair[0].stream):
                self._settle(list(group))
        except ClientError as error:
            self._failed(batch, error)
        else:
            self._pauses.work("")
            self.error = None
        return 0.0

    def _call(self, call: Call[T]) -> T:
        return self._client.call(call, retry_for_s=0.0)

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
            assert isinstance(result, Problem)
            self._refused(item, result)

    def _refused(self, item: OutboxItem, problem: Problem) -> None:
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
        assert item.seq is not None
        try:
            query = {"start": item.seq, "limit": 1}
            path = path_of(item.stream, "/history")
            page = self._call(calls.get(path, HistoryPage, query))
        except errors.NotFound:
            return False
        if page.seq <= item.seq:
            return False
        answer = Answer(item.stream, item.seq, page.model, duplicate=True)
        # Where it is no longer retained: the stream has no other writer.
        for record in page.observations:
            if record.seq == item.seq:
                if not _same(msgspec.json.decode(item.body), record):
                    return False
                for name in RECORDED:
                    setattr(answer, name, getattr(record, name))
        self._notify(Delivered(item.id, item.stream, answer))
        self._store.applied([item], answer.seq + 1)
        return True

    def _failed(self, batch: Sequence[OutboxItem], error: ClientError) -> None:
        """A request failed as a whole: smaller, later, or not at all."""
        problem = error.problem if isinstance(error, errors.Unavailable) else error
        if isinstance(problem, errors.Invalid) and batch:
            if len(batch) > 1:
                self._batch = max(1, len(batch) // 2)
            else:
                self._set_aside(batch[0], problem)
            return
        self.error = str(error)
        self._pauses.fail("", problem if isinstance(problem, Problem) else None)

    def _set_aside(self, item: OutboxItem, problem: Problem) -> None:
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


# --- the outbox -----------------------------------------------------------------------------------


class Outbox:
    """Takes observations at once, and sends them in the background, in order for each stream.

    No one else is to write to these streams, so that the position decides what was applied, however
    long ago it was sent. client: must stay open as long as the outbox. path: a file that keeps
    observations across restarts of this process; None: in memory. on_answer, on_failed: called at
    least once for each, in the sender's thread. max_items: observations that wait or were set
    aside. batch: in one request.
    """

    def __init__(
        self,
        client: Client,
        path: str | Path | None = None,
        *,
        on_answer: Callable[[Delivered], object] | None = None,
        on_failed: Callable[[Failed], object] | None = None,
        max_items: int = 100_000,
        batch: int = 256,
    ) -> None:
        """Open the outbox, and go on with what its file holds."""
        if min(max_items, batch) < 1:
            raise InvalidRequest(
                f"expected max_items >= 1 and batch >= 1; got {max_items} and {batch}"
            )
        self._in_memory = path is None
        self._store = OutboxStore(path, max_items)
        self._sender = Sender(self._store, batch, client, self._handle)
        self._on_answer = on_answer
        self._on_failed = on_failed
        self._wake = threading.Event()
        self._change = threading.Condition()
        self._closed = False  # takes nothing more; the thread ends when nothing waits
        self._stop = False  # the thread ends even so
        self._ended = False  # the thread has ended
        self._broken: Exception | None = None
        # In the context of its owner, for callbacks that look at it.
        run = copy_context().run
        self._thread = threading.Thread(
            target=run, args=(self._run,), name="moca-outbox", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        """Return the outbox itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Send what waits and close; OutboxError when some of it is lost."""
        self.close()
        if error is not None or not self.pending:
            return
        if self._in_memory:
            raise OutboxError(f"{self.pending} unsent observations are lost")
        log.warning("%d observations stay in the file until the next start", self.pending)

    def add(self, stream: str, observation: Observed) -> int:
        """Take an observation, to be sent soon; returns its ticket at once.

        With a file it is kept from now on, whatever happens to this process. Raises OutboxFull,
        and InvalidRequest for what can never be sent.
        """
        self._check_open()
        ticket = self._store.add(stream, _encoded(stream, observation))
        self._wake.set()
        return ticket

    def add_once(self, stream: str, observation: Observed, *, source: str, offset: int) -> bool:
        """Take an observation of a numbered source, such as a partition of a Kafka topic, once.

        Its offset reaches the file with it, and both the disk, before this returns: then the source
        may forget it. False: skipped, as the file has this offset of the source, or a later one.
        Raises what `add` raises, and InvalidRequest for another source than a text with
        characters, or another offset than a whole number of 64 bits; the offset counts as not
        taken then.
        """
        self._check_open()
        _check_text("source", source)
        body = _encoded(stream, observation)
        position = _whole(offset)
        added = self._store.add(stream, body, (source, position))
        if added:
            self._wake.set()
        return bool(added)

    @property
    def pending(self) -> int:
        """Return how many observations wait to be sent or answered."""
        count: int = self._store.waiting_count
        return count

    @property
    def error(self) -> str | None:
        """Return why the service takes nothing at the moment; None: nothing is wrong."""
        return str(self._broken) if self._broken is not None else self._sender.error

    def failed(self) -> list[Failed]:
        """Return what was refused and set aside, oldest first; it stays until it is dealt with."""
        self._check_open()
        return self._store.aside()

    def retry_failed(self, tickets: Collection[int]) -> list[int]:
        """Send what was set aside again, as new observations; returns their new tickets."""
        self._check_open()
        made = self._store.remove(tickets, again=True)
        self._wake.set()
        return made

    def discard_failed(self, tickets: Collection[int]) -> int:
        """Forget what was set aside; returns how many were."""
        self._check_open()
        return len(self._store.remove(tickets))

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until nothing waits any more; False when it took too long."""
        self._check_open()
        with self._change:
            self._change.wait_for(lambda: not self.pending or self._ended, timeout_s)
        self._check_open()
        return not self.pending

    def close(self, timeout_s: float = 30.0) -> int:
        """Send what waits for at most `timeout_s`, and stop; returns how many are left."""
        self._closed = True
        self._wake.set()
        self._thread.join(timeout_s)
        self._stop = True
        self._wake.set()
        self._thread.join(STOP_S)  # a request under way ends by itself; its items stay
        return self.pending

    def _check_open(self) -> None:
        if self._broken is not None:
            raise OutboxError(f"the outbox stopped sending: {self._broken}") from self._broken
        if self._closed:
            raise OutboxError("the outbox is closed")

    # --- the sender's thread -----------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stop:
                wait_s = self._sender.round()
                self._changed()
                if self._closed and not self.pending:
                    break
                if wait_s != 0:
                    self._wake.wait(wait_s)
                self._wake.clear()
        except Exception as error:
            log.exception("the outbox stopped")
            self._broken = error
        finally:
            try:
                self._store.close()
            finally:  # whatever that raises: its owner waits for this
                self._ended = True
                self._changed()

    def _changed(self) -> None:
        with self._change:
            self._change.notify_all()

    def _handle(self, notice: Notice) -> None:
        """Note what became of an observation, and call the owner back."""
        try:
            if isinstance(notice, Delivered):
                if self._on_answer is not None:
                    self._on_answer(notice)
            else:
                log.warning("set aside an observation of %s: %s", notice.stream, notice.problem)
                if self._on_failed is not None:
                    self._on_failed(notice)
        except Exception:  # it holds up nothing
            log.exception("a callback of the outbox failed")


def _encoded(stream: str, observation: Observed) -> bytes:
    _check_text("stream", stream)
    path_of(stream)  # what can never be sent would block all that follows
    body = calls.observation(observation)
    if taken := [name for name in RESERVED if name in body]:
        raise InvalidRequest(f"{taken[0]}: not allowed in an observation; the outbox sets its own")
    return calls.encode(body)


def _check_text(name: str, value: Any) -> None:
    """Refuse what no file or request can hold, before it is in the way of all others."""
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{name}: expected a str that is not empty, got {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name}: expected a str without surrogates, got {value!r}") from None


def _whole(offset: Any) -> int:
    try:
        value = operator.index(offset)
    except TypeError:
        raise InvalidRequest(f"offset: expected an int, got {offset!r}") from None
    if not -(2**63) <= value < 2**63:
        raise InvalidRequest(f"offset: expected an int of 64 bits, got one of {value.bit_length()}")
    return value
