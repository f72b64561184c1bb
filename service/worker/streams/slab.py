"""Streams resident on the device: one slab of rows for each model and max_hypotheses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor

from model_core import belief as beliefs
from model_core import codec, readout
from model_core import compiled as columns
from model_core import filter as moca
from model_core.belief import Belief
from model_core.filter import FilterState, Inputs, Prior
from model_core.quantiles import with_normal
from model_core.readout import Readout
from model_core.summary import Summary
from model_core.table import Layout, Rows
from model_core.transfer import on_host, to_device, to_host
from model_core.upm.base import UnderlyingModel
from service.wire import Record, partial
from service.worker.streams import step_inputs
from service.worker.streams.anomalies import Anomalies, Floats
from service.worker.streams.answers import LEVELS, MixtureRow, PredictiveRow, SummaryRow
from service.worker.streams.chunks import Chunk, Chunks

OK_COLUMN = list(readout.NUMBERS).index("ok")
RECENT_RUN_LENGTHS = 5  # 0 to 4: a change within the last five observations is a recent one
CHUNK_BYTES = 64 << 20  # of a slab's memory that is taken, and given back, at a time
STEP_BYTES = 128 << 20  # of the states that are stepped at once
NEVER = np.iinfo(np.int64).max  # later than any run length


class Probabilities(NamedTuple):
    """Run lengths of the surviving hypotheses, the shortest first, and their probabilities."""

    run_length: list[int]
    probability: list[float]

    def pairs(self) -> list[tuple[int, float]]:
        """Each run length with its probability."""
        return list(zip(*self, strict=True))


class SlabStep(NamedTuple):
    """Readouts of the rows, in order, where the predictive of each is, and its anomaly.

    anomalies: None without a label. beliefs: after each of several observations of one row, where
    they are wanted.
    """

    readouts: list[Readout]
    places: list[PredictiveRow]
    anomalies: Sequence[float | None] = ()
    beliefs: list[Probabilities] | None = None


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
    """Fixed-size states of many streams, a row each, in chunks of memory."""

    def __init__(
        self,
        model: UnderlyingModel,
        max_hypotheses: int,
        device: str,
        chunk_bytes: int = CHUNK_BYTES,
        step_bytes: int = STEP_BYTES,
        make_room: Callable[[int], None] | None = None,
    ) -> None:
        """Hold no stream yet; make_room: called with the bytes of a chunk before it is taken."""
        self.model = model
        self.max_hypotheses = max_hypotheses
        self.device = device
        # Elsewhere than on the CPU, and of models that have none, the eager filter steps all rows.
        self._kernel = columns.kernel_of(model) if torch.device(device).type == "cpu" else None
        self._partial = model.partial and model.y_dim > 1  # whether labels may lack outputs
        self._make_room = make_room
        self._layout = Layout(model, max_hypotheses, device)
        self._levels = with_normal(LEVELS)
        self._chunks = Chunks(self._layout.blank, chunk_bytes)
        self._held: dict[Chunk, Rows] = {}
        self._anomalies = Anomalies(model, max(1, chunk_bytes // self._chunks.row_bytes))
        self.row_bytes = self._chunks.row_bytes + self._anomalies.chunks.row_bytes
        self.step_rows = max(1, step_bytes // self.row_bytes)

    @property
    def empty(self) -> bool:
        """Whether no stream is here."""
        return not len(self._chunks)

    @property
    def rows(self) -> int:
        """Rows that memory is held for."""
        return self._chunks.rows

    @property
    def nbytes(self) -> int:
        """Memory that is held."""
        held = self._chunks, self._anomalies.chunks
        return sum(chunks.rows * chunks.row_bytes for chunks in held)

    @property
    def spare_bytes(self) -> int:
        """Memory of rows that no stream has."""
        return self.nbytes - len(self._chunks) * self.row_bytes

    def trim(self, eager: bool = True) -> int:
        """Give back memory that no stream needs; returns its bytes. eager: all of it."""
        self._held.clear()
        return self._chunks.trim(eager) + self._anomalies.chunks.trim(eager)

    def add(self, state: FilterState, prior: Prior, ranks: Floats) -> int:
        """Make one stream resident; ranks: see `ranks`. Returns its row."""
        (row,) = self._add([ranks], self._layout.packed(state, prior))
        return row

    def begin(self, locations: list[list[float]], scales: list[list[float]]) -> list[int]:
        """Make streams resident that have no observation yet; returns their rows."""
        prior = moca.make_prior(self.model, self._tensor(locations), self._tensor(scales))
        ranks = map(self._anomalies.start, locations, scales)
        return self._add(ranks, self._layout.begin(prior))

    def _add(self, ranks: Iterable[Floats], tensors: Sequence[Tensor]) -> list[int]:
        rows = []
        for row_ranks in ranks:
            if self._make_room is not None:
                held = self._chunks, self._anomalies.chunks
                coming = sum(chunks.next_bytes for chunks in held if chunks.full)
                if coming:
                    self._make_room(coming)
            rows.append(self._chunks.reserve())
            self._anomalies.add(row_ranks)  # both number their rows from 0
        self._chunks.write(rows, tensors)
        return rows

    def remove(self, row: int) -> None:
        """Forget a row."""
        self._chunks.remove(row)
        self._anomalies.chunks.remove(row)

    def state(self, row: int) -> FilterState:
        """State of one stream (batch 1), a copy."""
        return self._layout.state(*self._chunks.read([row]))

    def ranks(self, row: int) -> Floats:
        """State of `anomaly` of one stream, a copy."""
        return self._anomalies.get(row)

    def decoded(self, row: int, blob: bytes) -> tuple[FilterState, Floats]:
        """States of one stream from bytes, as `put` takes them; raises BadState."""
        state = codec.decode(self.model, self.row_prior(row), self.max_hypotheses, blob)
        return state, codec.decode_ranks(self.model, blob, self._anomalies.size)

    def encoded(self, row: int, state: FilterState, seasons: Floats | None = None) -> bytes:
        """Bytes of one stream; state, seasons: its own."""
        return codec.encode(self.model, state, self.ranks(row), seasons)

    def belief(self, row: int) -> Probabilities:
        """Surviving hypotheses of one stream."""
        state = self.state(row).belief
        (belief,) = probabilities(state.log_prob.cpu().numpy(), state.run_length.cpu().numpy())
        return belief

    def states(self, rows: Sequence[int]) -> Iterator[FilterState]:
        """States of streams (batch 1 each) on the host, in order: one copy for all.

        Where rows lie on the host nothing is copied: each is good until its row changes.
        """
        if on_host(self._layout.blank[0]):
            held = [self._chunks.place(row) for row in rows]
            places = [(chunk.tensors, row) for chunk, row in held]
        else:
            tensors = to_host(self._chunks.read(rows))
            places = [(tensors, i) for i in range(len(rows))]
        for (lines, heads), row in places:
            yield self._layout.state(lines[row : row + 1], heads[row : row + 1])

    def put(self, row: int, state: FilterState, ranks: Floats | None = None) -> None:
        """Put a state (batch 1) in place of a row's; ranks: see `ranks`, None leaves them."""
        self._chunks.write([row], self._layout.packed(state, self.row_prior(row)))
        if ranks is not None:
            self._anomalies.put(row, ranks)

    def restate(self, row: int, stated: Sequence[tuple[int, float]]) -> Belief:
        """Override a row's belief by probabilities of run lengths; returns it."""
        state = self.state(row)
        belief = beliefs.restate(state.belief, stated)
        self.put(row, state._replace(belief=belief))
        return belief

    def row_prior(self, row: int) -> Prior:
        """Prior of one stream (batch 1)."""
        return self._layout.prior(*self._chunks.read([row]))

    def step(
        self,
        rows: list[int],
        records: list[Record],
        confirmed: list[int],
        thresholds: list[float] | None = None,
        detailed: Sequence[bool] = (),
        summarised: bool = True,
    ) -> SlabStep:
        """Step distinct rows by one observation each; reads out what the host needs, at once.

        confirmed: start of the last confirmed event of each. thresholds: of `changed_probability`,
        at which one is; 0 where it takes time. detailed: rows whose mixture itself is wanted, not
        only its summary; none if empty. summarised: whether predictives are wanted at all.
        """
        alarms = thresholds or [0.0] * len(rows)
        if self._kernel is None:
            step = self._step_eagerly(rows, records, confirmed, alarms)
        else:
            step = self._step_quickly(rows, records, confirmed, alarms, detailed, summarised)
        return step._replace(anomalies=self._anomalies.observe(rows, records, step.readouts))

    def _step_quickly(
        self,
        rows: list[int],
        records: list[Record],
        confirmed: list[int],
        alarms: list[float],
        detailed: Sequence[bool],
        summarised: bool,
    ) -> SlabStep:
        """Step by the compiled kernel where that serves, else eagerly."""
        wanted = [i for i in range(len(rows)) if not (detailed and detailed[i])]
        if self._partial:
            wanted = [i for i in wanted if not partial(records[i].y)]
        stepped = self._step_compiled(rows, records, confirmed, alarms, wanted, summarised)
        # Rows of details, of labels with missing outputs, and those that are not finite: what
        # becomes of them eager steps decide.
        left = [i for i in range(len(rows)) if i not in stepped]
        if left:
            again = self._step_eagerly(
                [rows[i] for i in left],
                [records[i] for i in left],
                [confirmed[i] for i in left],
                [alarms[i] for i in left],
            )
            stepped.update(zip(left, zip(again.readouts, again.places, strict=True), strict=True))
        in_order = [stepped[i] for i in range(len(rows))]
        return SlabStep([readout for readout, _ in in_order], [place for _, place in in_order])

    @property
    def in_series(self) -> bool:
        """Whether several observations of one row are stepped in one call, by a kernel."""
        return self._kernel is not None

    def ready(self, records: Sequence[Record]) -> Sequence[Record]:
        """The first records, up to one that only an eager step takes: of missing outputs."""
        if not self._partial:
            return records
        end = next((i for i, record in enumerate(records) if partial(record.y)), len(records))
        return records[:end]

    def series(
        self,
        row: int,
        records: Sequence[Record],
        confirmed: int,
        threshold: float = 0.0,
        summarised: bool = True,
        believed: bool = False,
    ) -> SlabStep:
        """Step one row by one observation after the other; returns those before a refused one.

        Where one is refused the row is to be put back: those after it were stepped as well.
        confirmed, threshold: as in `step`; taken as if nothing was confirmed on the way.
        believed: whether the belief after each observation is wanted.
        """
        count = len(records)
        chunk, place = self._chunks.place(row)
        inputs = step_inputs.packed(self.model, records, [confirmed] * count, [threshold] * count)
        at = np.full(count, place, dtype=np.int64)
        beliefs = np.empty((count if believed else 0, 2, self._layout.slots))
        result, summary = self._advance(chunk, at, records, inputs, summarised, beliefs)
        refused = np.flatnonzero(result[:, OK_COLUMN] <= 0)
        fine = int(refused[0]) if len(refused) else count
        places = [SummaryRow(summary, i) for i in range(fine)]
        kept = None
        if believed:
            kept = probabilities(beliefs[:fine, 0], beliefs[:fine, 1].astype(np.int64))
        readouts = readout.rows(result[:fine])
        anomalies = self._anomalies.observe([row] * fine, records[:fine], readouts)
        return SlabStep(readouts, [*places], anomalies, kept)

    def _step_eagerly(
        self,
        rows: list[int],
        records: list[Record],
        confirmed: list[int],
        thresholds: list[float],
    ) -> SlabStep:
        held = self._chunks.read(rows)
        state, prior = self._layout.state(*held), self._layout.prior(*held)
        packed = self._packed(records, confirmed, thresholds)
        starts = packed[:, columns.CONFIRMED].long()
        alarms = packed[:, columns.THRESHOLD]
        state, info = moca.step(self.model, state, prior, self._inputs(records, packed))
        table = readout.table(state, info, starts, alarms, RECENT_RUN_LENGTHS)
        self._chunks.write(rows, self._layout.packed(state, prior))
        # Growth gave each slot the run length it has here: pruning only empties slots.
        run_length = state.belief.run_length
        places = [MixtureRow(info.predictive, i, run_length) for i in range(len(rows))]
        readouts = readout.rows(table)
        if self.model.typical:
            regimes = readout.typical_regimes(self.model, state)
            pairs = zip(readouts, regimes, strict=True)
            readouts = [row_readout._replace(regime=regime) for row_readout, regime in pairs]
        return SlabStep(readouts, [*places])

    def _step_compiled(
        self,
        rows: list[int],
        records: list[Record],
        confirmed: list[int],
        thresholds: list[float],
        wanted: list[int],
        summarised: bool,
    ) -> dict[int, tuple[Readout, PredictiveRow]]:
        """Step the `wanted` of the rows where they lie; returns those that stayed finite."""
        stepped: dict[int, tuple[Readout, PredictiveRow]] = {}
        for chunk, places, at in self._chunks.places([rows[i] for i in wanted]):
            chosen = [wanted[i] for i in at]
            part = [records[i] for i in chosen]
            inputs = step_inputs.packed(
                self.model, part, [confirmed[i] for i in chosen], [thresholds[i] for i in chosen]
            )
            result, summary = self._advance(
                chunk, np.array(places, dtype=np.int64), part, inputs, summarised
            )
            fine = np.flatnonzero(result[:, OK_COLUMN] > 0)
            readouts = readout.rows(result[fine])
            for row, row_readout in zip(fine.tolist(), readouts, strict=True):
                stepped[chosen[row]] = row_readout, SummaryRow(summary, row)
        return stepped

    def _advance(
        self,
        chunk: Chunk,
        places: NDArray[np.int64],
        records: Sequence[Record],
        inputs: Floats,
        summarised: bool,
        beliefs: Floats = columns.NO_BELIEFS,
    ) -> tuple[Floats, Summary]:
        """Step rows of a chunk by the compiled kernel: the table of `readout`, and summaries.

        inputs: the records, packed. beliefs: see `compiled.kernel.Kernel.advance`.
        """
        assert self._kernel is not None
        hazards = step_inputs.hazard_table(self.model, [record.hazard for record in records])
        held = self._held.get(chunk)
        if held is None:
            held = self._held[chunk] = self._layout.rows(*chunk.tensors)
        return self._kernel.advance(
            held,
            places,
            inputs,
            hazards,
            RECENT_RUN_LENGTHS,
            self._levels,
            summarised,
            beliefs,
        )

    def replay(
        self,
        rows: list[int],
        records: list[Record],
        confirmed: list[int],
        thresholds: list[float] | None = None,
    ) -> list[Readout]:
        """Step through what counts as applied; a label that breaks the step, as a missing one.

        Overrides before an observation are made first. Where the state has them already, that
        changes nothing.
        """
        for row, record in zip(rows, records, strict=True):
            if record.belief_override:
                self.restate(row, record.belief_override)
        readouts = self.step(rows, records, confirmed, thresholds, summarised=False).readouts
        broken = [i for i, row_readout in enumerate(readouts) if not row_readout.ok]
        if broken:
            again = self.step(
                [rows[i] for i in broken],
                [replace(records[i], y=None) for i in broken],
                [confirmed[i] for i in broken],
                [thresholds[i] for i in broken] if thresholds else None,
                summarised=False,
            ).readouts
            for i, row_readout in zip(broken, again, strict=True):
                readouts[i] = row_readout
        return readouts

    def inputs(self, records: list[Record]) -> Inputs:
        """Tensors of one observation of each stream."""
        nothing = [0] * len(records)
        return self._inputs(records, self._packed(records, nothing, nothing))

    def _packed(
        self, records: list[Record], confirmed: Sequence[int], thresholds: Sequence[float]
    ) -> Tensor:
        packed = step_inputs.packed(self.model, records, confirmed, thresholds)
        return to_device(packed, self.device)

    def _inputs(self, records: list[Record], packed: Tensor) -> Inputs:
        label = columns.LABEL
        x = columns.LABEL + self.model.y_dim
        hazards = step_inputs.hazard_table(self.model, [record.hazard for record in records])
        return Inputs(
            packed[:, x:] if self.model.x_dim else None,
            packed[:, label:x],
            packed[:, columns.LABELLED] > 0,
            to_device(hazards, self.device),
            packed[:, columns.ELAPSED],
            packed[:, columns.CHANGEPOINT],
            packed[:, columns.OUTLIER_RATE],
        )

    def _tensor(self, values: list[list[float]]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=self.device)
