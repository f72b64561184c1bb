"""A Prometheus remote write on its way to streams: the commands of each in turn, side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from moca_client.responses import Ingested
from service import wire
from service.api.gateway.gateway import Gateway
from service.problems import (
    TYPE_PREFIX,
    LabelOutOfRange,
    NumericalFault,
    Overloaded,
    Quarantined,
    ServiceError,
)

AGAIN = frozenset((429, 503, 504))  # statuses after which the same command may yet be taken
AT_ONCE = 100  # commands begun before the event loop does something else
# Errors of one observation: others of its command may be taken. All others are of the stream.
# Labels that the model cannot produce are none of these: the worker leaves them out.
OF_ONE = frozenset(
    TYPE_PREFIX + error.slug for error in (LabelOutOfRange, NumericalFault, Quarantined)
)
MAX_REFUSED = 20  # samples of a stream that are looked for in a request: each takes some commands
RESULTS = ("applied", "skipped", "unmatched", "rejected", "untried", "deferred")
_decode = msgspec.json.Decoder(Ingested).decode


class StreamWrite(NamedTuple):
    """Commands for one stream. settings: of the stream, if it does not exist yet."""

    stream: str
    settings: dict[str, Any]
    observations: Sequence[wire.Observation]
    size: int  # observations in a command, at most


class Tally:
    """Counts of samples by result, and the reason of the first failure."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(RESULTS, 0)
        self.reason = ""

    def add(self, result: str, count: int) -> None:
        """Count samples that did not fail."""
        self.counts[result] += count

    def fail(self, result: str, count: int, reason: str) -> None:
        """Count samples that were rejected, untried or deferred."""
        self.counts[result] += count
        self.reason = self.reason or reason


async def run(gateway: Gateway, writes: Sequence[StreamWrite], tally: Tally) -> None:
    """Apply all samples, and count what became of them."""
    full = _full_partitions(gateway, writes)
    running = []
    for i, write in enumerate(writes, start=1):
        reason = full.get(gateway.partition(write.stream))
        if reason is not None:
            tally.fail("deferred", len(write.observations), reason)
            continue
        running.append(asyncio.ensure_future(_StreamRun(write, tally).run(gateway)))
        if i % AT_ONCE == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*running)


def _full_partitions(gateway: Gateway, writes: Sequence[StreamWrite]) -> Mapping[int, str]:
    """Return partitions that are not admitted to now, with the reason."""
    full: dict[int, str] = {}
    first = {gateway.partition(write.stream): write.stream for write in writes}
    for partition, stream in first.items():
        try:
            gateway.admit(wire.Ingest(stream, []))
        except Overloaded as error:  # by default Prometheus drops what is answered 429
            full[partition] = str(error)
    return full


class _StreamRun:
    """The commands of one stream, one after another."""

    def __init__(self, write: StreamWrite, tally: Tally) -> None:
        self._write, self._tally = write, tally
        samples, size = write.observations, write.size
        self._parts = [samples[i : i + size] for i in range(0, len(samples), size)]
        self._repeats = 0  # samples that are applied and counted, and still sent once more
        self._refused = 0

    async def run(self, gateway: Gateway) -> None:
        """Apply all samples, or as many as can be now."""
        patience = gateway.patience()
        while self._parts:
            part = self._parts.pop(0)
            command = wire.Ingest(self._write.stream, list(part), settings=self._write.settings)
            try:
                outcome = await gateway.submit(command, True, patience)
                status, body = outcome.status, outcome.body[-1]
            except ServiceError as error:
                status, body = error.status, error.render()
            if status < 400:
                self._succeed(_decode(body))
            elif status in AGAIN:
                self._fail_rest("deferred", part, msgspec.json.decode(body)["detail"])
            else:
                self._refuse(part, msgspec.json.decode(body))

    def _succeed(self, done: Ingested) -> None:
        repeated = min(self._repeats, done.skipped)
        self._repeats -= repeated
        self._tally.add("applied", done.applied)
        self._tally.add("skipped", done.skipped - repeated)
        if done.rejected:
            self._tally.fail("rejected", done.rejected, self._reason(done.reason))

    def _refuse(self, part: Sequence[wire.Observation], problem: dict[str, Any]) -> None:
        """Go on with the halves of a part; each half that is not refused is applied."""
        applied = problem.get("applied", 0)
        self._tally.add("applied", applied)
        self._repeats += applied
        reason = self._reason(problem["detail"])
        if problem["type"] not in OF_ONE:
            self._fail_rest("rejected", part, reason)
        elif self._refused == MAX_REFUSED:
            self._fail_rest("untried", part, reason)
        elif len(part) > 1:
            half = len(part) // 2
            self._parts[:0] = [part[:half], part[half:]]
        else:
            self._refused += 1
            self._tally.fail("rejected", 1, reason)

    def _reason(self, detail: str) -> str:
        return f"stream {self._write.stream!r}: {detail}"

    def _fail_rest(self, result: str, part: Sequence[wire.Observation], reason: str) -> None:
        rest = len(part) + sum(map(len, self._parts))
        self._tally.fail(result, rest - self._repeats, reason)
        self._parts.clear()
