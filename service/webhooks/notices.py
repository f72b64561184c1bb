"""What a delivery says of an event, and the bodies that receivers expect."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
from msgspec import to_builtins

from moca_client.responses import MESSAGES, Incident, RegimeStatistics
from model_core.explanation import AFTER, BEFORE
from service.schema.rendering import console_link, event_state, incident_link, instant, largest
from service.schema.sides import Sides, sides_of
from service.store import keys, reads
from service.store.reads import AsyncStore, ChangePlace
from service.store.shards import AsyncStoreClient
from service.store.streams import UnreadablePart
from service.wire import tags
from service.wire.event_entries import Raised

MOST_LINES = 20  # changes of an incident that a text names
MAX_ID = 200  # characters of a stream's id in a line
ALERTS = {"change": "MocaChange", "anomaly": "MocaAnomaly"}
_encode = msgspec.json.Encoder().encode


class Notice(NamedTuple):
    """One event for a receiver. `number` is the same in every attempt at it.

    line: the event in short. explanation: what changed, in words, if that is clear. link: its place
    in the console; empty where the console's address is not configured.
    """

    number: str
    raised: Raised
    line: str
    explanation: str
    before: RegimeStatistics | None
    after: RegimeStatistics | None
    link: str

    @property
    def summary(self) -> str:
        """The event and its explanation."""
        return ": ".join(filter(None, (self.line, self.explanation)))


class IncidentNotice(NamedTuple):
    """Changes of one incident for a receiver.

    grew: whether others of it came before. changes: those that were not delivered yet.
    """

    number: str
    incident: Incident
    grew: bool
    changes: list[Notice]
    link: str

    @property
    def line(self) -> str:
        """The headline, and how many of its changes are new."""
        joined = f", {len(self.changes)} of them now" if self.grew else ""
        return f"Incident: {self.incident.headline}{joined}"

    @property
    def explanation(self) -> str:
        """The changes, a line for each."""
        lines = [notice.summary for notice in self.changes[:MOST_LINES]]
        more = len(self.changes) - len(lines)
        return "\n".join([*lines, f"and {more} more"] if more else lines)


class Notices:
    """Makes notices, with what the store has on both sides of a change."""

    def __init__(self, client: AsyncStoreClient, partitions: int, console_url: str) -> None:
        self._store = AsyncStore(client, partitions)
        self._partitions = partitions
        self._console_url = console_url.rstrip("/")

    async def of(self, number: str, raised: Raised) -> Notice:
        """Return the notice of an event; raises RedisError."""
        sides = await self._sides(raised)
        explanation = "" if sides.explanation is None else sides.explanation.text
        link = ""
        if self._console_url:
            link = self._console_url + console_link(raised.stream, raised.event.start)
        line = line_of(raised)
        return Notice(number, raised, line, explanation, sides.before, sides.after, link)

    async def of_incident(
        self, letters: Mapping[str, Raised], incident: Incident, grew: bool
    ) -> IncidentNotice:
        """Return the notice of changes of an incident, by their numbers; raises RedisError."""
        changes = [await self.of(number, raised) for number, raised in letters.items()]
        digest = blake2b("\0".join(sorted(letters)).encode(), digest_size=6).hexdigest()
        link = ""
        if self._console_url:
            link = self._console_url + incident_link(incident.id)
        return IncidentNotice(f"inc_{incident.id}_{digest}", incident, grew, changes, link)

    async def _sides(self, raised: Raised) -> Sides:
        """Return what the history has on a change; nothing of a stream that is there no more."""
        event = raised.event
        if event.kind != "change" or event.state == "withdrawn":
            return Sides()
        partition = keys.partition_of(raised.stream, self._partitions)
        try:
            head = await self._store.head(partition, raised.stream)
            if head is None or head.generation != raised.generation:
                return Sides()
            place = ChangePlace(partition, raised.stream, head, event.start, None, None)
            (stored,) = await self._store.around([place], BEFORE, AFTER)
            around = reads.decode_around(place, stored, BEFORE, AFTER)
        except UnreadablePart:
            return Sides()
        return sides_of(head, around.before, around.after, around.first)


def line_of(raised: Raised) -> str:
    """Return an event in one line, such as `Change confirmed: pump-7 down by 3.96 sd`."""
    event = raised.event
    size = largest(event.size)
    what = "Anomaly" if event.kind == "anomaly" else f"Change {event.state}"
    text = f"{what}: {raised.stream[:MAX_ID]}"
    if event.direction is not None:
        text += f" {event.direction}"
    if size is not None:
        text += f" by {size:.3g} sd"
    if event.state == "withdrawn":
        return text
    name = "anomaly" if event.kind == "anomaly" else "probability"
    return f"{text}, {name} {event.probability:.3g}"


def native_body(notice: Notice | IncidentNotice) -> bytes:
    """Return our own JSON."""
    if isinstance(notice, Notice):
        kind = f"{MESSAGES[notice.raised.event.kind]}.{notice.raised.event.state}"
        return _encode(
            {"type": kind, "timestamp": instant(notice.raised.at_ms), "data": _data(notice)}
        )
    data = to_builtins(notice.incident)
    data["changes"] = [_data(change) for change in notice.changes]
    data["link"] = notice.link or None
    newest_ms = max(change.raised.at_ms for change in notice.changes)
    kind = "incident.grew" if notice.grew else "incident.began"
    return _encode({"type": kind, "timestamp": instant(newest_ms), "data": data})


def _data(notice: Notice) -> dict[str, Any]:
    raised = notice.raised
    state = event_state(raised)
    return {
        "stream": state.stream,
        "model": state.model,
        "event": state.event,
        "time": state.time,
        "at": state.at,
        "summary": notice.summary,
        "before": notice.before,
        "after": notice.after,
        "link": notice.link or None,
    }


def alert_body(notice: Notice | IncidentNotice, now_ms: int, resolve_s: float) -> bytes:
    """Return alerts of Alertmanager, one of each change; those of an incident name it."""
    if isinstance(notice, Notice):
        return _encode([_alert(notice, now_ms, resolve_s)])
    alerts = [_alert(change, now_ms, resolve_s) for change in notice.changes]
    for alert in alerts:
        alert["annotations"]["incident"] = notice.incident.headline
    return _encode(alerts)


def _alert(notice: Notice, now_ms: int, resolve_s: float) -> dict[str, Any]:
    """Return one alert: it fires for `resolve_s`, or until it is withdrawn.

    The labels are an alert's identity, so they are the same in each state of an event.
    """
    raised = notice.raised
    event = raised.event
    labels = {
        "alertname": ALERTS[event.kind],
        "stream": raised.stream,
        "model": raised.model,
        "generation": str(raised.generation),
        "event": str(event.id),
    }
    for name, value in sorted(raised.tags.items()):
        name = "metric" if name == tags.METRIC else name
        if name in labels:
            name = tags.exported(name, {*labels, *raised.tags})
        labels[name] = value
    annotations = {"summary": notice.summary, "probability": f"{event.probability:.4g}"}
    if event.direction is not None:
        annotations["direction"] = event.direction
    if event.size is not None:
        annotations["size"] = _encode(event.size).decode()
    alert: dict[str, Any] = {"labels": labels, "annotations": annotations}
    if notice.link:
        annotations["link"] = notice.link
        alert["generatorURL"] = notice.link
    if event.state == "withdrawn":
        alert["endsAt"] = instant(raised.at_ms)
    else:
        # Its end is counted from the delivery: an alert that is late has to fire all the same.
        alert["startsAt"] = instant(raised.at_ms)
        alert["endsAt"] = instant(max(now_ms, raised.at_ms) + round(1000 * resolve_s))
    return alert
