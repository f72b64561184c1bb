"""One attempt at a delivery: bounded in time, to an address that may be called, no redirects."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from moca_client.errors import retry_after_s
from service.webhooks.allowlist import Allowed, NotAllowed
from service.webhooks.apprise_sender import AppriseSender
from service.webhooks.config import Hook
from service.webhooks.notices import Failure, IncidentNotice, Notice, alert_body, native_body

MOST_READ = 65_536  # bytes of an answer; it is read so that the connection can be used again
THREADS = 2
TRY_AGAIN = (408, 425, 429)  # refusals that pass
WITH_RETRY_AFTER = (429, 503)


class HttpSender:
    """Posts for one hook, with connections and name look-ups of its own."""

    def __init__(self, hook: Hook, allowed: Allowed, timeout_s: float) -> None:
        self._hook = hook
        self._allowed = allowed
        self._timeout_s = timeout_s
        # A proxy of the environment would be a way around the list of hosts.
        self._http = httpx.AsyncClient(
            trust_env=False, follow_redirects=False, timeout=httpx.Timeout(timeout_s)
        )
        self._resolvers = ThreadPoolExecutor(THREADS, thread_name_prefix="resolve")

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()
        self._resolvers.shutdown(wait=False, cancel_futures=True)

    async def attempt(self, notice: Notice | IncidentNotice) -> Failure | None:
        """Post once; returns why it failed, None when the receiver accepted it."""
        if self._hook.format == "alertmanager":
            body = alert_body(notice, round(time.time() * 1000), self._hook.resolve_s)
        else:
            body = native_body(notice)
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._post(notice.number, body)
        except TimeoutError:
            return Failure(f"no answer within {self._timeout_s:g} s")
        except NotAllowed as error:
            return Failure(str(error))
        # InvalidURL is of a redirect's address: httpx looks at it, though it is not followed.
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            # Not the text of every error: it may hold the address, and that a token.
            return Failure(f"the call failed: {type(error).__name__}")
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
        host, address, _ = await self._allowed.resolve(self._hook.url, self._resolvers)
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


def sender_of(hook: Hook, allowed: Allowed, timeout_s: float) -> AppriseSender | HttpSender:
    """Return what delivers for a hook."""
    if hook.format == "apprise":
        return AppriseSender(hook.url, allowed, timeout_s)
    return HttpSender(hook, allowed, timeout_s)


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
