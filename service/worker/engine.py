"""Streams in memory and on the device: load, replay, step, checkpoint, evict."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec
import torch

from model_core import codec
from model_core import filter as moca
from model_core.errors import CorruptState
from service import metrics, wire
from service.events import Reading, track
from service.errors import NumericalFault, ServiceError
from service.redis.store import Store, Stored
from service.settings import Settings
from service.wire import Head, Record
from service.worker import warmup
from service.worker.answers import Answer, Place
from service.worker.catalogue import Catalogue
from service.worker.resident import Readout, Slab
from service.worker.stream import Stream

HOST_BYTES, RECORD_BYTES = 2000, 400  # of a stream and of a record in its tail, about
T = TypeVar("T")


class Engine:
    """Every stream of the partitions that one worker owns, as far as it is loaded."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self.settings, self.store = settings, store
        self.catalogue = Catalogue(settings.models_dir, settings.device)
        self.streams: OrderedDict[tuple[int, str], Stream] = OrderedDict()
        self._slabs: dict[tuple[str, int, int], Slab] = {}

    # --- loading and forgetting ---------------------------------------------------------------

    def load(self, partition: int, names: Iterable[str]) -> None:
        """Have these streams in memory; a stream that cannot be read is marked broken."""
        missing = []
        for name in dict.fromkeys(names):
            if (partition, name) in self.streams:
                self.streams.move_to_end((partition, name))
            else:
                missing.append(name)
        loaded = []
        stored = self.store.load(partition, missing)
        for name, each in zip(missing, stored, strict=True):
            stream = Stream(partition, name, each)
            self.streams[partition, name] = stream
            try:
                stream.recall(each.idempotency)
                stream.head = None if each.head is None else wire.decode_head(each.head)
                self._restore(stream, each.checkpoint)
                loaded.append(stream)
            except (CorruptState, msgspec.MsgspecError) as error:
                self._break(stream, each, str(error))
            except ServiceError as refusal:  # its model is missing: again at the next command
                stream.broken = refusal.detail
        self._replay([s for s in loaded if s.slab is not None])

    def _break(self, stream: Stream, stored: Stored | None, reason: str) -> None:
        """Keep the bytes that cannot be read aside, and answer with the reason."""
        stream.broken = f"stream {stream.name!r}: {reason}"
        stream.set_aside(stored)
        metrics.CORRUPT_STATES.inc()

    def _restore(self, stream: Stream, checkpoint: bytes | None) -> None:
        """Put the stream's last checkpoint on the device; its tail is replayed later."""
        if not stream.alive:
            return
        head = stream.live()
        if not head.warm:
            stream.buffer = [wire.decode_record(each) for each in stream.tail.values()]
            return
        if head.checkpoint and checkpoint is None:
            raise CorruptState(f"its checkpoint at seq {head.checkpoint} is gone")
        slab = self.slab(head)
        prior = slab.prior(head.location or [], head.scale or [])
        if head.checkpoint and checkpoint is not None:
            state = codec.decode(slab.model, prior, slab.max_hypotheses, checkpoint)
        else:
            state = slab.start(prior)
        stream.slab, stream.row = slab, slab.add(state, prior)

    def _replay(self, streams: list[Stream]) -> None:
        """Step streams through the tail beyond their checkpoints; raises no events again."""
        work = []
        for stream in streams:
            first = stream.live().checkpoint
            tail = [wire.decode_record(b) for seq, b in stream.tail.items() if seq >= first]
            if [r.seq for r in tail] != list(range(first, stream.live().seq)):
                self._break(stream, None, f"its tail does not lead from seq {first} to its head")
                continue
            work.append((stream, tail))
        for i in range(max((len(tail) for _, tail in work), default=0)):
            now = [(stream, tail[i]) for stream, tail in work if i < len(tail)]
            for slab, group in _by_slab(now):
                slab.step([s.row for s, _ in group], [r for _, r in group], [0] * len(group))
            metrics.REPLAYED.inc(len(now))

    def forget(self, partition: int) -> None:
        """Drop everything of a partition that is lost; nothing is written."""
        for key in [key for key in self.streams if key[0] == partition]:
            self.streams.pop(key).leave()

    def slab(self, head: Head) -> Slab:
        """Slab of the streams that share this one's model and shape."""
        settings, y_dim = head.settings, head.y_dim or 1
        key = (settings.model, settings.max_hypotheses, y_dim)
        if key not in self._slabs:
            model = self.catalogue.get(settings.model, y_dim)
            device, window = self.settings.device, self.settings.recent_window
            self._slabs[key] = Slab(model, settings.max_hypotheses, device, window)
        return self._slabs[key]

    # --- observing ----------------------------------------------------------------------------

    def observe(self, work: Sequence[tuple[Stream, Answer]]) -> list[ServiceError | None]:
        """Apply one observation to each of several streams; fills in readouts and places."""
        failed: dict[int, ServiceError] = {}
        index = {id(answer): i for i, (_, answer) in enumerate(work)}
        cold: list[tuple[Stream, Answer]] = []
        warm: list[tuple[Stream, Answer]] = []
        self.wake([stream for stream, _ in work])
        for stream, answer in work:
            (cold if stream.slab is None else warm).append((stream, answer))
        for slab, group in _by_slab(warm):
            for answer, refusal in self._advance(slab, group):
                failed[index[id(answer)]] = refusal
        self._warm_up(cold)
        return [failed.get(i) for i in range(len(work))]

    def _advance(
        self, slab: Slab, group: list[tuple[Stream, Answer]]
    ) -> list[tuple[Answer, ServiceError]]:
        rows = [stream.row for stream, _ in group]
        confirmed = [stream.live().confirmed_start for stream, _ in group]
        mixture, readouts = slab.step(rows, [a.record for _, a in group], confirmed)
        faults = []
        for i, ((stream, answer), readout) in enumerate(zip(group, readouts, strict=True)):
            if not readout.ok:
                metrics.NUMERICAL_FAULTS.inc()
                faults.append((answer, _fault(answer.record)))
                continue
            answer.readout, answer.place = readout, Place(mixture, i)
            read(stream, answer, readout)
            _count(stream.live(), answer.record, readout)
            stream.put(answer.record)
        return faults

    def wake(self, streams: Iterable[Stream]) -> None:
        """Begin filtering where no warm-up is needed, or none any more."""
        self._begin([stream for stream in streams if self._needs_no_warmup(stream)])

    def _needs_no_warmup(self, stream: Stream) -> bool:
        """Whether the stream's prior is known before its first label."""
        head = stream.live()
        if head.warm or head.y_dim is None:
            return False
        model = self.catalogue.get(head.settings.model, head.y_dim)
        known = warmup.given(head.settings, model.label)
        if not model.needs_scale:
            known = [0.0] * head.y_dim, [1.0] * head.y_dim
        if known is not None:
            head.location, head.scale = known
        return known is not None

    def _begin(self, streams: list[Stream]) -> None:
        """Start filters with a known location and scale, through what was kept so far."""
        for stream in streams:
            head = stream.live()
            slab = self.slab(head)
            prior = slab.prior(head.location or [], head.scale or [])
            stream.slab, stream.row = slab, slab.add(slab.start(prior), prior)
            head.warm = True
        for i in range(max((len(stream.buffer) for stream in streams), default=0)):
            now = [(s, s.buffer[i]) for s in streams if i < len(s.buffer)]
            metrics.REPLAYED.inc(len(now))
            for slab, group in _by_slab(now):
                confirmed = [s.live().confirmed_start for s, _ in group]
                records = [record for _, record in group]
                _, readouts = slab.step([s.row for s, _ in group], records, confirmed)
                for (stream, record), readout in zip(group, readouts, strict=True):
                    read(stream, Answer(stream.name, "", record), readout)
                    stream.put(record)
        for stream in streams:
            stream.buffer = []

    def _warm_up(self, cold: list[tuple[Stream, Answer]]) -> None:
        """Answer from one regime, keep the records, begin where enough labels are there."""
        ready: dict[tuple[str, int], list[tuple[Stream, Answer, list[list[float]]]]] = {}
        for stream, answer in cold:
            values, head = warmup.labels(stream.buffer), stream.live()
            if warmup.varied(values):
                kind = (head.settings.model, head.y_dim or 1)
                ready.setdefault(kind, []).append((stream, answer, values))
        for (name, y_dim), group in ready.items():
            self._provisional(name, y_dim, group)
        warm = []
        for stream, answer in cold:
            head, record = stream.live(), answer.record
            head.seq += 1
            head.last = _as_list(record.y) or head.last
            stream.buffer.append(record)
            stream.put(record)
            values = warmup.labels(stream.buffer)
            if warmup.complete(values, head.settings.warmup):
                label = self.catalogue.get(head.settings.model, head.y_dim or 1).label
                head.location, head.scale = warmup.estimate(values, head.settings, label)
                warm.append(stream)
        self._begin(warm)

    def _provisional(
        self, name: str, y_dim: int, group: list[tuple[Stream, Answer, list[list[float]]]]
    ) -> None:
        model = self.catalogue.get(name, y_dim)
        settings = [stream.live().settings for stream, _, _ in group]
        values = [each for _, _, each in group]
        mixture = warmup.provisional(model, values, settings, self.settings.device)
        known = [_as_list(a.record.y) or [0.0] * y_dim for _, a, _ in group]
        y = torch.tensor(known, dtype=torch.float64, device=self.settings.device)
        scores = mixture.log_prob(y).tolist()
        for i, ((_, answer, _), score) in enumerate(zip(group, scores, strict=True)):
            answer.place = Place(mixture, i)
            if answer.record.y is not None and math.isfinite(score):
                answer.record.log_score = score

    # --- keeping ------------------------------------------------------------------------------

    def checkpoint(self, partition: int, streams: Iterable[Stream]) -> None:
        """Write these streams' states, and have their heads point at them."""
        blobs = []
        for stream in streams:
            if stream.slab is None or stream.live().checkpoint == stream.live().seq:
                continue
            head = stream.live()
            blob = codec.encode(stream.slab.model, stream.slab.state(stream.row))
            blobs.append((stream, (stream.name, f"{head.generation}:{head.seq}", blob)))
            metrics.CHECKPOINT_BYTES.observe(len(blob))
        if blobs:
            self.store.put_checkpoints(partition, [blob for _, blob in blobs])
        for stream, _ in blobs:
            stream.moved_checkpoint(stream.live().seq)

    def checkpoint_due(self, partition: int, streams: Iterable[Stream]) -> None:
        """Write the states of those whose turn it is."""
        every = self.settings.checkpoint_every
        due = [s for s in streams if s.alive and s.slab is not None and s.checkpoint_due(every)]
        self.checkpoint(partition, due)

    def resize(self, stream: Stream, max_hypotheses: int) -> None:
        """Move a stream to a slab of another size, keeping its likeliest hypotheses."""
        head = stream.live()
        old, row = stream.slab, stream.row
        head.settings.max_hypotheses = max_hypotheses
        if old is None:
            return
        prior = old.row_prior(row)
        state = moca.resize(old.state(row), prior, max_hypotheses)
        stream.leave()
        stream.slab = self.slab(head)
        stream.row = stream.slab.add(state, prior)
        self.checkpoint(stream.partition, [stream])

    def crowded(self) -> list[Stream]:
        """Idle streams used longest ago, as many as must go to keep within `resident_bytes`."""
        excess = sum(map(_size, self.streams.values())) - self.settings.resident_bytes
        going = []
        for stream in self.streams.values():
            if excess <= 0:
                break
            if stream.idle:
                going.append(stream)
                excess -= _size(stream)
        return going

    def drop_broken(self, keys: Iterable[tuple[int, str]]) -> None:
        """Forget streams that could not be read: what is wrong may be mended meanwhile."""
        for key in keys:
            if key in self.streams and self.streams[key].broken is not None:
                self.evict(self.streams[key])

    def resident(self) -> int:
        """Number of streams whose state is on the device."""
        return sum(stream.slab is not None for stream in self.streams.values())

    def oldest_checkpoint_s(self, now_s: float) -> float:
        """Age of the oldest checkpoint among streams that have moved on since, in seconds."""
        marks = [s.checkpoint_ms for s in self.streams.values() if s.behind_checkpoint]
        return max(0.0, now_s - min(marks) / 1000) if marks else 0.0

    def evict(self, stream: Stream) -> None:
        """Forget a stream whose state is safe in Redis."""
        del self.streams[stream.partition, stream.name]
        stream.leave()


def _size(stream: Stream) -> int:
    """Rough bytes that a loaded stream takes on the device and the host together."""
    row = stream.slab.row_bytes if stream.slab is not None else 0
    return row + HOST_BYTES + RECORD_BYTES * len(stream.tail)


def read(stream: Stream, answer: Answer, readout: Readout) -> None:
    """Enter a step's numbers into the record and the head, and follow the events."""
    record, head = answer.record, stream.live()
    seq = record.seq
    record.log_score = None if math.isnan(readout.log_score) else readout.log_score
    record.changed_probability = readout.changed_probability
    record.changepoint_probability = readout.changepoint_probability if seq else None
    record.recent_change_probability = readout.recent_change_probability
    record.map_run_length = readout.map_run_length
    record.previous_start = readout.born_previous_start
    start = seq - readout.map_run_length
    reading = Reading(
        seq, record.time, start, readout.map_probability, readout.map_previous_start,
        readout.totals, readout.start_totals,
    )  # fmt: skip
    events = track(head, reading)
    if events:
        answer.event = events[-1]
        stream.raise_events(events)
        for event in events:
            metrics.CHANGEPOINTS.labels(head.settings.model, event.state).inc()
    head.best_start = readout.best_start
    head.map_run_length = readout.map_run_length
    head.changed_probability = readout.changed_probability
    head.pruned_mass = readout.pruned_mass
    head.pruned_mass_sum += readout.pruned_mass


def _fault(record: Record) -> NumericalFault:
    return NumericalFault(
        f"the filter's step at seq {record.seq} did not stay finite; "
        "the observation was not applied",
        seq=record.seq,
    )


def _count(head: Head, record: Record, readout: Readout) -> None:
    head.seq += 1
    if record.log_score is not None:
        head.log_score_sum += record.log_score
        head.scored += 1
        metrics.LOG_SCORE.observe(record.log_score)
    metrics.CHANGEPOINT_PROBABILITY.observe(readout.changepoint_probability)
    metrics.CHANGED_PROBABILITY.observe(readout.changed_probability)
    head.last = _as_list(record.y) or head.last


def _as_list(y: float | list[float] | None) -> list[float]:
    if y is None:
        return []
    return y if isinstance(y, list) else [y]


def _by_slab(work: Iterable[tuple[Stream, T]]) -> list[tuple[Slab, list[tuple[Stream, T]]]]:
    groups: dict[int, tuple[Slab, list[tuple[Stream, T]]]] = {}
    for stream, item in work:
        assert stream.slab is not None
        groups.setdefault(id(stream.slab), (stream.slab, []))[1].append((stream, item))
    return list(groups.values())
