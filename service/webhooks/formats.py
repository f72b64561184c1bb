"""Bodies of deliveries: events as their receivers expect them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from moca_client.responses import MESSAGES
from service.schema.rendering import console_link, event_state, instant, largest
from service.wire import tags
from service.wire.event_entries import Raised

if TYPE_CHECKING:
    from service.webhooks.config import Hook

Format = Literal["native", "alertmanager", "slack", "pagerduty", "template"]
GROUPED = ("alertmanager", "slack", "template")  # formats with room for several events
STATEFUL = ("alertmanager", "pagerduty")  # whose receivers have alarms that end
SHOWN = 10  # events of a group that a message of people has
MAX_KEY, MAX_SUMMARY = 255, 1024  # characters that PagerDuty takes
MAX_ID = 200  # characters of a stream's id in a line
ALERTS = {"change": "MocaChange", "anomaly": "MocaAnomaly"}
FIELDS = (
    *("number", "type", "stream", "model", "generation", "id", "kind", "state", "start"),
    *("suspected_at", "confirmed_at", "probability", "direction", "size", "time", "at"),
    *("link", "summary", "tags"),
)
NAMES = frozenset((*FIELDS, "count", "events"))  # that templates know
_encode = msgspec.json.Encoder().encode


def body_of(hook: Hook, events: Sequence[tuple[str, Raised]], now_ms: int) -> bytes:
    """Return the body of a delivery of one event, or of a group in the order they are delivered.

    events: each with its number, see `service.wire.event_entries.number_of`.
    """
    every = [raised for _, raised in events]
    match hook.format:
        case "alertmanager":
            return _encode([_alert(hook, each, now_ms) for each in every])
        case "slack":
            return _encode(_slack(hook, every))
        case "pagerduty":
            ((number, raised),) = events
            return _encode(_pagerduty(hook, number, raised))
        case "template":
            assert hook.template is not None
            return hook.template.filled(_group(hook, events))
        case _:
            return _encode(_native(*every))


def _native(raised: Raised) -> dict[str, Any]:
    return {"type": _type(raised), "timestamp": instant(raised.at_ms), "data": event_state(raised)}


def _alert(hook: Hook, raised: Raised, now_ms: int) -> dict[str, Any]:
    """One alert: it fires for `resolve_s`, or until its change is withdrawn.

    The labels are an alert's identity, so they are the same in each state of an event.
    """
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
    annotations = {"summary": summary(raised), "probability": f"{event.probability:.4g}"}
    if event.direction is not None:
        annotations["direction"] = event.direction
    if event.size is not None:
        annotations["size"] = _encode(event.size).decode()
    alert: dict[str, Any] = {"labels": labels, "annotations": annotations}
    if link := _link(hook, raised):
        annotations["link"] = alert["generatorURL"] = link
    if event.state == "withdrawn":
        alert["endsAt"] = instant(raised.at_ms)
    else:
        # Its end is counted from the delivery: an alert that is late has to fire all the same.
        alert["startsAt"] = instant(raised.at_ms)
        alert["endsAt"] = instant(max(now_ms, raised.at_ms) + round(1000 * hook.resolve_s))
    return alert


def _slack(hook: Hook, events: Sequence[Raised]) -> dict[str, Any]:
    lines = [_line(hook, each) for each in events[:SHOWN]]
    blocks = [_section(line) for line in lines]
    if len(events) == 1:
        return {"text": _escaped(summary(events[0])), "blocks": blocks}
    text = f"{len(events)} events"
    more = len(events) - len(lines)
    if more:
        blocks.append(_section(f"and {more} more"))
    return {"text": text, "blocks": [_section(f"*{text}*"), *blocks]}


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text}}


def _line(hook: Hook, raised: Raised) -> str:
    line = _escaped(summary(raised))
    link = _link(hook, raised)
    return f"{line} <{_escaped(link)}|console>" if link else line


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def alarm_of(raised: Raised) -> str:
    """Name of the alarm that an event's states open and end."""
    return f"{raised.stream}/{raised.generation}/{raised.event.kind}/{raised.event.id}"


def _pagerduty(hook: Hook, number: str, raised: Raised) -> dict[str, Any]:
    event, key = raised.event, alarm_of(raised)
    if len(key) > MAX_KEY:
        key = hashlib.sha256(key.encode()).hexdigest()
    message: dict[str, Any] = {
        "routing_key": hook.secret.decode(),
        "event_action": "resolve" if event.state == "withdrawn" else "trigger",
        "dedup_key": key,
        "payload": {
            "summary": summary(raised)[:MAX_SUMMARY],
            "source": raised.stream,
            "severity": hook.severity,
            "timestamp": instant(raised.at_ms),
            "component": raised.model,
            "class": event.kind,
            "custom_details": _fields(hook, number, raised),
        },
    }
    if link := _link(hook, raised):
        message["links"] = [{"href": link, "text": "console"}]
    return message


def _group(hook: Hook, events: Sequence[tuple[str, Raised]]) -> dict[str, Any]:
    """Fields of a template: those of the first event, and of a group the first ten."""
    shown = [_fields(hook, number, each) for number, each in events[:SHOWN]]
    text = shown[0]["summary"]
    if len(events) > 1:
        text = f"{len(events)} events: {text}, ..."
    return {**shown[0], "summary": text, "count": len(events), "events": shown}


def _fields(hook: Hook, number: str, raised: Raised) -> dict[str, Any]:
    event = raised.event
    return {
        "number": number,
        "type": _type(raised),
        "stream": raised.stream,
        "model": raised.model,
        "generation": raised.generation,
        "id": event.id,
        "kind": event.kind,
        "state": event.state,
        "start": event.start,
        "suspected_at": event.suspected_at,
        "confirmed_at": event.confirmed_at,
        "probability": event.probability,
        "direction": event.direction,
        "size": event.size,
        "time": raised.time,
        "at": instant(raised.at_ms),
        "link": _link(hook, raised),
        "summary": summary(raised),
        "tags": raised.tags,
    }


def _type(raised: Raised) -> str:
    return f"{MESSAGES[raised.event.kind]}.{raised.event.state}"


def _link(hook: Hook, raised: Raised) -> str:
    """Return the address of the stream at the event, empty where the console's is not known."""
    if not hook.console_url:
        return ""
    return hook.console_url.rstrip("/") + console_link(raised.stream, raised.event.start)


def summary(raised: Raised) -> str:
    """Return an event in one line, such as `Change confirmed: pump-7 down by 3.96 sd`."""
    event, size = raised.event, largest(raised.event.size)
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
