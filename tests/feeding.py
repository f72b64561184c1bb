"""A writer of feeds, as workers write them, and consumers of what has no end over real HTTP."""

from __future__ import annotations

import contextlib
import json

import httpx

from service.store import keys
from service.store.connection import connect
from service.store.log import DONE, Commit, Log, Offset
from service.wire import Event, event_entries
from tests.waiting import PATIENCE_S

MS = 1_700_000_000_000


class Writer:
    """Owns every partition, and commits events by the script that workers use."""

    def __init__(self, url, partitions, most=10_000):
        self._client, self.partitions, self._most = connect(url), partitions, most
        self._log = Log(self._client, "writer", 600_000, partitions)
        self._leases = {p: self._log.acquire(p) for p in range(partitions)}
        self._offsets = {p: lease.offset for p, lease in self._leases.items()}
        self.ms, self.clock = MS, lambda: 0
        self.written = []  # (stream, event id, state)

    def raise_(
        self,
        stream,
        id_,
        state="confirmed",
        model="gaussian",
        pad=None,
        kind="change",
        time="2024-05-01T12:00:00Z",
        tags=None,
        generation=1,
        **more,
    ):
        """Commit one event state of a stream."""
        self.ms = max(self.ms + 1, self.clock())
        p = keys.partition_of(stream, self.partitions)
        event = Event(id_, state, 10 * id_, 10 * id_ + 3, size=pad, kind=kind, **more)
        raised = event_entries.Raised(stream, model, generation, event, time, self.ms, tags or {})
        entry = f"{self.ms}-0"
        blob = event_entries.encode(raised, event_entries.number_of(p, f"{self.ms}-0"))
        effect = ("FEED", keys.feed(p), self._most, f"{self.ms}-0", blob)
        new, lease = Offset(entry, DONE), self._leases[p]
        commit = Commit(p, lease.token, self._offsets[p], new, 0, [effect])
        assert self._log.commit([commit]) == ["OK"]
        self._offsets[p] = new
        self.written.append((stream, id_, state))

    def close(self):
        self._client.close()


class Message:
    """One block of a stream of events; `event` is empty for one that only has an id."""

    def __init__(self, lines):
        fields = [line.partition(":") for line in lines]
        values = {name: value.removeprefix(" ") for name, _, value in fields if name}
        self.id, self.event = values.get("id"), values.get("event", "")
        self.data = json.loads(values["data"]) if "data" in values else None
        self.comment = any(not name for name, _, _ in fields)

    @property
    def key(self):
        return self.data["stream"], self.data["event"]["id"], self.data["event"]["state"]


class Consumer:
    """Reads messages, remembers the last id, and connects again with it."""

    path = "/v1/events"

    def __init__(self, url, **query):
        self.url, self.query = url, query
        self.last, self.seen, self.gaps = None, [], []

    @contextlib.contextmanager
    def connected(self, timeout=PATIENCE_S):
        """Open a connection; yields its messages as they come."""
        headers = {} if self.last is None else {"Last-Event-ID": self.last}
        stream = httpx.stream(
            "GET", f"{self.url}{self.path}", params=self.query, headers=headers, timeout=timeout
        )
        with stream as response:
            if response.status_code != 200:
                response.read()
            response.raise_for_status()
            assert response.headers["content-type"].startswith("text/event-stream")
            yield self._messages(response)

    def _messages(self, response):
        block = []
        for line in response.iter_lines():
            if line:
                block.append(line)
            elif block:
                message, block = Message(block), []
                self.last = message.id or self.last
                self._take(message)
                yield message

    def _take(self, message):
        if message.event in ("changepoint", "anomaly"):
            self.seen.append(message.key)
        elif message.event == "gap":
            self.gaps.append(message.data)

    def read(self, count, timeout=PATIENCE_S):
        """Connect, and leave after so many events."""
        first = len(self.seen)
        with self.connected(timeout) as messages:
            while len(self.seen) - first < count:
                next(messages)


class Follower(Consumer):
    """The same of a stream's observations; what it has seen is their `seq` and label."""

    def __init__(self, url, stream, **query):
        super().__init__(url, **query)
        self.path = f"/v1/streams/{stream}/observations/live"
        self.states, self.ends, self.data = [], [], []

    def _take(self, message):
        if message.event == "observation":
            self.seen.append((message.data["seq"], message.data["y"]))
            self.data.append(message.data)
        elif message.event == "gap":
            self.gaps.append((message.data["start"], message.data["end"]))
        elif message.event == "state":
            self.states.append(message.data)
        elif message.event == "end":
            self.ends.append(message.data["reason"])


def by_stream(seen):
    """Events of each stream, in the order they came."""
    events = {}
    for stream, *event in seen:
        events.setdefault(stream, []).append(tuple(event))
    return events
