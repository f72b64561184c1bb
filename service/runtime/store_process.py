"""The store of one machine's service: checked before use, restarted when it is embedded and dies.

Also releases the leases of dead workers at once, so that others take over.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import redis

from service.problems import StartupError
from service.runtime.access_policy import keys_required
from service.runtime.embedded import Embedded
from service.runtime.process import RestartBackoff
from service.settings import Settings
from service.store import keys
from service.store.api_keys import Keyring
from service.store.connection import START_TIMEOUT_S, connect, shown
from service.store.health import (
    check_formats,
    check_server,
    fix_partitions,
    stored_partitions,
)
from service.store.log import Log, Verdict
from service.store.shards import StoreClient

log = logging.getLogger(__name__)

# Of a new store: few, so that what arrives together is appended and committed together.
FEWEST_PARTITIONS = 8
PARTITIONS_OF_A_WORKER = 4
BURY_TIMEOUT_S = 1.0  # meanwhile the supervisor does nothing else


class StoreKeeper:
    """Opens, watches and closes the store that `settings` ask for."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._embedded = None if settings.redis_url else Embedded(settings.data_dir)
        self._backoff = RestartBackoff()
        self._due = 0.0  # no start of the embedded server before this

    @property
    def url(self) -> str:
        """Address of the store, configured or embedded."""
        return self._embedded.url if self._embedded is not None else str(self._settings.redis_url)

    def open(self) -> Settings:
        """Start the embedded server, or reach the configured one; StartupError when it is unfit.

        Returns the settings with the store's number of partitions where none is stated.
        """
        try:
            if self._embedded is not None:
                self._embedded.start()
                folder = self._embedded.data_dir
                pid = self._embedded.pid
                log.info("embedded store in %s, process %d", folder, pid)
            with connect(self.url, START_TIMEOUT_S) as client:
                check_server(client)
                if "partitions" not in self._settings.model_fields_set:
                    stored = stored_partitions(client)
                    fresh = max(FEWEST_PARTITIONS, PARTITIONS_OF_A_WORKER * self._settings.workers)
                    partitions = fresh if stored is None else stored
                    self._settings = self._settings.model_copy(update={"partitions": partitions})
                fix_partitions(client, self._settings.partitions)
                keys_required(self._settings, Keyring(client).any())  # StartupError before the rest
                if self._embedded is not None:
                    check_formats(client, self._settings.partitions)  # beside no other version
                    _check_disk(client, self._embedded.data_dir)
                    # It has no workers but ours: those it knows died with their supervisor.
                    for worker_id in cast(list[bytes], client.zrange(keys.WORKERS, 0, -1)):
                        self._bury(client, worker_id.decode(), "unknown")
        except (redis.RedisError, ValueError) as error:
            raise StartupError(f"cannot use the store at {shown(self.url)}: {error}") from error
        return self._settings

    def close(self) -> None:
        """Shut the embedded server down; a configured one stays as it is."""
        if self._embedded is not None:
            self._embedded.stop()

    def make_scratch(self) -> Path:
        """Make an empty folder for this run's temporary files."""
        if self._embedded is None:
            return Path(tempfile.mkdtemp(prefix="moca-"))
        # Beside the socket and under the same lock: what a killed run left is swept away.
        folder = self._embedded.socket.parent / "scratch"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def mind(self) -> None:
        """Start the embedded server again if it died."""
        store = self._embedded
        now = time.monotonic()
        if store is None or store.alive() or now < self._due:
            return
        pause_s = self._backoff.next_s(now)
        self._due = now + pause_s
        log.warning("the embedded store, process %d, died: restarting it", store.pid)
        try:
            store.start()
        except StartupError as error:
            log.error("%s; retrying in %.1f s", error, pause_s)
        else:
            log.info("the embedded store runs again, process %d", store.pid)

    def bury(self, worker_id: str, verdict: Verdict) -> None:
        """Release a dead worker's leases and stop counting it among the living."""
        try:
            with connect(self.url, BURY_TIMEOUT_S) as client:
                self._bury(client, worker_id, verdict)
        except redis.RedisError as error:
            log.warning("leases of %s are kept until they expire: %s", worker_id, error)

    def _bury(self, client: StoreClient, worker_id: str, verdict: Verdict) -> None:
        settings = self._settings
        dead = Log(client, worker_id, settings.lease_ttl_ms, settings.partitions)
        dead.leave()
        if released := dead.release_worker(worker_id, verdict):
            log.info("released %d partitions of dead %s", released, worker_id)


def _check_disk(client: redis.Redis, data_dir: Path) -> None:
    """Raise StartupError where the server cannot append to its file: every write would fail."""
    try:
        client.hset(keys.CONFIG, "started_ms", time.time_ns() // 1_000_000)
        written = cast(Any, client.info("persistence"))["aof_last_write_status"] == "ok"
    except redis.ResponseError as error:
        if "MISCONF" not in str(error):
            raise
        written = False
    if not written:
        raise StartupError(
            f"data folder {data_dir}: the store cannot append to its file, disk full: make room "
            "and start again"
        )
