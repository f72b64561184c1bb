"""What an outbox holds, in SQLite: in memory, or in a file that outlives its process.

An item's key and position are on disk before it is sent, so that a restart after a crash
sends exactly the same. Additions survive the death of the process; marks of sending, and so all
that was added before, survive the loss of power too.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from moca_client.errors import ClientError, Problem, problem_of

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

    def add(self, stream: str, body: bytes) -> int:
        """Add an item at the end; OutboxFull when there is no room."""
        with self._lock:
            self._check_room()
            with self._transaction() as db:
                insert = "INSERT INTO items (stream, body) VALUES (?, ?)"
                number = db.execute(insert, (stream, body)).lastrowid
            self.waiting_count += 1
        assert number is not None
        return number

    def add_once(self, stream: str, body: bytes, source: str, offset: int) -> bool:
        """Add an item, and with it the offset of its source, for good; False: it was had before."""
        name = f"offset {source}"
        with self._lock:
            row = self._db.execute("SELECT value FROM box WHERE name = ?", (name,)).fetchone()
            if row is not None and offset <= int(row[0]):
                return False
            self._check_room()
            with self._transaction(durable=True) as db:
                db.execute("INSERT INTO items (stream, body) VALUES (?, ?)", (stream, body))
                db.execute("INSERT OR REPLACE INTO box VALUES (?, ?)", (name, str(offset)))
            self.waiting_count += 1
        return True

    def _check_room(self) -> None:
        held = self.waiting_count + self.aside_count
        if held >= self._max:
            raise OutboxFull(
                f"the outbox is full: {self.waiting_count} observations waiting, "
                f"{self.aside_count} set aside; max_items is {self._max}"
            )

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

    def put_back(self, ids: Collection[int]) -> list[int]:
        """Have items that were set aside sent again, as new ones at the end; returns their ids.

        At their old places they would shift the positions of items that are under way.
        """
        copy = "INSERT INTO items (stream, body) SELECT stream, body FROM items WHERE id = ?"
        with self._transaction() as db:
            there = _present(db, ids)
            made = [int(db.execute(copy, (number,)).lastrowid or 0) for number in there]
            db.executemany("DELETE FROM items WHERE id = ?", [(number,) for number in there])
            self.waiting_count += len(there)
            self.aside_count -= len(there)
        return made

    def discard(self, ids: Collection[int]) -> int:
        """Forget items that were set aside; returns how many."""
        with self._transaction() as db:
            there = _present(db, ids)
            db.executemany("DELETE FROM items WHERE id = ?", [(number,) for number in there])
            self.aside_count -= len(there)
        return len(there)


def _put(db: sqlite3.Connection, stream: str, position: int) -> None:
    db.execute("INSERT OR REPLACE INTO streams VALUES (?, ?)", (stream, position))


def _present(db: sqlite3.Connection, ids: Collection[int]) -> list[int]:
    select = (
        "SELECT id FROM items WHERE problem IS NOT NULL"
        " AND id IN (SELECT value FROM json_each(?)) ORDER BY id"
    )
    return [number for (number,) in db.execute(select, (json.dumps(list(ids)),))]


def _reason(error: Exception) -> str:
    if "locked" in str(error):
        return "in use by another outbox"
    return str(error)
