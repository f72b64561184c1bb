"""Filters of many series of one model, a row each, stepped where they lie."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import repeat
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model_core import anomaly, correction, readout, summary
from model_core import compiled as places
from model_core import filter as moca
from model_core.codec import StreamRow
from model_core.compiled import Runs
from model_core.filter import FilterState, Prior
from model_core.lazy import Tensor, torch
from model_core.predictive import Mixture, alike
from model_core.quantiles import with_normal
from model_core.readout import Readout
from model_core.regimes import NEXT_ID, OF_EACH, REGIMES, SETTLED, size
from model_core.stream import batched, beliefs, columns, memory
from model_core.stream.batched import Compiled
from model_core.stream.beliefs import Probabilities
from model_core.stream.chunks import Array, Chunk, Chunks, Numbers
from model_core.stream.columns import Columns, Floats, Packed
from model_core.stream.events import NOTHING_WATCHED, Watch
from model_core.stream.resolution import dither, held_at_start, repeats
from model_core.stream.state import KnownRegime
from model_core.summary import Summary
from model_core.table import LOG_PROB, RUN_LENGTH, SEQ, TOTALS_AT_START, Layout, Rows
from model_core.transfer import to_arrays, to_device
from model_core.upm.base import UnderlyingModel, tree_map

OK_COLUMN = list(readout.NUMBERS).index("ok")
SCORE_COLUMN = list(readout.NUMBERS).index("log_score")
OUTLYING_COLUMN = list(readout.NUMBERS).index("outlying")
RECENT_RUN_LENGTHS = 5  # 0 to 4: a change within the last five observations is a recent one
AT_ONCE = 64  # observations of one series in a call of a kernel
CHUNK_BYTES = 64 << 20  # of a slab's memory that is taken, and given back, at a time
STEP_BYTES = 128 << 20  # of the states that are stepped at once
# Run lengths and their probabilities, by place of the observation that follows.
Overrides = Mapping[int, Sequence[tuple[int, float]]]
# Components that stand for a predictive which torch draws from: of one output, and fewer of more,
# whose summaries take most of the time. More are no quieter.
PICKED = 4
LEAST = 2.0**-54  # of a uniform number, which may be 0
MEDIAN = 0.5  # level of the quantile by which forecasts are corrected
NOT_FINITE = "an observation without a label: the model's numbers are not finite"
NO_OVERRIDES: Overrides = MappingProxyType({})
NOTHING_CORRECTED = np.empty((0, 0, correction.APPLIED))


class Refused(Exception):
    """The filter cannot take an observation: a step of it was not finite. Nothing has changed."""


class Past(NamedTuple):
    """Observations that count as applied, one after the other.

    previous: where the best path before a regime that starts at each of them starts; -1: none.
    overrides: of the belief, before these of them; before one more: after the last. times: when
    they were made, for events.
    """

    seen: Columns
    previous: Sequence[int] = ()
    overrides: Overrides = NO_OVERRIDES
    times: Sequence[str | None] = ()

    def part(self, start: int, end: int) -> Past:
        """Some of them, with the overrides before them."""
        overrides = {
            at - start: belief for at, belief in self.overrides.items() if start <= at < end
        }
        seen = self.seen.part(slice(start, end))
        return Past(seen, self.previous[start:end], overrides, self.times[start:end])

    def last(self, count: int) -> Past:
        """The last of them."""
        return self.part(self.seen.rows - count, self.seen.rows)


class Detail(NamedTuple):
    """What is wanted of a predictive beside the usual summary.

    levels: of other quantiles, rising; empty: none. mixture: whether it itself is wanted.
    """

    levels: Sequence[float] = ()
    mixture: bool = False


class DetailRow(NamedTuple):
    """Details of the predictive of one row (batch 1), which are not corrected.

    summary: with the levels wanted, if any. mixture, run_lengths: as of `Slab.mixture`, if they are
    wanted. applied: (d, 3) the correction, see `correction`.
    """

    summary: Summary | None
    mixture: Mixture | None
    run_lengths: Sequence[int | None]
    applied: Floats


class SummaryRow(NamedTuple):
    """One row of a batch's summaries, which are of labels less their seasons."""

    summary: Summary
    row: int

    def numbers(self, offset: Sequence[float]) -> Floats:
        """Numbers of the `Summary` of the labels; offset: their season, empty if there is none."""
        own = self._alone()
        shifted = own.shifted(np.array([offset])) if offset else own
        numbers: Floats = shifted.numbers[0]
        return numbers

    def moments(self) -> tuple[list[float], list[float]] | None:
        """Mean and standard deviation by output; None of classes. nan or inf: has none."""
        alone = self._alone()
        if alone.support in ("class", "binary"):
            return None
        variances = np.diagonal(alone.covariance[0])
        deviation: list[float] = np.sqrt(np.maximum(variances, 0.0)).tolist()
        return alone.mean[0].tolist(), deviation

    def _alone(self) -> Summary:
        """The row itself, a view."""
        numbers = self.summary.numbers[self.row : self.row + 1]
        return Summary(numbers, self.summary.outputs, self.summary.support)


class Step(NamedTuple):
    """One step of one row; where its readout is not `ok` the row is as it was.

    predictive: of the label, before it was seen; detail: more of it; both where they are wanted and
    the step was taken. anomaly: nan without a label. uncorrected: (d,) medians of the label before
    they were corrected, nan where they were not. belief: after the step, where it is wanted.
    """

    readout: Readout
    predictive: SummaryRow | None
    anomaly: float = math.nan
    uncorrected: Sequence[float] = ()
    detail: DetailRow | None = None
    belief: Probabilities | None = None


class Stepped(NamedTuple):
    """Steps of rows, as columns.

    table: (B, ...) of `readout`, all 0 of a step that is not `ok`, where the row is as it was.
    predicted: of the labels, before they were seen, where that is wanted. anomaly: (B,) nan without
    a label. applied: (B, d, 3) the corrections, see `correction`. memories: (B, ...) numbers of the
    rows' memories, if they have any. quiet: (B,) which are, see `compiled.Runs`; empty where that
    is not wanted.
    """

    table: Floats
    predicted: Summary | None
    anomaly: Floats
    applied: Floats
    memories: Floats | None = None
    quiet: NDArray[np.bool_] = places.NO_RUNS.quiet

    @property
    def uncorrected(self) -> Floats:
        """Medians (B, d) before they were corrected, as of `Step`."""
        return self.applied[:, :, correction.MEDIAN]

    @property
    def ok(self) -> NDArray[np.bool_]:
        """Which steps were taken (B,)."""
        return self.table[:, OK_COLUMN] > 0

    def part(self, chosen: slice | NDArray[Any]) -> Stepped:
        """Some of them, of which it is known whether they are quiet."""
        return Stepped(
            self.table[chosen],
            None if self.predicted is None else self.predicted.rows(chosen),
            self.anomaly[chosen],
            self.applied[chosen],
            None if self.memories is None else self.memories[chosen],
        )

    def steps(self) -> list[Step]:
        """Each of them alone."""
        lines = readout.rows(self.table, self.memories)
        anomalies = self.anomaly.tolist()
        if self.predicted is None:
            return [Step(*pair) for pair in zip(lines, repeat(None), anomalies)]
        places = map(SummaryRow, repeat(self.predicted), range(len(lines)))
        return list(map(Step, lines, places, anomalies, self.uncorrected.tolist()))


class SlabMemory(NamedTuple):
    """How a slab takes memory: bytes of a chunk of rows, and of the rows that are stepped at once.

    make_room: called with the bytes of a chunk before it is taken. expected: rows, if known.
    """

    chunk_bytes: int = CHUNK_BYTES
    step_bytes: int = STEP_BYTES
    make_room: Callable[[int], None] | None = None
    expected: int = 0


USUAL_MEMORY = SlabMemory()


class Slab:
    """Fixed-size states of many series, a row each, in chunks of memory."""

    def __init__(
        self,
        model: UnderlyingModel,
        max_hypotheses: int,
        levels: Sequence[float],
        device: str = "cpu",
        regimes: int = 0,
        room: SlabMemory = USUAL_MEMORY,
    ) -> None:
        """Hold no series yet.

        levels: of the quantiles in summaries, rising, the median among them; without any
        predictives are not summarised. regimes: that each series stores at most.
        """
        self.model = model
        self.max_hypotheses = max_hypotheses
        self.device = device
        # Elsewhere than on the CPU, and of models that have none, the eager filter steps all rows.
        self._kernel = places.kernel_of(model) if device == "cpu" else None
        self._make_room = room.make_room
        self.levels = [*levels]
        self._levels = with_normal(levels)
        self.layout = Layout(model, max_hypotheses, device, regimes)
        shapes = [(self.layout.height, self.layout.width), (self.layout.head,)]
        self._chunks = Chunks(shapes, room.chunk_bytes, room.expected, device)
        # States of `anomaly` and `correction` lie on the host, under the same numbers.
        self._ranked = anomaly.outputs(model)
        self._corrected = correction.outputs(model)
        summarised = bool(self._corrected and self.levels)
        self._interval = correction.interval(self.levels) if summarised else (0, 0.0)
        sizes = (
            anomaly.size(self._ranked),
            correction.size(self._corrected),
            1 + model.y_dim,
            model.y_dim + 1,
        )
        most_rows = max(1, room.chunk_bytes // self._chunks.row_bytes)
        self._beside = Chunks([(size,) for size in sizes], most_rows * 8 * sum(sizes))
        self._coarse: set[int] = set()  # rows whose labels have a resolution
        self._compiled: Compiled | None = None
        self.row_bytes = self._chunks.row_bytes + self._beside.row_bytes
        self.step_rows = max(1, room.step_bytes // self.row_bytes)

    def compile(self) -> None:
        """Have torch compile the steps of rows in batches; raises NotCompiled, and is as it was.

        For a device, which eager torch gives its work in hundreds of pieces a step.
        """
        self._compiled = batched.compiled(
            self.model, self.layout, self.levels, self.device, self.step_rows
        )

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
        held = self._chunks, self._beside
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
        return self._chunks.trim(eager) + self._beside.trim(eager)

    def begin(
        self,
        locations: Sequence[list[float]],
        scales: Sequence[list[float]],
        resolutions: Sequence[list[float] | None] = (),
    ) -> list[int]:
        """Make series resident that have no observation yet; returns their rows.

        resolutions: of their labels, see `resolution`; without any they are fine.
        """
        ranks = [
            anomaly.begin(self.model, location, scale)
            for location, scale in zip(locations, scales, strict=True)
        ]
        errors = correction.start(self._corrected)[None].repeat(len(ranks), 0)
        held = held_at_start(self.model.y_dim)[None].repeat(len(ranks), 0)
        known = np.zeros((len(ranks), self.model.y_dim + 1))
        for i, own in enumerate(resolutions):
            known[i] = own or 0.0
        beside = [np.array(ranks), errors, held, known]
        return self._add([*self._fresh(locations, scales)], beside)

    def begin_anew(
        self,
        row: int,
        location: list[float],
        scale: list[float],
        resolution: list[float] | None = None,
    ) -> None:
        """Put a row before its first observation; its ranks stay."""
        self._chunks.write([row], self._fresh([location], [scale]))
        ranks, errors, held, known = self._beside.read([row])
        errors[:] = correction.start(self._corrected)
        held[:] = held_at_start(self.model.y_dim)
        known[:] = resolution or 0.0
        self._write_beside([row], [ranks, errors, held, known])

    def add(self, own: StreamRow) -> int:
        """Make one series resident; returns its row."""
        lines, head, *beside = (part[None] for part in own)
        (row,) = self._add([self._placed(lines), self._placed(head)], beside)
        return row

    def remove(self, row: int) -> None:
        """Forget a row."""
        self._chunks.remove(row)
        self._beside.remove(row)
        self._coarse.discard(row)

    def row(self, row: int) -> StreamRow:
        """All that is kept of one series, copied."""
        (own,) = self.each([row])
        return own

    def each(self, rows: Sequence[int]) -> Iterator[StreamRow]:
        """All that is kept of each of several series: one copy for all."""
        if not rows:
            return
        held = to_arrays(self._chunks.read(rows))
        yield from map(StreamRow, *held, *self._beside.read(rows))

    def regimes(self, row: int) -> list[KnownRegime]:
        """Regimes that a series remembers, by id, each with the probability that it is on."""
        own = self.row(row)
        return memory.remembered(self.layout, own.lines, own.head)

    def in_regimes(self, row: int) -> Mixture:
        """The next label (M, d) of a series in each regime that it remembers, by id.

        One component each: the season is not in it.
        """
        state, _ = self.batch([row])
        assert state.memory is not None
        ids = state.memory.numbers[0, REGIMES:].reshape(OF_EACH, -1)[0].tolist()
        at = sorted((m for m, id_ in enumerate(ids) if id_), key=lambda m: ids[m])
        stored = tree_map(lambda own: own[0, at].unsqueeze(1), state.memory.stored)
        context = state.context.expand(len(at), -1)
        components = self.model.predictive(stored, self.model.encode(None, context))
        certain = torch.zeros(len(at), 1, dtype=torch.float64, device=self.device)
        return Mixture(certain, components)

    def next_regime(self, row: int) -> int:
        """The id that the next regime which a series remembers will have; 1 without a memory."""
        if not self.layout.regimes:
            return 1
        return int(self.row(row).head[self.layout.numbers + NEXT_ID])

    def number_regimes(self, row: int, ids: Mapping[int, int], following: int) -> None:
        """Give the regimes of a series other ids; following: of the next."""
        own = self.row(row)
        memory.number(self.layout, own.head, ids, following)
        self.put(row, own)

    def put(self, row: int, own: StreamRow) -> None:
        """Put what `row` returned, or a changed copy of it, in place of a row."""
        self._chunks.write([row], [self._placed(own.lines[None]), self._placed(own.head[None])])
        self._write_beside([row], [part[None] for part in own[2:]])

    def read(self, rows: Sequence[int]) -> list[Array]:
        """All that is kept of rows, copied where it lies: arrays or tensors (B, ...)."""
        return [*self._chunks.read(rows), *self._beside.read(rows)] if rows else []

    def write(self, rows: Sequence[int], arrays: Sequence[Array]) -> None:
        """Replace all that is kept of rows; arrays: as `read` returns them."""
        if rows:
            self._chunks.write(rows, arrays[:2])
            self._write_beside(rows, arrays[2:])

    def batch(self, rows: Sequence[int]) -> tuple[FilterState, Prior]:
        """States and priors of series, on their device: good until the rows change.

        Those that lie together, as ones that were made together do, are not copied.
        """
        (chunk, lying, _), *more = self._chunks.places(rows)
        first = int(lying[0])
        if not more and np.array_equal(lying, np.arange(first, first + len(rows))):
            held = [array[first : first + len(rows)] for array in chunk.arrays]
        else:
            held = self._chunks.read(rows)
        return self.layout.state(*held), self.layout.prior(*held)

    def belief(self, row: int) -> Probabilities:
        """Surviving hypotheses of one series."""
        (lines,) = to_arrays([self._chunks.lines([row], TOTALS_AT_START)])
        own = lines[..., : self.layout.slots]
        (belief,) = beliefs.probabilities(own[:, LOG_PROB], own[:, RUN_LENGTH].astype(np.int64))
        return belief

    def restate(self, row: int, stated: Sequence[tuple[int, float]]) -> StreamRow:
        """Override a row's belief by probabilities of run lengths; returns the row, copied."""
        own = self.row(row)
        beliefs.restate(own.lines, self.layout.slots, stated)
        self.put(row, own)
        return own

    def _fresh(
        self, locations: Sequence[list[float]], scales: Sequence[list[float]]
    ) -> list[Array]:
        moments = (np.array(values, dtype=np.float64) for values in (locations, scales))
        return [self._placed(part) for part in self.layout.begin(*moments)]

    def _placed(self, numbers: Floats) -> Array:
        """Numbers of the host where the rows are."""
        return numbers if self.device == "cpu" else to_device(numbers, self.device)

    def _add(self, own: Sequence[Array], beside: Sequence[Floats]) -> list[int]:
        rows = []
        for _ in own[0]:
            if self._make_room is not None:
                held = self._chunks, self._beside
                coming = sum(chunks.next_bytes for chunks in held if chunks.full)
                if coming:
                    self._make_room(coming)
            rows.append(self._chunks.reserve())
            self._beside.reserve()  # both number their rows from 0
        self._chunks.write(rows, own)
        self._write_beside(rows, beside)
        return rows

    def _write_beside(self, rows: Sequence[int], arrays: Sequence[Floats]) -> None:
        self._beside.write(rows, arrays)
        self._coarse.difference_update(rows)
        self._coarse.update(rows[i] for i in np.flatnonzero(arrays[-1].any(1)).tolist())

    # --- steps ----------------------------------------------------------------------------------

    def step(
        self,
        rows: Sequence[int],
        seen: Columns,
        watched: Sequence[Watch],
        detailed: Sequence[Detail | None] = (),
        summarised: bool = True,
    ) -> list[Step]:
        """Step distinct rows by one observation each; reads out what the host needs, at once.

        watched: what they are read for. detailed: what is wanted of each beside the summary of its
        predictive; nothing if empty. summarised: whether predictives are wanted at all.
        """
        if not rows:
            return []
        packed = columns.packed(self.model, seen, watched)
        details = {
            i: self._detail(rows[i], packed.part(np.array([i])), wanted)
            for i, wanted in enumerate(detailed)
            if wanted is not None
        }
        stepped = self.stepped(rows, packed, summarised)
        steps = stepped.steps()
        if self.model.typical:
            for i, regime in enumerate(readout.typical_regimes(self.model, self.batch(rows)[0])):
                steps[i] = steps[i]._replace(readout=steps[i].readout._replace(regime=regime))
        if stepped.predicted is not None:
            for i, detail in details.items():
                if steps[i].readout.ok:
                    own = detail._replace(applied=stepped.applied[i])
                    steps[i] = steps[i]._replace(detail=own)
        return steps

    def room(self, count: int) -> Floats:
        """Room (count, 2, S) for the beliefs after so many steps, see `stepped`."""
        return np.empty((count, 2, self.layout.slots))

    def tried(self, row: int, seen: Columns) -> Step:
        """Step of a row by one observation; the row stays as it is."""
        copy = self.add(self.row(row))
        try:
            (step,) = self.step([copy], seen, [NOTHING_WATCHED])
        finally:
            self.remove(copy)
        return step

    def predicted(self, row: int, packed: Packed, levels: Sequence[float]) -> Summary:
        """Predictives (B, ...) of a row before each of several observations of it alone.

        levels: as of `known_of`. They are not corrected, and the row stays as it is; nan where
        numbers are not finite.
        """
        count = len(packed.y)
        if self._kernel is None:  # a step costs far more than the mixture before it
            mixture, _ = self.mixture(row, packed)
            unknown = torch.full((count, self.model.y_dim), torch.nan, dtype=torch.float64)
            return summary.of_mixture(mixture, unknown, levels)
        inputs = packed.inputs.copy()
        inputs[:, places.LABELLED] = 0.0
        inputs[:, places.LABEL : places.LABEL + self.model.y_dim] = 0.0
        own = self.row(row)
        parts = []
        for first in range(0, count, self.step_rows):  # not as many copies as observations
            part = slice(first, first + self.step_rows)
            copies = [held[None].repeat(len(inputs[part]), 0) for held in (own.lines, own.head)]
            table, predicted = self._advance(
                copies,
                np.arange(len(copies[0])),
                inputs[part],
                packed.hazard[part],
                True,
                levels=with_normal(levels),
            )
            assert predicted is not None
            predicted.numbers[table[:, OK_COLUMN] <= 0] = np.nan
            parts.append(predicted.numbers)
        return Summary(np.concatenate(parts), self.model.y_dim, self.model.label)

    def mixture(self, row: int, packed: Packed) -> tuple[Mixture, list[int | None]]:
        """Predictives (B, ...) of a row before each of observations that differ by inputs alone.

        Then the run lengths of the components, the shortest first, whatever slots they are in, so
        that a seed means the same draws; None of those that no hypothesis has.
        """
        with torch.inference_mode():
            states, priors = moca.repeated(*self.batch([row]), len(packed.y))
            coming = columns.inputs_of(self.model, packed, self.device)
            grown, _ = moca.grow(states, priors, coming)
            mixture = moca.predict(self.model, grown, priors, coming).mixture
            belief = grown.belief
            alive = moca.order(grown)[0, : int(torch.isfinite(belief.log_prob[0]).sum())]
            slots = belief.log_prob.shape[1]
            others = torch.arange(slots, mixture.log_weight.shape[1], device=self.device)
            at = torch.cat((alive, others))
            weight, *parts = (own.index_select(1, at) for own in mixture.tensors())
            lengths = [*belief.run_length[0, alive].tolist(), *[None] * len(others)]
        return Mixture(weight, mixture.components.rebuilt(*parts)), lengths

    def drawn(
        self, rows: Sequence[int], packed: Packed, generator: np.random.Generator
    ) -> tuple[Floats, Summary | None]:
        """Step distinct rows by a label each that is drawn from its predictive.

        Returns the labels (B, d), and summaries whose average is that of the predictives: not
        corrected, nan of a step that was not taken; None without levels.
        """
        label = slice(places.LABEL, places.LABEL + self.model.y_dim)
        if self._kernel is None:
            return self._drawn_eagerly(rows, packed, generator)
        noise = np.zeros((len(rows), 2, self._kernel.noise))
        noise[:, 0] = generator.random(noise.shape[::2]).clip(min=LEAST)
        if self._kernel.noise == 1:
            noise[:, :, 0] = with_normal(noise[:, 0, 0].tolist()).T
        groups = self._chunks.groups(rows)
        parts = []
        labels = np.empty((len(rows), self.model.y_dim))
        for chunk, lying, at in groups:
            inputs = packed.inputs[at]
            table, predicted = self._advance(
                chunk.arrays, lying, inputs, packed.hazard[at], True, noise=noise[at]
            )
            if predicted is not None:
                predicted.numbers[table[:, OK_COLUMN] <= 0] = np.nan
            labels[at] = inputs[:, label]
            parts.append((table, predicted))
        _, predicted = _gathered([at for _, _, at in groups], parts)
        return labels, predicted

    def _drawn_eagerly(
        self, rows: Sequence[int], packed: Packed, generator: np.random.Generator
    ) -> tuple[Floats, Summary | None]:
        """As `drawn`, by torch: of `PICKED` components of each predictive, one summary of all."""
        source = torch.Generator(self.device).manual_seed(int(generator.integers(1 << 63)))
        labels = np.empty((len(rows), self.model.y_dim))
        picked = []
        with torch.inference_mode():
            for first in range(0, len(rows), self.step_rows):
                at = slice(first, first + self.step_rows)
                state, prior = self.batch(rows[at])
                coming = columns.inputs_of(self.model, packed.part(at), self.device)
                grown, _ = moca.grow(state, prior, coming)
                mixture = moca.predict(self.model, grown, prior, coming).mixture
                few = mixture.picked(max(1, PICKED // self.model.y_dim), source)
                one = few.rebuilt(*(parameter[:, :1] for parameter in few.parameters()))
                y = one.sample(source).squeeze(1)
                seen = coming._replace(y=y, labelled=torch.ones_like(coming.labelled))
                state, _ = moca.step(self.model, state, prior, seen)
                self._chunks.write(rows[at], self._lying(self.layout.packed(state, prior)))
                labels[at] = y.cpu().numpy()
                picked.append(few)
            if not self.levels:
                return labels, None
            unknown = torch.full((1, self.model.y_dim), torch.nan, dtype=torch.float64)
            return labels, summary.of_mixture(alike(picked), unknown, self.levels)

    def through(
        self,
        row: int,
        seen: Columns,
        watched: Callable[[], Watch],
        summarised: bool = True,
        believed: bool = False,
    ) -> Iterator[Step]:
        """Step one row by one observation after the other, in few calls of its kernel.

        To be taken to the end, or to the first step that is not `ok`. watched: as of `step`, by
        now, which may move after each step. Observations are stepped `AT_ONCE` as if it stayed;
        where it did not, those after it are stepped anew: their numbers are about other starts.
        believed: whether beliefs are wanted.
        """
        at = 0
        while at < seen.rows:
            coming = seen.part(slice(at, at + AT_ONCE))
            used = 0
            if self._kernel is not None and coming.rows > 1:
                used = yield from self._series(row, coming, watched, summarised, believed)
            if not used:
                used = 1
                one = seen.part(slice(at, at + 1))
                (step,) = self.step([row], one, [watched()], (), summarised)
                yield step._replace(belief=self.belief(row)) if believed else step
            at += used

    def replay(
        self,
        row: int,
        past: Past,
        watched: Callable[[], Watch] = lambda: NOTHING_WATCHED,
        summarised: bool = False,
    ) -> Iterator[Readout]:
        """Step one row through what counts as applied; a label that it refuses counts as missing.

        watched: as of `through`. summarised: whether errors of forecasts are learned. Overrides
        that the state has already change nothing. The row may be ahead of what was yielded until
        all was. Raises Refused where it takes no observation at all, of a model whose numbers are
        not finite.
        """
        seen = past.seen
        overrides = past.overrides
        at = 0
        while at < seen.rows:
            if at in overrides:
                self.restate(row, overrides[at])
            end = min([seen.rows, *(i for i in overrides if i > at)])
            left = seen.part(slice(at, end))
            for step in self.through(row, left, watched, summarised):
                if not step.readout.ok:
                    if np.isnan(seen.y[at]).all():
                        raise Refused(NOT_FINITE)
                    seen = seen.unlabelled(at)
                    break
                at += 1
                yield step.readout

    def absorb(self, rows: Sequence[int], seen: Sequence[Columns]) -> list[bool]:
        """Step rows by the kernel through observations each, of which nothing is read off.

        In few calls for all of them. Returns which took all; another is undefined.
        """
        took = [True] * len(rows)
        packed = columns.packed(self.model, columns.joined(seen))
        owner = np.repeat(np.arange(len(rows)), [own.rows for own in seen])
        stepped = np.array(rows)[owner]
        packed, held = self._resolved(stepped, packed)
        taken = np.empty(len(stepped), dtype=bool)
        for chunk, lying, at in self._chunks.groups(stepped):
            inputs = packed.inputs[at]
            self._settled(stepped[at], inputs)
            table, _ = self._advance(chunk.arrays, lying, inputs, packed.hazard[at], False)
            taken[at] = table[:, OK_COLUMN] > 0
        for i in owner[~taken].tolist():
            took[i] = False
        self._hold(held, packed.y, taken)
        return took

    def replay_each(
        self,
        rows: Sequence[int],
        pasts: Sequence[Past],
        watched: Sequence[Callable[[], Watch]],
    ) -> Iterator[tuple[int, int, Readout | None]]:
        """Replay several rows; those of models without a kernel step together.

        Yields index, place and what was read off, those of a row in order; None where it takes no
        observation at all, as the last of a row.
        """
        if not self.in_series:
            yield from self._replay_together(rows, pasts, watched)
            return
        for i, (row, past) in enumerate(zip(rows, pasts, strict=True)):
            count = 0
            try:
                for line in self.replay(row, past, watched[i]):
                    yield i, count, line
                    count += 1
            except Refused:
                yield i, count, None

    def _replay_together(
        self,
        rows: Sequence[int],
        pasts: Sequence[Past],
        watched: Sequence[Callable[[], Watch]],
    ) -> Iterator[tuple[int, int, Readout | None]]:
        """As `replay_each`, one observation of each at a time."""
        refused: set[int] = set()
        for at in range(max((past.seen.rows for past in pasts), default=0)):
            left = [i for i, past in enumerate(pasts) if at < past.seen.rows and i not in refused]
            for first in range(0, len(left), self.step_rows):
                now = left[first : first + self.step_rows]
                for i in now:
                    if at in pasts[i].overrides:
                        self.restate(rows[i], pasts[i].overrides[at])
                seen = columns.joined([pasts[i].seen.part(slice(at, at + 1)) for i in now])
                own = [rows[i] for i in now]
                own_watched = [watched[i]() for i in now]
                for i, line in zip(now, self._replayed(own, seen, own_watched), strict=True):
                    if line is None:
                        refused.add(i)
                    yield i, at, line

    def _replayed(
        self, rows: Sequence[int], seen: Columns, watched: Sequence[Watch]
    ) -> list[Readout | None]:
        """Step rows by one observation each; a label that is refused counts as missing."""
        lines: list[Readout | None] = []
        for i, step in enumerate(self.step(rows, seen, watched, (), False)):
            readout = step.readout
            if not readout.ok:
                again = seen.part([i]).unlabelled(0)
                readout = self.step([rows[i]], again, [watched[i]], (), False)[0].readout
            lines.append(readout if readout.ok else None)
        return lines

    def _series(
        self,
        row: int,
        seen: Columns,
        watched: Callable[[], Watch],
        summarised: bool,
        believed: bool,
    ) -> Generator[Step, None, int]:
        """Step a row by the kernel, in one call; returns how many of the observations were taken.

        Those before the first that it refuses, or before which what is watched has moved.
        """
        start = watched()
        before = self.read([row])
        packed = columns.packed(self.model, seen, start)
        count = seen.rows
        room = self.room(count if believed else 0)
        stepped = self.stepped([row] * count, packed, summarised, room)
        ok = stepped.ok
        fine = count if ok.all() else int(ok.argmin())
        held = beliefs.of_room(room[:fine]) if believed else repeat(None)
        used = 0
        for step, belief in zip(stepped.part(slice(fine)).steps(), held, strict=False):
            if watched() != start:
                break
            used += 1
            yield step if belief is None else step._replace(belief=belief)
        if used < count:
            self.write([row], before)
            if used:  # errors are of what was answered, hence with summaries again
                self.stepped([row] * used, packed.part(slice(used)), summarised)
        return used

    def _anomalies(self, rows: Numbers, y: Floats, surprises: Floats) -> Floats:
        """Take observations in, in order; returns their anomalies (B,).

        surprises: of the labels y (B, d), nan of what counts as if it had not come.
        """
        from model_core.compiled import beside  # numba: half a second

        labels = np.ascontiguousarray(y[:, : self._ranked])
        values = np.full(len(rows), np.nan)
        room = np.empty(anomaly.ROOM)
        for chunk, lying, at in self._beside.groups(rows):
            ranks = chunk.arrays[0]
            own = values[at]
            beside.rank_rows(ranks, lying, surprises[at], labels[at], own, room)
            values[at] = own
        return values

    def corrected(
        self,
        rows: Numbers,
        predicted: Summary,
        interval: tuple[int, float],
        labels: tuple[Floats, NDArray[np.bool_]] | None = None,
        offset: Floats | None = None,
    ) -> Floats:
        """Correct predictives of rows in place, in order, and learn from their labels.

        predicted: with quantiles, the median among them; nan: of none. interval: of their levels,
        as of `correction.interval`. labels: (B, d), and which (B,) are outliers; None: they are to
        come, and nothing is learned. offset: (B, d) their seasons, which predictives are less of;
        None: of nothing. Returns the corrections that were applied (B, d, 3), see `correction`; nan
        where none was.
        """
        from model_core.compiled import beside

        count = len(rows)
        d = self._corrected
        applied = np.full((count, d, correction.APPLIED), np.nan)
        if not d or not count:
            return applied
        y, outlying = labels or (np.full((count, d), np.nan), np.zeros(count, dtype=bool))
        y = np.ascontiguousarray(y)
        offsets = np.zeros((count, d)) if offset is None else np.ascontiguousarray(offset)
        places = np.arange(count)
        middle, outside = interval
        for chunk, lying, at in self._beside.groups(rows):
            errors = chunk.arrays[1]
            beside.correct_rows(
                errors,
                lying,
                places[at],
                y,
                outlying,
                offsets,
                predicted.numbers,
                middle,
                outside,
                applied,
            )
        return applied

    def recall(
        self,
        row: int,
        y: Floats,
        outlying: NDArray[np.bool_],
        uncorrected: Floats,
        intervals: Floats,
    ) -> None:
        """Learn the errors of forecasts that were answered, after steps without summaries.

        y: (n, d) labels. outlying: (n,) which are outliers. uncorrected: (n, d) as of `Step`, nan
        where there was no forecast. intervals: (n, 2, d) lowest and highest quantile as they were
        answered, at `levels`.
        """
        from model_core.compiled import beside

        if self._corrected and len(y):
            ((chunk, lying, _),) = self._beside.groups([row])
            errors = chunk.arrays[1]
            _, outside = self._interval
            beside.recall(errors[lying[0]], y, outlying, uncorrected, intervals, outside)

    def stepped(
        self,
        rows: Numbers,
        packed: Packed,
        summarised: bool = True,
        room: Floats = places.NO_BELIEFS,
        rest: Floats | None = None,
    ) -> Stepped:
        """Step rows where they lie by one observation each.

        With a kernel a row that is named again is stepped again, in order. room: (B, 2, S) for
        beliefs, with a kernel. rest: (B, 3) as of `compiled.Runs`, with a kernel: each row, all of
        whose observations follow on each other, is stepped no further than to the first that is
        not quiet.
        """
        packed, repeating = self._resolved(rows, packed)
        memories = self._settled(rows, packed.inputs)
        anomalies, quiet = np.empty(len(rows)), places.NO_RUNS.quiet
        if self._kernel is None:
            table, predicted = self._eagerly(rows, packed, summarised)
        else:
            groups = [*self._groups(rows, packed.y, rest)]
            table, predicted = self._advance_each(groups, packed, summarised, room)
            if rest is not None:
                quiet = np.empty(len(rows), np.bool_)
                for _, _, at, runs in groups:
                    anomalies[at] = runs.anomalies
                    quiet[at] = runs.quiet
        self._hold(repeating, packed.y, table[:, OK_COLUMN] > 0)
        if rest is None:
            refused = table[:, OK_COLUMN] <= 0
            surprises = np.where(refused, np.nan, -table[:, SCORE_COLUMN])
            anomalies = self._anomalies(rows, packed.y, surprises)
        applied = self._finished(rows, packed, table, predicted)
        return Stepped(table, predicted, anomalies, applied, memories, quiet)

    def stepped_on(
        self,
        rows: NDArray[np.int64],
        packed: Packed,
        room: Floats,
        rest: Floats,
        following: Callable[[int, int], int],
    ) -> Stepped:
        """Step one row, without a memory, by its next observations, as `stepped` does by a kernel.

        rows: (B,) that row. following: called with the observations that were stepped, and how many
        of the last ones were quiet; returns how many more are to be, 0: none. It may fill in their
        seasons.
        """
        ((chunk, lying, _, runs),) = self._groups(rows, packed.y, rest)
        tables: list[Floats] = []
        summaries: list[Floats] = []
        end = 0
        count = following(0, 0)
        while count:
            part = slice(end, end + count)
            end += count
            own, repeating = self._resolved(rows[part], packed.part(part))
            table, predicted = self._advance(
                chunk.arrays, lying[part], own.inputs, own.hazard, True, room[part],
                runs=runs.part(part),
            )  # fmt: skip
            self._hold(repeating, own.y, table[:, OK_COLUMN] > 0)
            tables.append(table)
            assert predicted is not None
            summaries.append(predicted.numbers)
            count = following(end, int(np.count_nonzero(runs.quiet[part])))
        table = np.concatenate(tables)
        predicted = Summary(np.concatenate(summaries), self.model.y_dim, self.model.label)
        applied = self._finished(rows[:end], packed.part(slice(end)), table, predicted)
        anomalies, quiet = runs.anomalies[:end], runs.quiet[:end]
        return Stepped(table, predicted, anomalies, applied, None, quiet)

    def _finished(
        self, rows: Numbers, packed: Packed, table: Floats, predicted: Summary | None
    ) -> Floats:
        """Correct predictives of steps, after which tables and summaries are as of `Stepped`.

        Returns the corrections.
        """
        # Where a step is not `ok`, table and summary are undefined.
        refused = table[:, OK_COLUMN] <= 0
        if np.count_nonzero(refused):
            table[refused] = 0.0
            if predicted is not None:
                predicted.numbers[refused] = np.nan
        if predicted is None:
            return NOTHING_CORRECTED
        labels = packed.y, table[:, OUTLYING_COLUMN] > 0
        return self.corrected(rows, predicted, self._interval, labels, packed.offset)

    def _groups(
        self, rows: Numbers, y: Floats, rest: Floats | None
    ) -> Iterator[tuple[Chunk, Array, Array, Runs]]:
        """As `Chunks.groups`, with what ends the runs there, if `rest` is given.

        y: (B, d) labels. rest: as of `stepped`.
        """
        for chunk, lying, at in self._chunks.groups(rows):
            if rest is None:
                yield chunk, lying, at, places.NO_RUNS
                continue
            for beside, ranked, within in self._beside.groups(np.asarray(rows)[at]):
                own = at if isinstance(within, slice) else np.arange(len(rows))[at][within]
                labels = np.ascontiguousarray(y[own, : self._ranked])
                limits = np.ascontiguousarray(rest[own])
                runs = Runs.begin(limits, beside.arrays[0], ranked, labels)
                yield chunk, lying[within], own, runs

    def _advance_each(
        self,
        groups: Sequence[tuple[Chunk, Array, Array, Runs]],
        packed: Packed,
        summarised: bool,
        room: Floats,
    ) -> tuple[Floats, Summary | None]:
        """As `_advance`, of all groups of rows."""
        parts = []
        for chunk, lying, at, runs in groups:
            inputs, hazards = packed.inputs[at], packed.hazard[at]
            held = room[at] if len(room) else room
            parts.append(
                self._advance(chunk.arrays, lying, inputs, hazards, summarised, held, runs=runs)
            )
            if len(room):
                room[at] = held
        return _gathered([at for _, _, at, _ in groups], parts)

    def _resolved(self, rows: Numbers, packed: Packed) -> tuple[Packed, dict[int, list[int]]]:
        """The next observations of rows, with labels of coarse ones spread over their steps.

        Those that a held series only repeats are none. A row that is named again is stepped again,
        as of `stepped`. Also the places of held rows among them, see `_hold`.
        """
        coarse = [i for i, row in enumerate(rows) if row in self._coarse] if self._coarse else []
        if not coarse:
            return packed, {}
        own = [rows[i] for i in coarse]
        positions = np.empty(len(own))
        for chunk, lying, at in self._chunks.groups(own):
            (positions[at],) = to_arrays([chunk.arrays[1][lying, SEQ]])
        earlier: Counter[int] = Counter()
        for i, row in enumerate(own):
            positions[i] += earlier[row]
            earlier[row] += 1
        known = np.empty((len(own), self.model.y_dim + 1))
        states = np.empty((len(own), 1 + self.model.y_dim))
        for chunk, lying, at in self._beside.groups(own):
            states[at] = chunk.arrays[2][lying]
            known[at] = chunk.arrays[3][lying]
        inputs = packed.inputs.copy()
        label = slice(places.LABEL, places.LABEL + self.model.y_dim)
        inputs[coarse, label] += known[:, :-1] * dither(positions, self.model.y_dim)
        held: dict[int, list[int]] = {}
        moving: dict[int, Floats] = {}
        for i, row, state, most in zip(coarse, own, states, known[:, -1].tolist(), strict=True):
            if not most:
                continue
            held.setdefault(row, []).append(i)
            if repeats(packed.y[i : i + 1], moving.setdefault(row, state), most)[0]:
                inputs[i, places.LABELLED] = 0.0
                inputs[i, label] = 0.0
        return packed._replace(inputs=inputs), held

    def _hold(self, held: Mapping[int, Sequence[int]], y: Floats, taken: NDArray[np.bool_]) -> None:
        """Move the states of held rows past those of their labels y (B, d) that were taken (B,)."""
        for row, own in held.items():
            ((chunk, (lying,), _),) = self._beside.groups([row])
            labels = y[[i for i in own if taken[i]]]
            repeats(labels, chunk.arrays[2][lying], float(chunk.arrays[3][lying, -1]))

    def _settled(self, rows: Numbers, inputs: Floats) -> Floats | None:
        """Store the regimes whose ends were confirmed since the last steps of rows.

        inputs: of the coming steps. Returns the numbers (B, ...) of the memories; None: the rows
        have none.
        """
        if not self.layout.regimes:
            return None
        memories = np.empty((len(rows), size(self.layout.regimes)))
        at = self.layout.numbers
        settled = inputs[:, places.SETTLED]
        for chunk, lying, chosen in self._chunks.groups(rows):
            (heads,) = to_arrays([chunk.arrays[1][lying, at:]])
            due = settled[chosen] > heads[:, SETTLED]
            if due.any():
                numbered = np.arange(len(rows))[chosen][due].tolist()
                for i in {rows[i]: i for i in reversed(numbered)}.values():
                    own = self.row(rows[i])
                    memory.settle(self.model, self.layout, own.lines, own.head, settled[i])
                    self.put(rows[i], own)
                (heads,) = to_arrays([chunk.arrays[1][lying, at:]])
            memories[chosen] = heads
        return memories

    def _detail(self, row: int, packed: Packed, wanted: Detail) -> DetailRow:
        """Details of the predictive of a row before one observation."""
        self._settled([row], packed.inputs)
        at_levels = None
        mixture = None
        run_lengths: Sequence[int | None] = ()
        if wanted.levels:
            known = known_of(wanted.levels)
            chosen = [known.index(level) for level in wanted.levels]
            at_levels = self.predicted(row, packed, known).at(chosen)
        if wanted.mixture:
            mixture, run_lengths = self.mixture(row, packed)
        return DetailRow(at_levels, mixture, run_lengths, np.empty(0))

    def _eagerly(
        self, rows: Numbers, packed: Packed, summarised: bool
    ) -> tuple[Floats, Summary | None]:
        """Step distinct rows by torch; the table of `readout`, and predictives."""
        summarised = summarised and bool(self.levels)
        compiled = self._compiled
        with torch.inference_mode():
            lines, heads = map(torch.as_tensor, self._chunks.read(rows))
            if compiled is not None and compiled.takes(packed):
                *after, numbers = compiled.advance(lines, heads, packed)
            else:
                levels = to_device(self._levels[0], self.device) if summarised else None
                sent = columns.sent(packed, self.device)
                *after, numbers = batched.advance(
                    self.model, self.layout, levels, lines, heads, sent
                )
            self._chunks.write(rows, self._lying(after))
            (read,) = to_arrays([numbers])
            table, rest = readout.table(
                self.layout, read, packed.inputs, packed.hazard, RECENT_RUN_LENGTHS
            )
            if not summarised:
                return table, None
            own = Summary(np.ascontiguousarray(rest), self.model.y_dim, self.model.label)
            lacking = own.lacking[table[own.lacking, OK_COLUMN] > 0]
            if len(lacking):
                at = to_device(lacking, self.device)
                self._search(own, lacking, lines[at], heads[at], packed.part(lacking))
            return table, own

    def _search(
        self,
        own: Summary,
        lacking: NDArray[np.int64],
        lines: Tensor,
        heads: Tensor,
        packed: Packed,
    ) -> None:
        """Have the host find the quantiles that a device has not in a fixed number of steps.

        lines, heads: of these rows before the step.
        """
        prior = self.layout.prior(lines, heads)
        observed = columns.inputs_of(self.model, packed, self.device)
        grown, _ = moca.grow(self.layout.state(lines, heads), prior, observed)
        mixture = moca.predict(self.model, grown, prior, observed).mixture
        unknown = torch.full((len(lacking), self.model.y_dim), torch.nan, dtype=torch.float64)
        found = summary.of_mixture(mixture, unknown, self.levels)
        own.quantiles[lacking] = found.quantiles

    def _lying(self, parts: Sequence[Tensor]) -> list[Array]:
        """Lines and heads that torch stepped, as rows are held."""
        return [part.numpy() for part in parts] if self.device == "cpu" else [*parts]

    def _advance(
        self,
        held: Sequence[Floats],
        rows: NDArray[np.int64],
        inputs: Floats,
        hazard: Floats,
        summarised: bool,
        room: Floats = places.NO_BELIEFS,
        noise: Floats = places.NO_NOISE,
        levels: Floats | None = None,
        runs: Runs = places.NO_RUNS,
    ) -> tuple[Floats, Summary | None]:
        """Step rows by the compiled kernel: the table of `readout`, and predictives.

        held: lines and heads of a chunk. room: for beliefs, see `compiled.kernel.Kernel.advance`.
        noise, runs: as it has them; the inputs are changed by noise. levels: (2, Q), in place of
        the usual.
        """
        assert self._kernel is not None
        lines, heads = held
        levels = self._levels if levels is None else levels
        wanted = summarised and levels.size > 0
        table, predicted = self._kernel.advance(
            Rows(self.layout.slots, lines, heads, self.layout.regimes),
            rows,
            np.ascontiguousarray(inputs),
            np.ascontiguousarray(hazard),
            RECENT_RUN_LENGTHS,
            levels,
            wanted,
            room,
            noise,
            runs,
        )
        return table, predicted if wanted else None


def known_of(levels: Sequence[float]) -> list[float]:
    """Levels and the median, by which forecasts are corrected."""
    return sorted({*levels, MEDIAN})


def _gathered(
    groups: Sequence[Array], parts: Sequence[tuple[Floats, Summary | None]]
) -> tuple[Floats, Summary | None]:
    """Tables and summaries of groups of rows, in the order of all; groups: places among these."""
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate(groups), kind="stable")
    table = np.concatenate([table for table, _ in parts])[order]
    summaries = [predicted for _, predicted in parts if predicted is not None]
    if not summaries:
        return table, None
    numbers = np.concatenate([predicted.numbers for predicted in summaries])[order]
    return table, Summary(numbers, summaries[0].outputs, summaries[0].support)
