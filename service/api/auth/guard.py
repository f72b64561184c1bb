"""Authentication and authorization, by a table of API keys that is cached for a few seconds.

A request only needs a round trip to the store if its key has a rate limit.
"""

from __future__ import annotations

import asyncio
import logging
import time

import redis
from starlette.types import Scope

from service.api.auth.rate_limits import Rates
from service.api.parsing.bodies import header
from service.api_keys import OPEN, Key, parse_token
from service.problems import MissingScope, RedisUnavailable, Unauthorized
from service.runtime.access_policy import is_own_name, names_of
from service.settings import Settings
from service.store.api_keys import AsyncKeyring
from service.tasks import bounded

log = logging.getLogger(__name__)

TIMEOUT_S = 2.0
OTHER_NAME = (
    "without an API key, the Host header must be localhost, an IP address, a dotless name, "
    "or one of --host-names (MOCA_HOST_NAMES): use one of these, or create a key"
)
USED_EVERY_S = 60  # resolution of a key's last-used time
_SCHEME = b"bearer "


class Authenticator:
    """Admits requests; `required`: a key is needed even while none exists."""

    def __init__(
        self, keyring: AsyncKeyring, rates: Rates, settings: Settings, required: bool
    ) -> None:
        self._keyring, self._rates = keyring, rates
        self._open_access, self._cache_s = settings.open_access, settings.key_cache_s
        self._required, self._names = required, names_of(settings)
        self._keys: dict[str, Key] = {}
        self._version: bytes | None = None
        self._fresh_until = 0.0
        self._refreshing: asyncio.Task[None] | None = None
        self._used: dict[str, int] = {}
        self._unsaved: dict[str, int] = {}

    async def admit(self, scope: Scope, needs: str) -> None:
        """Admit a request, or raise Unauthorized, MissingScope or RateExceeded.

        Raises RedisUnavailable when the key table is stale and the store does not respond.
        """
        if needs == OPEN:
            return
        sent = header(scope, b"authorization")
        if sent is None and not self._required:
            for name, value in scope["headers"]:
                if name == b"host" and not is_own_name(value, self._names):
                    raise Unauthorized(OTHER_NAME)
            return
        if time.monotonic() > self._fresh_until:
            await self._renew()
        key = self._identify(sent)
        scope["state"]["key"] = key.id
        if needs not in key.scopes:
            raise MissingScope(f"key {key.name!r} lacks the scope {needs!r}", scope=needs)
        rate = self._rates.of(key)
        if rate is not None:
            await self._rates.spend(key, rate)

    def still_admits(self, scope: Scope) -> bool:
        """Whether an admitted request would be admitted now, by the cached table."""
        id_ = scope["state"].get("key")
        if id_ is None:
            return not self._required
        key = self._keys.get(id_)
        return key is not None and key.state(time.time() * 1000) == "active"

    async def watch(self) -> None:
        """Refresh the table forever, at half its lifetime."""
        while True:
            try:
                await self._renew()
                await self._save_used()
            except RedisUnavailable as error:
                log.warning("keys: %s", error.detail)
            await asyncio.sleep(self._cache_s / 2)

    def _identify(self, sent: bytes | None) -> Key:
        if sent is None:
            raise Unauthorized("no API key: send one as `Authorization: Bearer moca_...`")
        if sent[: len(_SCHEME)].lower() != _SCHEME:
            raise Unauthorized("expected `Authorization: Bearer moca_...`", "invalid_request")
        token = parse_token(sent[len(_SCHEME) :].strip().decode("latin-1"))
        key = self._keys.get(token.id) if token is not None else None
        if token is None or key is None or not key.matches(token.secret):
            raise Unauthorized("unknown API key", "invalid_token")
        now = time.time()
        state = key.state(now * 1000)
        if state != "active":
            raise Unauthorized(f"key {key.name!r} is {state}", "invalid_token")
        minute = int(now) // USED_EVERY_S * USED_EVERY_S
        if self._used.get(key.id) != minute:
            self._used[key.id] = self._unsaved[key.id] = minute
        return key

    async def _renew(self) -> None:
        """Refresh the key table; concurrent callers share one refresh."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.ensure_future(self._read())
        try:
            await bounded(self._refreshing, TIMEOUT_S)
        except (redis.RedisError, OSError, TimeoutError) as error:
            raise RedisUnavailable(f"the store does not respond: {error}") from error

    async def _read(self) -> None:
        started = time.monotonic()
        version = await self._keyring.version()
        if version != self._version:
            self._version, self._keys = await self._keyring.table()
            if self._keys and not self._open_access:
                self._required = True  # and stays so, even if the keys are lost
        self._fresh_until = started + self._cache_s

    async def _save_used(self) -> None:
        if not self._unsaved:
            return
        unsaved, self._unsaved = self._unsaved, {}
        try:
            await bounded(self._keyring.note_used(unsaved), TIMEOUT_S)
        except (redis.RedisError, OSError, TimeoutError) as error:
            log.warning("could not save API-key last-used times: %s", error)
