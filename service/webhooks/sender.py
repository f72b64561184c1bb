"""What a delivery says, and attempts at it: bounded in time, to addresses that may be called.

By HTTP, without redirects, or by Apprise to chats, pagers and e-mail. Apprise opens its connections
itself, some of them not by HTTP. So its addresses are checked where they are connected to: by an
audit hook of the interpreter, in the threads that notify.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import httpx
import msgspec
from msgspec import to_builtins
from msgspec.structs import asdict

from moca_client.errors import retry_after_s
from moca_client.responses import MESSAGES, Incident
from moca_client.tables import describe_evidence
from service.schema import rendering
from service.webhooks.allowlist import Allowed, NotAllowed
from service.wire import tags
from service.wire.event_entries import Filter, Raised

MOST_READ = 65_536  # bytes of an answer; it is read so that the connection can be used again
THREADS = 2  # of each sender, which look up names or notify
TRY_AGAIN = (408, 425, 429)  # refusals that pass
WITH_RETRY_AFTER = (429, 503)
MOST_LINES = 20  # changes of an incident that a text names
MAX_ID = 200  # characters of a stream's id in a line
ALERTS = {"change": "MocaChange", "anomaly": "MocaAnomaly"}
Format = Literal["native", "alertmanager", "apprise"]
_encode = msgspec.json.Encoder().encode


class Hook(NamedTuple):
    """One webhook, ready for use."""

    name: str
    url: str
    secret: bytes  # empty: deliveries are not signed
    wanted: Filter
    format: Format = "native"
    resolve_s: float = 3600.0  # after which an alert of Alertmanager ends by itself
    console_url: str = ""
    authorization: str = ""  # header of this name, as secret as the secret; empty: none

    def __repr__(self) -> str:
        """Name it without its secret, which is in no log and no traceback."""
        return f"Hook({self.name!r})"

    def wants(self, raised: Raised) -> bool:
        """Whether an event is for this hook.

        A better estimate of a start is no news. Alertmanager gets no end of a change that it was
        never told of.
        """
        event = raised.event
        idle = (
            self.format == "alertmanager"
            and event.state == "withdrawn"
            and event.confirmed_at is None
            and "suspected" not in self.wanted.states
        )
        return event.news and not idle and self.wanted.lets(raised)


# --- notices --------------------------------------------------------------------------------------


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
        at = rendering.instant(notice.raised.at_ms)
        return _encode({"type": kind, "timestamp": at, "data": _data(notice)})
    data = to_builtins(notice.incident)
    data["changes"] = [_data(change) for change in notice.changes]
    data["link"] = notice.link or None
    newest_ms = max(change.raised.at_ms for change in notice.changes)
    kind = "incident.grew" if notice.grew else "incident.began"
    return _encode({"type": kind, "timestamp": rendering.instant(newest_ms), "data": data})


def _data(notice: Notice) -> dict[str, Any]:
    data = asdict(rendering.event_state(notice.raised))
    del data["cursor"]
    return data | {"summary": notice.line, "link": notice.link or None}


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


# --- attempts -------------------------------------------------------------------------------------


class Sender(ABC):
    """Delivers to one receiver, with threads of its own."""

    errors: tuple[type[Exception], ...]  # of a call that failed

    def __init__(self, allowed: Allowed, timeout_s: float) -> None:
        self._allowed = allowed
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="webhook")

    async def close(self) -> None:
        """Let go of connections and threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def attempt(self, notice: Notice | IncidentNotice) -> Failure | None:
        """Deliver once; returns why it failed, None when the receiver accepted it."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._send(notice)
        except TimeoutError:
            return Failure(f"no answer within {self._timeout_s:g} s")
        except NotAllowed as error:
            return Failure(str(error))
        except self.errors as error:
            # Not the text of every error: it may hold the address, and that a token.
            return Failure(f"the call failed: {type(error).__name__}")

    @abstractmethod
    async def _send(self, notice: Notice | IncidentNotice) -> Failure | None:
        """Deliver once; may raise one of `errors`, NotAllowed and TimeoutError."""


class HttpSender(Sender):
    """Posts for one hook."""

    # InvalidURL is of a redirect's address: httpx looks at it, though it is not followed.
    errors = (httpx.HTTPError, httpx.InvalidURL, OSError)

    def __init__(self, hook: Hook, allowed: Allowed, timeout_s: float) -> None:
        super().__init__(allowed, timeout_s)
        self._hook = hook
        # A proxy of the environment would be a way around the list of hosts.
        self._http = httpx.AsyncClient(
            trust_env=False, follow_redirects=False, timeout=httpx.Timeout(timeout_s)
        )

    async def close(self) -> None:
        """Close the connections, too."""
        await self._http.aclose()
        await super().close()

    async def _send(self, notice: Notice | IncidentNotice) -> Failure | None:
        if self._hook.format == "alertmanager":
            body = alert_body(notice, round(time.time() * 1000), self._hook.resolve_s)
        else:
            body = native_body(notice)
        response = await self._post(notice.number, body)
        status = response.status_code
        if 200 <= status < 300:
            return None
        pause_s = None
        if status in WITH_RETRY_AFTER:
            pause_s = retry_after_s(response.headers.get("Retry-After"))
        final = 400 <= status < 500 and status not in TRY_AGAIN
        return Failure(f"response status {status}", final, pause_s)

    async def _post(self, number: str, body: bytes) -> httpx.Response:
        url = httpx.URL(self._hook.url)
        host, address, _ = await self._allowed.resolve(self._hook.url, self._threads)
        headers = headers_of(self._hook.secret, number, int(time.time()), body)
        if self._hook.authorization:
            headers["Authorization"] = self._hook.authorization
        request = self._http.build_request(
            "POST",
            url.copy_with(host=address),
            headers={**headers, "Host": url.netloc.decode()},
            content=body,
            extensions={"sni_hostname": host},  # whose certificate it has to be
        )
        response = await self._http.send(request, stream=True)
        try:
            read = 0
            async for chunk in response.aiter_raw():
                read += len(chunk)
                if read > MOST_READ:
                    break
        finally:
            await response.aclose()
        return response


def headers_of(secret: bytes, id_: str, now_s: int, body: bytes) -> dict[str, str]:
    """Headers of one attempt; `id_` is the same for every attempt at an event.

    An empty secret leaves the signature out.
    """
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "moca-webhooks",
        "webhook-id": id_,
        "webhook-timestamp": str(now_s),
    }
    if not secret:
        return headers
    signed = f"{id_}.{now_s}.".encode() + body
    signature = base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
    return headers | {"webhook-signature": f"v1,{signature}"}


# --- Apprise --------------------------------------------------------------------------------------


INSTALL_APPRISE = "this needs apprise, which is not installed: pip install 'moca-service[notify]'"


class _Guard(threading.local):
    """What this thread may connect to, None: anything; and why it was not let."""

    allowed: Allowed | None = None
    refusal: str = ""


_guard = _Guard()


class AppriseSender(Sender):
    """Notifies one receiver, by its Apprise URL; it does not say why a receiver refused."""

    errors = (Exception,)  # of any service

    def __init__(self, url: str, allowed: Allowed, timeout_s: float) -> None:
        """Raise ValueError for a URL that Apprise does not know, and where it is not installed."""
        try:
            import apprise  # a second, which only processes that notify need to spend
        except ImportError:
            raise ValueError(INSTALL_APPRISE) from None

        asset = apprise.AppriseAsset(app_id="MOCA", app_desc="MOCA", http_redirects=False)
        self._target: Any = apprise.Apprise.instantiate(url, asset=asset)
        if not self._target:
            raise ValueError("url: expected an Apprise URL, such as slack://A/B/C")
        super().__init__(allowed, timeout_s)
        _audit_connections()

    async def _send(self, notice: Notice | IncidentNotice) -> Failure | None:
        loop = asyncio.get_running_loop()
        accepted = await loop.run_in_executor(self._threads, self._notify, notice)
        return None if accepted else Failure("Apprise could not deliver it")

    def _notify(self, notice: Notice | IncidentNotice) -> bool:
        """Send a notice, in this thread; whether it was accepted. Raises NotAllowed."""
        withdrawn = isinstance(notice, Notice) and notice.raised.event.state == "withdrawn"
        _guard.allowed = self._allowed
        _guard.refusal = ""
        try:
            accepted: bool = self._target.notify(
                title=notice.line,
                body="\n".join(filter(None, (notice.details, notice.link))),
                notify_type="info" if withdrawn else "warning",
                body_format="text",
            )
        finally:
            _guard.allowed = None
        if _guard.refusal and not accepted:
            raise NotAllowed(_guard.refusal)
        return accepted


@cache
def _audit_connections() -> None:
    sys.addaudithook(_check_connection)


def _check_connection(event: str, arguments: tuple[Any, ...]) -> None:
    # The event first: hooks are called to the interpreter's end, when names here are gone.
    if event != "socket.connect" or (allowed := _guard.allowed) is None:
        return
    place = arguments[1]
    try:
        address = ipaddress.ip_address(str(place[0]).partition("%")[0])
        port = int(place[1])
        fits = any(allowed.lets(address, scheme, port) for scheme in ("https", "http"))
    except (TypeError, ValueError, IndexError):
        fits = False  # a name, or a socket of this machine
    if not fits:
        _guard.refusal = f"{place[0]} is not public: to allow it, list it in --webhook-hosts"
        # As the system does: Apprise's libraries close the socket then, and try the next address.
        raise PermissionError(_guard.refusal)


def sender_of(hook: Hook, allowed: Allowed, timeout_s: float) -> Sender:
    """Return what delivers for a hook."""
    if hook.format == "apprise":
        return AppriseSender(hook.url, allowed, timeout_s)
    return HttpSender(hook, allowed, timeout_s)
