"""Connect to the store from an offline command; start the embedded server if it is stopped."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import msgspec
import redis

from service.problems import StartupError
from service.runtime.embedded import Embedded, EmbeddedError, Running
from service.settings import Settings
from service.store.connection import LONG_TIMEOUT_S, connect
from service.store.shards import StoreClient

WAIT_S = 5.0
PAUSE_S = 0.05


@contextlib.contextmanager
def reach(settings: Settings, make: bool = False) -> Iterator[StoreClient]:
    """Yield a client of the service's store, whether the service runs or not.

    An embedded store that does not run is started for as long as it is needed; one that is not
    there is made only with `make`. Raises StartupError when it cannot be used, and RedisError
    when a configured one does not answer.
    """
    if settings.redis_url is not None:
        with connect(settings.redis_url, LONG_TIMEOUT_S) as client:
            yield client
        return
    if not (make or settings.data_dir.is_dir()):
        raise StartupError(
            f"data folder {settings.data_dir} does not exist: set --data-dir to the folder "
            "of the store"
        )
    store = Embedded(settings.data_dir)
    client = _embedded(store)
    try:
        with client:
            yield client
    finally:
        store.stop()  # only if it was started here


def _embedded(store: Embedded) -> StoreClient:
    """Return a client of the running server, or start one; both may happen to come and go."""
    give_up = time.monotonic() + WAIT_S
    while True:
        client = _running(store)
        if client is not None:
            return client
        try:
            store.start()
        except EmbeddedError as error:
            if time.monotonic() > give_up:
                raise StartupError(str(error)) from error
            time.sleep(PAUSE_S)
        else:
            return connect(store.url, LONG_TIMEOUT_S)


def _running(store: Embedded) -> StoreClient | None:
    """Return a client of the server that runs on this folder; None when none answers."""
    try:
        recorded = msgspec.json.decode((store.data_dir / "server.json").read_bytes(), type=Running)
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError):
        return None
    client = connect(f"unix://{recorded.socket}", LONG_TIMEOUT_S)
    try:
        # Another folder's server may have the socket's place by now.
        if client.info("server")["process_id"] == recorded.pid:
            return client
    except redis.RedisError:
        pass
    client.close()
    return None
