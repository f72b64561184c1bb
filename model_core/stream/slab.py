"""Filters of many series of one model, a row each, stepped where they lie."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_core import anomaly, codec, readout
from model_core import belief as beliefs
from model_core import compiled as places
from model_core import filter as moca
from model_core.belief import Belief
from model_core.filter import FilterState, Prior
from model_core.quantiles import with_normal
from model_core.readout import Readout
from model_core.stream import columns
from model_core.stream.chunks import Chunk, Chunks
from model_core.stream.columns import Columns, Floats
from model_core.stream.predictives import MixtureRow, PredictiveRow, SummaryRow
from model_core.summary import Summary
from model_core.table import Layout, Rows
from model_core.transfer import on_host, to_host
from model_core.upm.base import UnderlyingModel

OK_COLUMN = list(readout.NUMBERS).index("ok")
RECENT_RUN_LENGTHS = 5  # 0 to 4: a change within the last five observations is a recent one
AT_ONCE = 64  # observations of one series in a call of a kernel
CHUNK_BYTES = 64 << 20  # of a slab's memory that is taken, and given back, at a time
STEP_BYTES = 128 << 20  # of the states that are stepped at once
NEVER = np.iinfo(np.int64).max  # later than any run length
# Run lengths and their probabilities, by place of the observation that follows.
Overrides = Mapping[int, Sequence[tuple[int, float]]]
NO_OVERRIDES: Overrides = MappingProxyType({})


class Refused(Exception):
    """The filter cannot take an observation: a step of it was not finite. Nothing has changed."""


class Past(NamedTuple):
    """Observations that count as applied, one after the other.

    previous: where the best path before a regime that starts at each of them starts; -1: none.
    overrides: of the belief, before these of them; before one more: after the last.
    """

    seen: Columns
    previous: Sequence[int] = ()
    overrides: Overrides = NO_OVERRIDES

    def part(self, start: int, end: int) -> Past:
        """Some of them, with the overrides before them."""
        overrides = {
            at - start: belief for at, belief in self.overrides.items() if start <= at < end
        }
        return Past(self.seen.part(slice(start, end)), self.previous[start:end], overrides)

    def last(self, count: int) -> Past:
        """The last of them."""
        return self.part(self.seen.rows - count, self.seen.rows)


class Probabilities(NamedTuple):
    """Run lengths of the surviving hypotheses, the shortest first, and their probabilities."""

    run_length: list[int]
    probability: list[float]

    def pairs(self) -> list[tuple[int, float]]:
        """Each run length with its probability."""
        return list(zip(*self, strict=True))


class Step(NamedTuple):
    """One step of one row; where its readout is not `ok` the row is as it was.

    predictive: of the label, before it was seen. anomaly: nan without a label. belief: after the
    step, where it is wanted.
    """

    readout: Readout
    predictive: PredictiveRow
    anomaly: float
    belief: Probabilities | None = None


def probabilities(
    log_prob: NDArray[np.float64], run_length: NDArray[np.int64]
) -> list[Probabilities]:
    """Surviving hypotheses of beliefs (B, S)."""
    alive = np.isfinite(log_prob)
    order = np.where(alive, run_length, NEVER).argsort(1, kind="stable")
    lengths = np.take_along_axis(run_length, order, 1).tolist()
    chances = np.exp(np.take_along_axis(log_prob, order, 1)).tolist()
    rows = zip(lengths, chances, alive.sum(1).tolist(), strict=True)
    return [Probabilities(r[:count], p[:count]) for r, p, count in rows]


class Slab:
    """Fixed-size states of many series, a row each, in chunks of memory."""

    def __init__(
        self,
        model: UnderlyingModel,
        max_hypotheses: int,
        levels: Sequence[float],
        device: str = "cpu",
        chunk_bytes: int = CHUNK_BYTES,
        step_bytes: int = STEP_BYTES,
        make_room: Callable[[int], None] | None = None,
        expected: int = 0,
    ) -> None:
        """Hold no series yet.

        levels: of the quantiles in summaries; without any predictives are not summarised.
        make_room: called with the bytes of a chunk before it is taken. expected: rows, if known.
        """
        self.model = model
        self.max_hypotheses = max_hypotheses
        self.device = device
        # Elsewhere than on the CPU, and of models that have none, the eager filter steps all rows.
        self._kernel = places.kernel_of(model) if torch.device(device).type == "cpu" else None
        self._partial = model.partial and model.y_dim > 1  # whether labels may lack outputs
        self._make_room = make_room
        self._levels = with_normal(levels)
        self._layout = Layout(model, max_hypotheses, device)
        self._chunks = Chunks(self._layout.blank, chunk_bytes, expected)
        self._held: dict[Chunk, Rows] = {}  # as the kernel has them
        # States of `anomaly` lie on the host, under the same numbers.
        self._outputs = anomaly.outputs(model)
        like = torch.empty(1, anomaly.size(self._outputs), dtype=torch.float64)
        most_rows = max(1, chunk_bytes // self._chunks.row_bytes)
        self._ranks = Chunks([like], most_rows * like.nbytes)
        self.row_bytes = self._chunks.row_bytes + self._ranks.row_bytes
        self.step_rows = max(1, step_bytes // self.row_bytes)

    # --- rows -----------------------------------------------------------------------------------

    @property
    def empty(self) -> bool:
        """Whether no series is here."""
        return not len(self._chunks)

    @property
    def rows(self) -> int:
        """Rows that memory is held for."""
        return self._chunks.rows

    @property
    def nbytes(self) -> int:
        """Memory that is held."""
        held = self._chunks, self._ranks
        return sum(chunks.rows * chunks.row_bytes for chunks in held)

    @property
    def spare_bytes(self) -> int:
        """Memory of rows that no series has."""
        return self.nbytes - len(self._chunks) * self.row_bytes

    @property
    def in_series(self) -> bool:
        """Whether several observations of one row are stepped in one call, by a kernel."""
        return self._kernel is not None

    def trim(self, eager: bool = True) -> int:
        """Give back memory that no series needs; returns its bytes. eager: all of it."""
        self._held.clear()
        return self._chunks.trim(eager) + self._ranks.trim(eager)

    def add(self, state: FilterState, prior: Prior, ranks: Floats) -> int:
        """Make one series resident; ranks: see `ranks`. Returns its row."""
        (row,) = self._add([ranks], self._layout.packed(state, prior))
        return row

    def begin(self, locations: list[list[float]], scales: list[list[float]]) -> list[int]:
        """Make series resident that have no observation yet; returns their rows."""
        ranks = [
            anomaly.begin(self.model, location, scale)
            for location, scale in zip(locations, scales, strict=True)
        ]
        return self._add(ranks, self._fresh(locations, scales))

    def begin_anew(self, row: int, location: list[float], scale: list[float]) -> None:
        """Put a row before its first observation; its ranks stay."""
        self._chunks.write([row], self._fresh([location], [scale]))

    def _fresh(self, locations: list[list[float]], scales: list[list[float]]) -> Sequence[Tensor]:
        prior = moca.make_prior(self.model, self._tensor(locations), self._tensor(scales))
        return self._layout.begin(prior)

    def _add(self, ranks: Iterable[Floats], tensors: Sequence[Tensor]) -> list[int]:
        rows = []
        for row_ranks in ranks:
            if self._make_room is not None:
                held = self._chunks, self._ranks
                coming = sum(chunks.next_bytes for chunks in held if chunks.full)
                if coming:
                    self._make_room(coming)
            rows.append(self._chunks.reserve())
            self._put_ranks(self._ranks.reserve(), row_ranks)  # both number their rows from 0
        self._chunks.write(rows, tensors)
        return rows

    def remove(self, row: int) -> None:
        """Forget a row."""
        self._chunks.remove(row)
        self._ranks.remove(row)

    def state(self, row: int) -> FilterState:
        """State of one series (batch 1), a copy."""
        return self._layout.state(*self._chunks.read([row]))

    def prior(self, row: int) -> Prior:
        """Prior of one series (batch 1), a copy."""
        return self._layout.prior(*self._chunks.read([row]))

    def states(self, rows: Sequence[int]) -> Iterator[FilterState]:
        """States of series (batch 1 each) on the host, in order: one copy for all.

        Where rows lie on the host nothing is copied: each is good until its row changes.
        """
        if on_host(self._layout.blank[0]):
            held = [self._chunks.place(row) for row in rows]
            lying = [(chunk.tensors, row) for chunk, row in held]
        else:
            tensors = to_host(self._chunks.read(rows))
            lying = [(tensors, i) for i in range(len(rows))]
        for (lines, heads), row in lying:
            yield self._layout.state(lines[row : row + 1], heads[row : row + 1])

    def batch(self, rows: Sequence[int]) -> tuple[FilterState, Prior]:
        """States and priors of series, on their device: good until the rows change.

        Those that lie together, as ones that were made together do, are not copied.
        """
        groups = self._chunks.places(rows)
        (chunk, lying, _), *more = groups
        if not more and lying == list(range(lying[0], lying[0] + len(rows))):
            tensors = [tensor[lying[0] : lying[0] + len(rows)] for tensor in chunk.tensors]
        else:
            tensors = self._chunks.read(rows)
        return self._layout.state(*tensors), self._layout.prior(*tensors)

    def fill(self, rows: Sequence[int], state: FilterState, prior: Prior) -> None:
        """Put states and priors in place of those of rows, or one of each (batch 1) in all."""
        tensors = self._layout.packed(state, prior)
        self._chunks.write(rows, [part.expand(len(rows), *part.shape[1:]) for part in tensors])

    def put(
        self,
        row: int,
        state: FilterState,
        ranks: Floats | None = None,
        prior: Prior | None = None,
    ) -> None:
        """Put a state (batch 1) in place of a row's; ranks: see `ranks`, None leaves them."""
        own = self.prior(row) if prior is None else prior
        self._chunks.write([row], self._layout.packed(state, own))
        if ranks is not None:
            self._put_ranks(row, ranks)

    def read(self, rows: Sequence[int]) -> list[Tensor]:
        """All that is kept of rows, copied: tensors (B, ...)."""
        return [*self._chunks.read(rows), *self._ranks.read(rows)] if rows else []

    def write(self, rows: Sequence[int], tensors: Sequence[Tensor]) -> None:
        """Replace all that is kept of rows; tensors: as `read` returns them."""
        if rows:
            self._chunks.write(rows, tensors[:-1])
            self._ranks.write(rows, tensors[-1:])

    def ranks(self, row: int) -> Floats:
        """State of `anomaly` of one series, a copy."""
        chunk, place = self._ranks.place(row)
        state: Floats = chunk.tensors[0].numpy()[place].copy()
        return state

    def _put_ranks(self, row: int, ranks: Floats) -> None:
        chunk, place = self._ranks.place(row)
        chunk.tensors[0].numpy()[place] = ranks

    def decoded(self, row: int, blob: bytes) -> tuple[FilterState, Floats]:
        """States of one series from bytes, as `put` takes them; raises BadState."""
        state = codec.decode(self.model, self.prior(row), self.max_hypotheses, blob)
        return state, codec.decode_ranks(self.model, blob, anomaly.size(self._outputs))

    def encoded(self, row: int, state: FilterState, seasons: Floats | None = None) -> bytes:
        """Bytes of one series; state, seasons: its own."""
        return codec.encode(self.model, state, self.ranks(row), seasons)

    def belief(self, row: int) -> Probabilities:
        """Surviving hypotheses of one series."""
        own = self.state(row).belief
        (belief,) = probabilities(own.log_prob.cpu().numpy(), own.run_length.cpu().numpy())
        return belief

    def restate(self, row: int, stated: Sequence[tuple[int, float]]) -> Belief:
        """Override a row's belief by probabilities of run lengths; returns it."""
        state = self.state(row)
        belief = beliefs.restate(state.belief, stated)
        self.put(row, state._replace(belief=belief))
        return belief

    # --- steps ----------------------------------------------------------------------------------

    def step(
        self,
        rows: Sequence[int],
        seen: Columns,
        confirmed: list[int],
        thresholds: list[float],
        detailed: Sequence[bool] = (),
        summarised: bool = True,
    ) -> list[Step]:
        """Step distinct rows by one observation each; reads out what the host needs, at once.

        confirmed: start of the last confirmed event of each. thresholds: of `changed_probability`,
        at which one is; 0 where it takes time. detailed: rows whose mixture itself is wanted, not
        only its summary; none if empty. summarised: whether predictives are wanted at all.
        """
        inputs = columns.packed(self.model, seen, confirmed, thresholds)
        stepped: dict[int, tuple[Readout, PredictiveRow]] = {}
        if self._kernel is not None:
            wanted = [i for i in range(len(rows)) if not (detailed and detailed[i])]
            if self._partial:
                whole = self._whole(seen.y)
                wanted = [i for i in wanted if whole[i]]
            stepped = self._step_compiled(rows, seen, inputs, wanted, summarised)
        # Rows of details, of labels with missing outputs, and those that are not finite: what
        # becomes of them eager steps decide.
        left = [i for i in range(len(rows)) if i not in stepped]
        if left:
            again = self._step_eagerly([rows[i] for i in left], inputs[left], seen.hazard[left])
            stepped.update(zip(left, again, strict=True))
        in_order = [stepped[i] for i in range(len(rows))]
        return self._ranked(rows, seen.y, in_order)

    def through(
        self,
        row: int,
        seen: Columns,
        confirmed: Callable[[], int],
        threshold: float,
        summarised: bool = True,
        believed: bool = False,
    ) -> Iterator[Step]:
        """Step one row by one observation after the other, in few calls of its kernel.

        To be taken to the end, or to the first step that is not `ok`. confirmed: start of the last
        confirmed event by now, which the caller may move after each step. Observations are stepped
        `AT_ONCE` as if nothing was confirmed on the way; where it was, those after it are stepped
        anew: their numbers are about another start. believed: whether beliefs are wanted.
        """
        at = 0
        while at < seen.rows:
            coming = seen.part(slice(at, at + AT_ONCE))
            whole = self._whole(coming.y)
            count = coming.rows if whole.all() else int(whole.argmin())
            used = 0
            if self._kernel is not None and count > 1:
                coming = coming.part(slice(count))
                used = yield from self._series(
                    row, coming, confirmed, threshold, summarised, believed
                )
            if not used:
                used = 1
                one = seen.part(slice(at, at + 1))
                (step,) = self.step([row], one, [confirmed()], [threshold], (), summarised)
                yield step._replace(belief=self.belief(row)) if believed else step
            at += used

    def replay(
        self,
        row: int,
        past: Past,
        confirmed: Callable[[], int] = lambda: 0,
        threshold: float = 0.0,
    ) -> Iterator[Readout]:
        """Step one row through what counts as applied; a label that it refuses counts as missing.

        confirmed, threshold: as of `through`. Overrides that the state has already change nothing.
        The row may be ahead of what was yielded until all was. Raises Refused where it takes no
        observation at all, of a model whose numbers are not finite.
        """
        seen = past.seen
        overrides = past.overrides
        at = 0
        while at < seen.rows:
            if at in overrides:
                self.restate(row, overrides[at])
            end = min([seen.rows, *(i for i in overrides if i > at)])
            left = seen.part(slice(at, end))
            for step in self.through(row, left, confirmed, threshold, summarised=False):
                if not step.readout.ok:
                    if np.isnan(seen.y[at]).all():
                        raise Refused(
                            "an observation without a label: the model's numbers are not finite"
                        )
                    seen = seen.unlabelled(at)
                    break
                at += 1
                yield step.readout

    def _series(
        self,
        row: int,
        seen: Columns,
        confirmed: Callable[[], int],
        threshold: float,
        summarised: bool,
        believed: bool,
    ) -> Generator[Step, None, int]:
        """Step a row by the kernel, in one call; returns how many of the observations were taken.

        Those before the first that it refuses, or before which an event was confirmed.
        """
        start = confirmed()
        before = self._chunks.read([row])
        ranks = self.ranks(row)
        inputs = columns.packed(self.model, seen, start, threshold)
        used = 0
        for step in self._advance_series(row, seen, inputs, summarised, believed):
            if confirmed() != start:
                break
            used += 1
            yield step
        if used < seen.rows:
            self._chunks.write([row], before)
            self._put_ranks(row, ranks)
            if used:
                again = seen.part(slice(used))
                for _ in self._advance_series(row, again, inputs[:used], False, False):
                    pass
        return used

    def _advance_series(
        self, row: int, seen: Columns, inputs: Floats, summarised: bool, believed: bool
    ) -> list[Step]:
        """Steps of a row by the kernel, before the first that it refuses; all are made."""
        chunk, place = self._chunks.place(row)
        at = np.full(seen.rows, place, dtype=np.int64)
        room = np.empty((seen.rows if believed else 0, 2, self._layout.slots))
        table, summary = self._advance(chunk, at, inputs, seen.hazard, summarised, room)
        refused = np.flatnonzero(table[:, OK_COLUMN] <= 0)
        fine = int(refused[0]) if len(refused) else seen.rows
        readouts = readout.rows(table[:fine]) if fine else []
        pairs = [(line, SummaryRow(summary, i)) for i, line in enumerate(readouts)]
        steps = self._ranked([row] * fine, seen.y[:fine], pairs)
        if not believed:
            return steps
        held = probabilities(room[:fine, 0], room[:fine, 1].astype(np.int64))
        return [step._replace(belief=belief) for step, belief in zip(steps, held, strict=True)]

    def _ranked(
        self,
        rows: Sequence[int],
        y: Floats,
        stepped: Sequence[tuple[Readout, PredictiveRow]],
    ) -> list[Step]:
        """Steps with their anomalies, which are taken in, in order.

        What was refused counts as if it had not come.
        """
        if not rows:
            return []
        surprises = np.array([-line.log_score if line.ok else math.nan for line, _ in stepped])
        labels = np.ascontiguousarray(y[:, : self._outputs])
        values = np.empty(len(rows))
        for chunk, lying, at in self._ranks.places(rows):
            chosen = np.array(lying, dtype=np.int64)
            states = chunk.tensors[0].numpy()
            values[at] = anomaly.observe_rows(states, chosen, surprises[at], labels[at])
        pairs = zip(stepped, values.tolist(), strict=True)
        return [Step(line, place, value) for (line, place), value in pairs]

    def _whole(self, y: Floats) -> NDArray[np.bool_]:
        """Which labels the kernel takes: those of which no output alone is missing."""
        if not self._partial:
            return np.ones(len(y), dtype=bool)
        missing = np.isnan(y)
        return np.asarray(missing.all(1) | ~missing.any(1))

    def _step_compiled(
        self,
        rows: Sequence[int],
        seen: Columns,
        inputs: Floats,
        wanted: list[int],
        summarised: bool,
    ) -> dict[int, tuple[Readout, PredictiveRow]]:
        """Step the `wanted` of the rows where they lie; returns those that stayed finite."""
        stepped: dict[int, tuple[Readout, PredictiveRow]] = {}
        for chunk, lying, at in self._chunks.places([rows[i] for i in wanted]):
            chosen = [wanted[i] for i in at]
            place = np.array(lying, dtype=np.int64)
            # As a rule all are wanted and lie in one chunk: nothing is copied.
            part = slice(None) if len(chosen) == len(rows) else chosen
            table, summary = self._advance(
                chunk, place, inputs[part], seen.hazard[part], summarised
            )
            fine = np.flatnonzero(table[:, OK_COLUMN] > 0)
            readouts = readout.rows(table[fine]) if len(fine) else []
            for i, line in zip(fine.tolist(), readouts, strict=True):
                stepped[chosen[i]] = line, SummaryRow(summary, i)
        return stepped

    def _step_eagerly(
        self, rows: Sequence[int], inputs: Floats, hazard: Floats
    ) -> list[tuple[Readout, PredictiveRow]]:
        with torch.inference_mode():
            held = self._chunks.read(rows)
            state = self._layout.state(*held)
            prior = self._layout.prior(*held)
            observed = columns.inputs_of(self.model, inputs, hazard, self.device)
            state, info = moca.step(self.model, state, prior, observed)
            starts = torch.from_numpy(inputs[:, places.CONFIRMED]).long().to(self.device)
            alarms = torch.from_numpy(inputs[:, places.THRESHOLD]).to(self.device)
            table = readout.table(state, info, starts, alarms, RECENT_RUN_LENGTHS)
            self._chunks.write(rows, self._layout.packed(state, prior))
            readouts = readout.rows(table)
            if self.model.typical:
                regimes = readout.typical_regimes(self.model, state)
                pairs = zip(readouts, regimes, strict=True)
                readouts = [line._replace(regime=regime) for line, regime in pairs]
        # Growth gave each slot the run length it has here: pruning only empties slots.
        run_length = state.belief.run_length
        return [
            (line, MixtureRow(info.predictive, i, run_length)) for i, line in enumerate(readouts)
        ]

    def _advance(
        self,
        chunk: Chunk,
        rows: NDArray[np.int64],
        inputs: Floats,
        hazard: Floats,
        summarised: bool,
        room: Floats = places.NO_BELIEFS,
    ) -> tuple[Floats, Summary]:
        """Step rows of a chunk by the compiled kernel: the table of `readout`, and summaries.

        room: for beliefs, see `compiled.kernel.Kernel.advance`.
        """
        assert self._kernel is not None
        held = self._held.get(chunk)
        if held is None:
            held = self._held[chunk] = self._layout.rows(*chunk.tensors)
        return self._kernel.advance(
            held,
            rows,
            np.ascontiguousarray(inputs),
            np.ascontiguousarray(hazard),
            RECENT_RUN_LENGTHS,
            self._levels,
            summarised and self._levels.shape[1] > 0,
            room,
        )

    def _tensor(self, values: list[list[float]]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=self.device)
