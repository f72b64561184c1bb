"""Who may call, and how often.

Keys are looked up in a table that is cached for a few seconds, so a request needs a round trip to
the store only if its key has a rate. Rates are counted there, for all API processes together.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from functools import lru_cache

import redis
from starlette.types import Scope

from service.api_keys import OPEN, Key, Rate, parse_rate, parse_token
from service.problems import MissingScope, RateExceeded, RedisUnavailable, Unauthorized
from service.runtime.access_policy import is_own_name, names_of
from service.settings import Settings
from service.store.api_keys import AsyncKeyring
from service.store.reads import from_store
from service.store.shards import UNREACHABLE, AsyncStoreClient, script
from service.tasks import bounded

log = logging.getLogger(__name__)

TIMEOUT_S = 2.0
OTHER_NAME = (
    "without an API key, the Host header must be localhost, an IP address, a dotless name, "
    "or one of --host-names (MOCA_HOST_NAMES): use one of these, or create a key"
)
USED_EVERY_S = 60  # resolution of a key's last-used time
_SCHEME = b"bearer "
RATE_KEYS = "moca:rate"
_parsed_rate = lru_cache(maxsize=1024)(parse_rate)


class Authenticator:
    """Admits requests; `required`: a key is needed even while none exists."""

    def __init__(
        self,
        keyring: AsyncKeyring,
        counting: AsyncStoreClient,
        settings: Settings,
        required: bool,
    ) -> None:
        self._keyring = keyring
        self._counting = counting
        self._key_rate = settings.key_rate
        self._open_access = settings.open_access
        self._cache_s = settings.key_cache_s
        self._names = names_of(settings)
        self._required = required
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
        sent = scope["state"]["headers"].get(b"authorization")
        if self._stale and (self._required or sent is not None):
            await self._renew()
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        key = self._check(sent, hosts, needs)
        if key is None:
            return
        scope["state"]["key"] = key.id
        rate = self._rate_of(key)
        if rate is not None and (wait_s := await from_store(self._spent(key, rate))):
            detail = f"key {key.name!r}: rate limit of {rate} exceeded"
            raise RateExceeded(detail, rate.amount, rate.window_s, wait_s)

    def admits(self, sent: bytes | None, hosts: Iterable[bytes], needs: str) -> bool:
        """Whether a request is admitted without a look into the store; raises as `admit`.

        sent: header Authorization.
        """
        if self._stale:
            return False
        key = self._check(sent, hosts, needs)
        return key is None or self._rate_of(key) is None

    @property
    def _stale(self) -> bool:
        """Whether the key table is to be read again before it is used."""
        return time.monotonic() > self._fresh_until

    def _check(self, sent: bytes | None, hosts: Iterable[bytes], needs: str) -> Key | None:
        """Return the key that is sent, if any, without its rate; raises as `admit`."""
        if sent is None and not self._required:
            for host in hosts:
                if not is_own_name(host, self._names):
                    raise Unauthorized(OTHER_NAME)
            return None
        key = self._identify(sent)
        if needs not in key.scopes:
            raise MissingScope(f"key {key.name!r} lacks the scope {needs!r}", scope=needs)
        return key

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
                if unsaved := self._unsaved:
                    self._unsaved = {}
                    await bounded(self._keyring.note_used(unsaved), TIMEOUT_S)
            except RedisUnavailable as error:
                log.warning("keys: %s", error.detail)
            except UNREACHABLE as error:
                log.warning("could not save API-key last-used times: %s", error)
            await asyncio.sleep(self._cache_s / 2)

    def _identify(self, sent: bytes | None) -> Key:
        if sent is None:
            raise Unauthorized("no API key: send one as `Authorization: Bearer moca_...`")
        if sent[: len(_SCHEME)].lower() != _SCHEME:
            raise Unauthorized("expected `Authorization: Bearer moca_...`", "invalid_request")
        id_, secret = parse_token(sent[len(_SCHEME) :].strip().decode("latin-1")) or ("", "")
        key = self._keys.get(id_)
        if key is None or not key.matches(secret):
            raise Unauthorized("unknown API key", "invalid_token")
        now = time.time()
        state = key.state(now * 1000)
        if state != "active":
            raise Unauthorized(f"key {key.name!r} is {state}", "invalid_token")
        minute = int(now) // USED_EVERY_S * USED_EVERY_S
        if self._used.get(key.id) != minute:
            self._used[key.id] = minute
            self._unsaved[key.id] = minute
        return key

    async def _renew(self) -> None:
        """Refresh the key table; concurrent callers share one refresh."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.ensure_future(self._read())
        await from_store(bounded(self._refreshing, TIMEOUT_S), bound=False)

    async def _read(self) -> None:
        started = time.monotonic()
        version = await self._keyring.version()
        if version != self._version:
            self._version, self._keys = await self._keyring.table()
            if self._keys and not self._open_access:
                self._required = True  # and stays so, even if the keys are lost
        self._fresh_until = started + self._cache_s

    def _rate_of(self, key: Key) -> Rate | None:
        """Return a key's rate; None without one, so that such a key costs no round trip."""
        return _parsed_rate(key.rate or self._key_rate)

    async def _spent(self, key: Key, rate: Rate) -> int:
        """Count one request; return 0, or the seconds after which the next one may come.

        By a sliding window for each key: two counters in the store, whatever the rate.
        """
        names = [f"{RATE_KEYS}:{key.id}"]
        (answer,) = await self._counting.run([script("rate", names, [rate.amount, rate.window_s])])
        if isinstance(answer, redis.OutOfMemoryError):
            return 0  # a full store takes no counters, but reads and deletes are to work
        if isinstance(answer, Exception):
            raise answer
        wait_s: int = answer
        return wait_s
