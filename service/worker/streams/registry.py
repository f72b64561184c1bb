"""Streams in memory and on the device: load, replay, step, checkpoint, evict."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from importlib import import_module
from itertools import chain, repeat
from pathlib import Path
from subprocess import SubprocessError
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
import redis

from model_core import codec, lazy
from model_core.errors import BadState, MissingTorch, NotCompiled
from model_core.lazy import torch
from model_core.stream.slab import CHUNK_BYTES, NOT_FINITE, STEP_BYTES, Slab, SlabMemory
from model_core.upm.base import UnderlyingModel
from model_core.upm.builtin import Options
from service.observability import metrics
from service.problems import NotInstalled, ServiceError
from service.settings import Settings
from service.store.streams import (
    Store,
    Stored,
    UnreadablePart,
    packed_state,
    records_of,
    state_of,
    wrong_type,
)
from service.wire import LEVELS, Head, Record
from service.worker.streams.answers import WAITING_BYTES
from service.worker.streams.history import KeptLabels
from service.worker.streams.loaded_models import LoadedModels, options_of
from service.worker.streams.step_inputs import past_of, recall_errors
from service.worker.streams.stream import (
    Changes,
    Ints,
    Stream,
    StreamKey,
    StreamList,
    Table,
    changes_of,
    parted,
    places_of,
)

logger = logging.getLogger(__name__)
SPARE = 0.02  # of the room, made at once where it is short: all streams are sorted for it
STEP_PARTS = 6  # of the states that are stepped at once, what a step holds at its peak, about
STATES_BYTES = 64 << 20  # of states that are committed together, about
CANNOT_REPLAY = f"its tail cannot be replayed: {NOT_FINITE}"
LOADED = 256  # streams loaded at a time
NEW_BYTES = 256 << 10  # what a stream that is yet to be made may need
LISTS = 500  # of names that are known by their rows: the same ones come again and again
T = TypeVar("T")


class HeldBytes(NamedTuple):
    """Bytes that a worker holds: streams' records on the host; states and models on the device."""

    host: int
    device: int


class Engine:
    """Every stream of the partitions that one worker owns, as far as it is loaded."""

    def __init__(self, settings: Settings, store: Store, sharing: int = 0) -> None:
        """Hold no stream yet; sharing: workers that share the machine with an API and a store."""
        self.settings = settings
        self.store = store
        self._sharing = sharing
        self.catalogue = LoadedModels(settings.models_dir, settings.device)
        self.streams: dict[StreamKey, Stream] = {}
        self.table = Table(settings.checkpoint_every)
        # Names and rows of lists, by partition, first name and length.
        self._lists: dict[tuple[int, str, int], tuple[list[str], Ints]] = {}
        self.kept_labels = KeptLabels()
        self._host_bytes = 0  # of the streams, as last counted
        self._changed: set[StreamKey] = set()  # those that are to be counted anew
        self._slabs: dict[tuple[str, str | None, int, int, Options], Slab] = {}
        self.ahead_ms = 0.0  # how far the store's clock is ahead of our monotonic one
        self.tick: Callable[[], None] = lambda: None  # a sign of life, in long work
        self.busy: Collection[int] = ()  # partitions of jobs under way
        self.applying: Sequence[StreamList] = ()  # streams of the batch under way
        self.committing: Sequence[StreamList] = ()  # streams that may not be stored yet

    # --- loading and forgetting ---------------------------------------------------------------

    def places(self, partition: int, names: Sequence[str]) -> Ints:
        """Rows of streams in the table; raises KeyError where one is not in memory."""
        if len(names) == 1:
            return np.array([self.streams[partition, names[0]].at])
        key = (partition, names[0], len(names))
        known = self._lists.get(key)
        if known is None or known[0] != names:
            streams = list(map(self.streams.__getitem__, zip(repeat(partition), names)))
            known = [stream.name for stream in streams], places_of(streams)
            if len(self._lists) >= LISTS:
                self._lists.clear()
            self._lists[key] = known
        return known[1]

    def holds(self, lists: Iterable[StreamList]) -> bool:
        """Whether all of these streams are in memory."""
        try:
            for partition, names in lists:
                self.places(partition, names)
        except KeyError:
            return False
        return True

    def take(self, lists: Sequence[StreamList]) -> list[Ints]:
        """Rows in the table of the streams of a batch, list by list.

        They are loaded where need be, used last, and stay in memory until the next batch.
        """
        self.applying = lists
        if not self.holds(lists):
            missing: dict[int, list[str]] = {}
            for partition, names in lists:
                missing.setdefault(partition, []).extend(names)
            for partition, names in missing.items():
                self.load(partition, names)
        taken = [self.places(partition, names) for partition, names in lists]
        now = time.monotonic()
        for places in taken:
            self.table.used_s[places] = now
        return taken

    def load(self, partition: int, names: Iterable[str]) -> None:
        """Have these streams in memory; a stream that cannot be read is marked broken."""
        missing = [name for name in dict.fromkeys(names) if (partition, name) not in self.streams]
        if not missing:
            return
        self._changed.update((partition, name) for name in missing)
        readable: list[tuple[Stream, Stored]] = []
        for name, stored in zip(missing, self._fetch(partition, missing), strict=True):
            self.tick()
            stream = Stream(partition, name)
            self.streams[partition, name] = stream
            self.table.add(stream)
            if self._usable(stream, partial(self._read, stream, stored)):
                readable.append((stream, stored))
        self.begin([stream for stream, _ in readable if stream.alive and stream.live().warm])
        loaded = [
            stream
            for stream, stored in readable
            if self._usable(stream, partial(self._resume, stream, stored))
        ]
        for stream in loaded:
            if stream.slab is not None and stream.slab.in_series:
                self._usable(stream, partial(self._replay_alone, stream))
        for stream in self._replay([s for s in loaded if s.slab is not None and s.buffer]):
            self._break(stream, CANNOT_REPLAY)
        for name in missing:
            self.streams[partition, name].count()

    def _usable(self, stream: Stream, part: Callable[[], None]) -> bool:
        """Do a part of loading a stream; False where the stream cannot be used as it is."""
        try:
            part()
        except (BadState, UnreadablePart, msgspec.MsgspecError) as error:
            self._break(stream, str(error))
        except ServiceError as refusal:  # its model is missing: again at the next command
            stream.unserved = refusal
        except MissingTorch as error:  # that the last labels were stepped by elsewhere
            stream.leave()
            stream.unserved = NotInstalled(str(error))
        else:
            return True
        return False

    def _read(self, stream: Stream, stored: Stored) -> None:
        """Take over what is stored; raises where the stream cannot be used as it is."""
        if stored.wrong:
            raise UnreadablePart(stored.wrong)
        stream.recall(stored.idempotency)
        if stored.head is not None:
            stream.begin_with(stored.head)
            stream.tail.stored = first = stored.head.seq - len(stored.beside)
            if stored.beside:
                stream.tail.put_rows(first, stored.beside)
        elif stored.tail:
            raise UnreadablePart("its head is missing")
        if stream.alive:
            self._connect(stream, records_of(stream.name, stored.tail, stream.live().checkpoint))

    def _resume(self, stream: Stream, stored: Stored) -> None:
        """Go on from the checkpoint of a stream, if it has one."""
        if stream.slab is not None:
            self._put_checkpoint(stream, state_of(stream.name, stream.live(), stored.checkpoint))
        stream.resume_season()

    def begin(self, streams: Iterable[Stream]) -> None:
        """Put streams on the device, as before any observation; location and scale are known."""
        for slab, group in by_slab(((stream, stream.live()) for stream in streams), self.slab):
            self.tick()
            rows = slab.begin(
                [head.location or [] for _, head in group],
                [head.scale or [] for _, head in group],
                [head.resolution for _, head in group],
            )
            for (stream, _), row in zip(group, rows, strict=True):
                stream.slab = slab
                stream.row = row

    def note(self, stream: Stream, reason: str) -> None:
        """Log and count a damaged part of a stream; its bytes stay where they are."""
        logger.warning("stream %r: %s", stream.name, reason)
        metrics.CORRUPT_STATES.inc()

    def load_first(self, partition: int, names: Sequence[str], most: int) -> int:
        """Load the first of these streams, one at least, that need `most` bytes together.

        Returns how many. They stay in memory until the batch that they are for is applied.
        """
        need = 0
        at = 0
        count = 16
        while at < len(names) and (not at or need <= most):
            self.tick()
            part = names[at : at + count]
            self.applying = [*self.applying, (partition, part)]
            self.load(partition, part)
            loaded = [self.streams[partition, name] for name in part]
            need += sum([s.host_bytes + s.slab.row_bytes for s in loaded if s.slab is not None])
            need += sum([self._need(stream) for stream in loaded if stream.slab is None])
            at += len(part)
            # As many as fit, were they like those so far.
            count = max(1, min(LOADED, (most - need) * at // need))
        return at

    def _need(self, stream: Stream) -> int:
        """Bytes that a stream without a filter takes, or will take once it has one."""
        if stream.unserved is not None:
            return stream.host_bytes
        if not stream.alive:
            return stream.host_bytes + NEW_BYTES
        head = stream.live()
        try:
            regimes = head.settings.regimes
            hypothesis_bytes = self.catalogue.hypothesis_bytes(self.catalogue.of(head), regimes)
        except ServiceError:  # a model that was removed since
            return stream.host_bytes
        slots = head.settings.max_hypotheses + 1 + 2 * regimes
        return stream.host_bytes + hypothesis_bytes * slots

    def _fetch(self, partition: int, names: list[str]) -> list[Stored]:
        """Load streams; with what is wrong where a key of one is of a type it cannot have."""
        try:
            return self.store.load(partition, names)
        except redis.ResponseError as error:
            if not wrong_type(error):
                raise
            if len(names) == 1:
                return [Stored(wrong=str(error))]
            return [stored for name in names for stored in self._fetch(partition, [name])]

    def _break(self, stream: Stream, reason: str) -> None:
        """Refuse the stream with the reason; nothing of it is written until it is deleted."""
        stream.leave()
        stream.broken = f"stream {stream.name!r}: {reason}"
        self.note(stream, reason)

    def _connect(self, stream: Stream, records: Sequence[Record]) -> None:
        """Take the records that are to be replayed; raises UnreadablePart where one is missing."""
        head = stream.live()
        if [record.seq for record in records] != [*range(head.checkpoint, head.seq)]:
            raise UnreadablePart(f"its tail does not connect seq {head.checkpoint} with its head")
        stream.buffer = records
        if head.warm:
            self.slab(head)  # raises where its model is missing

    def _put_checkpoint(self, stream: Stream, checkpoint: bytes | None) -> None:
        """Put a stream's last checkpoint on the device; its tail is replayed later."""
        slab = stream.slab
        if slab is None or checkpoint is None:
            return
        own = codec.decode(slab.layout, slab.row(stream.row), checkpoint)
        if own.seq != stream.live().checkpoint:
            raise UnreadablePart(f"its checkpoint is at seq {own.seq}")
        slab.put(stream.row, own)
        if stream.season_state is not None:
            model = slab.model
            stream.season_state = codec.decode_season(model.kind, model.y_dim, checkpoint)

    def restore(self, stream: Stream, checkpoint: bytes | None, records: Sequence[Record]) -> None:
        """Put a stream that exists on the device; records: after its checkpoint.

        Raises as `_read`.
        """
        self._connect(stream, records)
        stream.begin_season()
        warm = stream.live().warm
        if warm:
            self.begin([stream])
            self._put_checkpoint(stream, checkpoint)
        stream.resume_season()
        if warm:
            self._replay_alone(stream)

    def _replay(self, streams: Sequence[Stream]) -> list[Stream]:
        """Step streams through the tail beyond their checkpoints; raises no events again.

        Returns those whose filters take none of it.
        """
        refused = []
        for slab, group in by_slab((stream, stream.live()) for stream in streams):
            watched = [lambda head=head: head.watch for _, head in group]
            buffers = [stream.buffered() for stream, _ in group]
            pasts = [past_of(slab.model, own) for own in buffers]
            replayed = slab.replay_each([stream.row for stream, _ in group], pasts, watched)
            outlying: list[set[int]] = [set() for _ in group]
            for i, at, line in replayed:
                self.tick()
                if line is None:
                    refused.append(group[i][0])
                elif line.outlying:
                    outlying[i].add(at)
            for (stream, _), records, own in zip(group, buffers, outlying, strict=True):
                recall_errors(slab, stream.row, records, own)
        for stream in streams:
            stream.buffer = ()
        return refused

    def _replay_alone(self, stream: Stream) -> None:
        """As `_replay`; raises UnreadablePart where the filter takes none of it."""
        if self._replay([stream]):
            raise UnreadablePart(CANNOT_REPLAY)

    def forget(self, partition: int) -> None:
        """Drop everything of a partition that is lost; nothing is written."""
        for stream in self.of_partition(partition):
            self.evict(stream)

    def of_partition(self, partition: int) -> list[Stream]:
        """Streams of a partition that are loaded."""
        return [stream for (p, _), stream in self.streams.items() if p == partition]

    def model(self, stream: Stream, head: Head) -> UnderlyingModel:
        """Model of a stream; head: its own, or the one that it is to get. Raises UnknownModel."""
        if stream.slab is not None and head is stream.head:
            return stream.slab.model
        return self.catalogue.of(head)

    def slab(self, head: Head) -> Slab:
        """Slab of the streams that share this one's model and shape."""
        settings = head.settings
        shape = settings.max_hypotheses, settings.regimes
        key = (settings.model, head.digest, *shape, options_of(head))
        if key not in self._slabs:
            model = self.catalogue.of(head)
            metrics.know_model(settings.model)
            with self._ticking():  # kernels may have to be compiled
                for name in ("checksums", "explaining", "periods", "plain"):
                    import_module(f"model_core.compiled.{name}")
                room = SlabMemory(
                    min(CHUNK_BYTES, self._part), min(STEP_BYTES, self._part), self._make_room
                )
                device = self.settings.device
                self._slabs[key] = Slab(
                    model, settings.max_hypotheses, LEVELS, device, settings.regimes, room
                )
                compile_step(self._slabs[key], settings.model)
        return self._slabs[key]

    def need_torch(self) -> None:
        """Have torch imported, for what no kernel computes; raises NotInstalled."""
        if lazy.loaded():
            return
        try:
            with self._ticking():
                lazy.load()
        except MissingTorch as error:
            raise NotInstalled(str(error)) from error

    @contextmanager
    def _ticking(self) -> Iterator[None]:
        """Give signs of life in a thread of its own, through work that cannot give them."""
        done = threading.Event()
        pause_s = self.settings.lease_ttl_ms / 4000

        def tick() -> None:
            while not done.wait(pause_s):
                self.tick()

        thread = threading.Thread(target=tick, name="tick", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    # --- keeping ------------------------------------------------------------------------------

    def checkpoint(self, streams: Iterable[Stream]) -> None:
        """Have these streams' states written with the next commit."""
        due = [stream for stream in streams if stream.slab is not None and stream.behind]
        for (stream, _), state in self._states((stream, None) for stream in due):
            stream.commit_checkpoint(state)

    def _states(self, work: Iterable[tuple[Stream, T]]) -> Iterator[tuple[tuple[Stream, T], bytes]]:
        """States of streams as they are stored."""
        for slab, group in by_slab(work):
            rows = slab.each([stream.row for stream, _ in group])
            for (stream, item), own in zip(group, rows, strict=True):
                blob = codec.encode(slab.layout, own, stream.season_state)
                yield (stream, item), packed_state(stream.name, blob)

    def changes(self, of_partition: Mapping[int, Ints]) -> dict[int, Changes]:
        """What the next commits write of streams, by their rows; afterwards nothing waits.

        The last ones have ended. Streams that cannot be used are forgotten: they are read again at
        their next command.
        States that are due are among it, until they are too many: others are written by a later
        commit of their stream. Those with a memory of regimes are replayed from no earlier one.
        """
        moved, others = parted(self.table, of_partition)
        every = self.settings.checkpoint_every
        room = STATES_BYTES
        due = []
        for stream in chain.from_iterable(others.values()):
            self._changed.add((stream.partition, stream.name))
            slab = stream.slab
            if slab is None or not (stream.alive and stream.checkpoint_due(every)):
                continue
            if room > 0 or stream.settings.regimes:
                due.append(stream)
                room -= slab.row_bytes
        self.checkpoint(due)
        asleep = []
        for i in moved.due:
            stream = moved.stream(i)
            if room > 0 and stream.slab is not None:
                asleep.append((stream, i))
                room -= stream.slab.row_bytes
        moved.states.update((i, state) for (_, i), state in self._states(asleep))
        written = changes_of(moved, others)
        for stream in chain.from_iterable(others.values()):
            known = self.streams.get((stream.partition, stream.name))
            if (stream.broken is not None or stream.unserved is not None) and known is stream:
                self.evict(stream)
        return written

    def resize(self, stream: Stream, max_hypotheses: int) -> None:
        """Move a stream to a slab of another size, keeping its likeliest hypotheses."""
        head = stream.live()
        old = stream.slab
        row = stream.row
        head.settings = head.settings._replace(max_hypotheses=max_hypotheses)
        if old is None:
            return
        own = old.row(row)
        stream.leave()
        stream.slab = self.slab(head)
        (lines,) = stream.slab.layout.resized(own.lines[None], old.layout.slots)
        stream.row = stream.slab.add(own._replace(lines=lines))
        if head.seq:
            # Within the commit: the stored head may name a checkpoint of this very seq.
            self.commit_state(stream)

    def commit_state(self, stream: Stream) -> None:
        """Have a checkpoint committed of a state that observations alone do not lead to."""
        assert stream.slab is not None
        own = stream.slab.row(stream.row)
        blob = codec.encode(stream.slab.layout, own, stream.season_state)
        stream.commit_checkpoint(packed_state(stream.name, blob))

    @cached_property
    def _found_room(self) -> Room:
        return room(self.settings.device, self._sharing)  # first used when all code is loaded

    @property
    def room(self) -> Room:
        """Bytes that may be held."""
        given = self.settings.resident_bytes
        return self._found_room if given is None else Room(given)

    @property
    def _part(self) -> int:
        """Bytes that slabs take, and steps go through, at a time."""
        return self.room.for_states // 32

    @property
    def waiting_bytes(self) -> int:
        """Bytes of predictives that may wait to be summarised together."""
        return min(WAITING_BYTES, 2 * self._part)

    def held(self) -> HeldBytes:
        """Bytes held on the host and on the device, with those of the largest step."""
        states = sum(slab.nbytes for slab in self._slabs.values())
        step = STEP_PARTS * min(STEP_BYTES, self._part) + self.waiting_bytes if states else 0
        for key in self._changed & self.streams.keys():
            self._host_bytes += self.streams[key].growth()
        self._changed = set()
        host = self._host_bytes + self.table.slept_bytes
        return HeldBytes(host, states + step + self.catalogue.nbytes)

    def crowded(self, busy: Container[int]) -> dict[int, list[Stream]]:
        """Idle streams used longest ago, as many as must go to keep within the room.

        busy: partitions that are not to be touched.
        """
        going: dict[int, list[Stream]] = {}
        for stream in self._to_go(0, busy):
            going.setdefault(stream.partition, []).append(stream)
        return going

    def _to_go(self, coming: int, busy: Container[int]) -> list[Stream]:
        """Idle streams to evict, used longest ago, for the room to hold `coming` bytes more."""
        host, device = self.held()
        device += coming - sum(slab.spare_bytes for slab in self._slabs.values())
        going: list[Stream] = []
        if self.room.excess(host, device) <= 0:
            return going
        wanted = self.room.less(SPARE)
        used_s = self.table.used_s.tolist()
        for stream in sorted(self.streams.values(), key=lambda stream: used_s[stream.at]):
            if wanted.excess(host, device) <= 0:
                break
            if stream.idle and stream.partition not in busy:
                going.append(stream)
                host -= stream.host_bytes
                device -= stream.slab.row_bytes if stream.slab is not None else 0
        return going

    def _make_room(self, coming: int) -> None:
        """Evict streams that are stored as they are here, before a slab takes more memory.

        Their last observations are replayed when they are loaded again.
        """
        lists = chain(self.applying, self.committing)
        used = {(partition, name) for partition, names in lists for name in names}
        for stream in self._to_go(coming, self.busy):
            if (stream.partition, stream.name) not in used:
                self.evict(stream)
        self._trim(coming)  # also empty slabs stay: one of them is being filled

    def _trim(self, coming: int = 0) -> None:
        """Give back the memory of rows that no stream has, all of it where room is short."""
        host, device = self.held()
        short = self.room.excess(host, device + coming) > 0
        if sum([slab.trim(eager=short) for slab in self._slabs.values()]):
            give_back()

    def drop_empty_slabs(self) -> None:
        """Free the memory of slabs, and of rows of the table, that no stream needs."""
        self._slabs = {key: slab for key, slab in self._slabs.items() if not slab.empty}
        self._trim()
        if not self.busy and self.table.trim():  # jobs know streams by their rows
            self._lists.clear()

    def measure(self) -> None:
        """Set the gauges of what is held, and of how far checkpoints are behind."""
        now_ms = time.time() * 1000
        behind = self.table.behind
        oldest_ms = self.table.oldest_ms or now_ms
        for stream in self.streams.values():
            # The table has those that are asleep.
            if not stream.asleep and stream.slab is not None and stream.behind:
                head = stream.live()
                behind = max(behind, stream.behind)
                oldest_ms = min(oldest_ms, head.checkpoint_ms)
        metrics.RESIDENT_BYTES.set(sum(self.held()))
        metrics.CHECKPOINT_AGE.set(max(0.0, now_ms - oldest_ms) / 1000)
        metrics.CHECKPOINT_LAG.set(behind)

    def evict(self, stream: Stream) -> None:
        """Forget a stream whose state is safe in Redis."""
        self._host_bytes -= stream.counted_bytes
        stream.counted_bytes = 0
        del self.streams[stream.partition, stream.name]
        self.kept_labels.forget(stream.tail)
        stream.leave()
        self.table.remove(stream)
        self._lists.clear()
        stream.unserved = None  # its traceback holds the stream


def compile_step(slab: Slab, name: str) -> None:
    """Have the step of a model compiled for a GPU; where that cannot be, eager torch is slower."""
    if not slab.device.startswith("cuda"):
        return
    logger.info("compiling the step of %s for %s", name, slab.device)
    began = time.monotonic()
    try:
        slab.compile()
    except (NotCompiled, SubprocessError) as error:
        logger.warning(
            "cannot compile the step of %s for %s, so it is slower: %s (torch.compile needs Triton "
            "and a C compiler)", name, slab.device, error,
        )  # fmt: skip
    else:
        logger.info("compiled the step of %s in %.0f s", name, time.monotonic() - began)


def by_slab(
    work: Iterable[tuple[Stream, T]], coming: Callable[[Head], Slab] | None = None
) -> list[tuple[Slab, list[tuple[Stream, T]]]]:
    """Group work by the slab that its streams are in, large states a few at a time.

    coming: where streams have none yet, which one they will be in.
    """
    groups: dict[int, tuple[Slab, list[tuple[Stream, T]]]] = {}
    for stream, item in work:
        slab = stream.slab if coming is None else coming(stream.live())
        assert slab is not None
        groups.setdefault(id(slab), (slab, []))[1].append((stream, item))
    parts = []
    for slab, group in groups.values():
        most = slab.step_rows
        parts += [(slab, group[i : i + most]) for i in range(0, len(group), most)]
    return parts


USED = 0.8  # of a limit: allocators hold more than is in use
LEAST = 32 << 20  # however small the limit is
CGROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


class Room(NamedTuple):
    """Bytes for streams; device None: their states are on the host with all else."""

    host: int
    device: int | None = None

    def excess(self, host: int, device: int) -> int:
        """By how much the bytes held on the host and on the device are too many."""
        if self.device is None:
            return host + device - self.host
        return max(host - self.host, device - self.device)

    @property
    def for_states(self) -> int:
        """Bytes for states."""
        return self.host if self.device is None else self.device

    def less(self, share: float) -> Room:
        """The room without a share of it."""
        device = None if self.device is None else int((1.0 - share) * self.device)
        return Room(int((1.0 - share) * self.host), device)


def room(device: str, sharing: int = 0) -> Room:
    """What this process may fill beside what it holds now.

    sharing: workers of one machine's service; its API and store take the part of one more.
    """
    mine = int(USED * host_limit() / (sharing + 1)) - own_bytes()
    host = max(LEAST, mine)
    if not device.startswith("cuda"):
        return Room(host)
    free, total = torch.cuda.mem_get_info(torch.device(device))
    return Room(host, max(LEAST, int(USED * min(free, total / max(1, sharing)))))


def host_limit(cgroups: Path = CGROUPS, own: Path = OWN) -> int:
    """Memory of the container, or of the machine where none is set or that is less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in _limit_files(cgroups, own):
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        if text.isdigit():  # else "max"
            limits.append(int(text))
    return min(limits)


def _limit_files(cgroups: Path, own: Path) -> list[Path]:
    """Files of limits on this process's control group and those around it, of both versions.

    Within a container its own group may be mounted as the root.
    """
    try:
        lines = own.read_text().split()
    except OSError:
        lines = []
    files = [cgroups / "memory.max", cgroups / "memory/memory.limit_in_bytes"]
    for line in lines:
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        base = cgroups
        name = "memory.max"
        if controllers:
            base = cgroups / "memory"
            name = "memory.limit_in_bytes"
        if not controllers or "memory" in controllers.split(","):
            place = Path(path.strip("/"))
            files += [base / group / name for group in (place, *place.parents)]
    return files


def give_back() -> None:
    """Return what the allocator of the C library holds free to the system, where it can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def own_bytes() -> int:
    """Memory that this process holds, as far as the system tells."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
