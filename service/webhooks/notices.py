"""What a delivery says of an event, and the bodies that receivers expect."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
from msgspec import to_builtins

from moca_client.responses import MESSAGES, Incident
from moca_client.tables import describe_evidence
from service.schema import rendering
from service.wire import tags
from service.wire.event_entries import Raised

MOST_LINES = 20  # changes of an incident that a text names
MAX_ID = 200  # characters of a stream's id in a line
ALERTS = {"change": "MocaChange", "anomaly": "MocaAnomaly"}
_encode = msgspec.json.Encoder().encode


class Failure(NamedTuple):
    """Why an attempt failed. final: it is in vain to try again. retry_after_s: as asked for."""

    reason: str
    final: bool = False
    retry_after_s: float | None = None


class Notice(NamedTuple):
    """One event for a receiver. `number` is the same in every attempt at it.

    link: its place in the console; empty where the console's address is not configured.
    """

    number: str
    raised: Raised
    link: str = ""

    @property
    def line(self) -> str:
        """The event in one line, such as `pump-7: mean fell by 1.9 sd, 1098 → 853`."""
        event = self.raised.event
        state = "" if event.state == "confirmed" else f"{event.state}: "
        return f"{self.raised.stream[:MAX_ID]}: {state}{event.sentence}"

    @property
    def details(self) -> str:
        """Where it began, and how rarely chance does the same."""
        event = rendering.event(self.raised.event)
        if event.kind == "anomaly":
            return f"anomaly {event.probability:.3g} at observation {event.start}"
        text = f"since observation {event.start}"
        if event.earliest is not None and event.earliest != event.latest:
            text += f" ({event.earliest} to {event.latest})"
        if event.start_time is not None:
            text += f", {event.start_time}"
        if event.evidence is not None:
            text += f"; by chance {describe_evidence(event.evidence)} observations"
        return text


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
    def details(self) -> str:
        """The changes, a line for each."""
        lines = [notice.line for notice in self.changes[:MOST_LINES]]
        more = len(self.changes) - len(lines)
        return "\n".join([*lines, f"and {more} more"] if more else lines)


def notice_of(number: str, raised: Raised, console_url: str) -> Notice:
    """Return the notice of an event."""
    place = rendering.console_link(raised.stream, raised.event.start)
    return Notice(number, raised, _link(console_url, place))


def incident_notice(
    letters: Mapping[str, Raised], incident: Incident, grew: bool, console_url: str
) -> IncidentNotice:
    """Return the notice of changes of an incident, by their numbers."""
    changes = [notice_of(number, raised, console_url) for number, raised in letters.items()]
    digest = blake2b("\0".join(sorted(letters)).encode(), digest_size=6).hexdigest()
    link = _link(console_url, rendering.incident_link(incident.id))
    return IncidentNotice(f"inc_{incident.id}_{digest}", incident, grew, changes, link)


def _link(console_url: str, place: str) -> str:
    return console_url.rstrip("/") + place if console_url else ""


def native_body(notice: Notice | IncidentNotice) -> bytes:
    """Return our own JSON."""
    if isinstance(notice, Notice):
        kind = f"{MESSAGES[notice.raised.event.kind]}.{notice.raised.event.state}"
        return _encode(
            {
                "type": kind,
                "timestamp": rendering.instant(notice.raised.at_ms),
                "data": _data(notice),
            }
        )
    data = to_builtins(notice.incident)
    data["changes"] = [_data(change) for change in notice.changes]
    data["link"] = notice.link or None
    newest_ms = max(change.raised.at_ms for change in notice.changes)
    kind = "incident.grew" if notice.grew else "incident.began"
    return _encode({"type": kind, "timestamp": rendering.instant(newest_ms), "data": data})


def _data(notice: Notice) -> dict[str, Any]:
    raised = notice.raised
    state = rendering.event_state(raised)
    return {
        "stream": state.stream,
        "model": state.model,
        "event": state.event,
        "time": state.time,
        "at": state.at,
        "summary": notice.line,
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
    annotations = {"summary": notice.line, "description": notice.details}
    alert: dict[str, Any] = {"labels": labels, "annotations": annotations}
    if notice.link:
        annotations["link"] = notice.link
        alert["generatorURL"] = notice.link
    if event.state == "withdrawn":
        alert["endsAt"] = rendering.instant(raised.at_ms)
    else:
        # Its end is counted from the delivery: an alert that is late has to fire all the same.
        alert["startsAt"] = rendering.instant(raised.at_ms)
        alert["endsAt"] = rendering.instant(max(now_ms, raised.at_ms) + round(1000 * resolve_s))
    return alert
