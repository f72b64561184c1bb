"""Chat, pagers and e-mail by Apprise, which may only connect to addresses that are allowed.

Apprise opens its connections itself, some of them not by HTTP. So the addresses are checked where
they are connected to: by an audit hook of the interpreter, in the threads that notify.
"""

from __future__ import annotations

import asyncio
import ipaddress
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from service.webhooks.allowlist import Allowed, NotAllowed
from service.webhooks.notices import Failure, IncidentNotice, Notice

THREADS = 2


class _Guard(threading.local):
    """What this thread may connect to, None: anything; and why it was not let."""

    allowed: Allowed | None = None
    refusal: str = ""


_guard = _Guard()


class AppriseSender:
    """Notifies one receiver, by its Apprise URL; it does not say why a receiver refused."""

    def __init__(self, url: str, allowed: Allowed, timeout_s: float) -> None:
        """Raise ValueError for a URL that Apprise does not know."""
        import apprise  # a second, which only processes that notify need to spend

        asset = apprise.AppriseAsset(app_id="MOCA", app_desc="MOCA", http_redirects=False)
        self._target: Any = apprise.Apprise.instantiate(url, asset=asset)
        if not self._target:
            raise ValueError("url: expected an Apprise URL, such as slack://A/B/C")
        self._allowed = allowed
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="apprise")
        _audit_connections()

    async def close(self) -> None:
        """Let go of the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def attempt(self, notice: Notice | IncidentNotice) -> Failure | None:
        """Notify once; returns why it failed, None when the receiver accepted it."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                accepted = await loop.run_in_executor(self._threads, self._notify, notice)
        except TimeoutError:
            return Failure(f"no answer within {self._timeout_s:g} s")
        except NotAllowed as error:
            return Failure(str(error))
        except Exception as error:  # noqa: BLE001, of any service; its text may hold a token
            return Failure(f"the call failed: {type(error).__name__}")
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
