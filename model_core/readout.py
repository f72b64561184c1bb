"""What the host needs to know of a step: one table for a batch, copied from the device at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import NDArray

from model_core import regimes
from model_core.codec import StreamRow
from model_core.compiled import LABEL, SETTLED, SINCE
from model_core.filter import FilterState, Info
from model_core.lazy import Tensor, torch
from model_core.stream.events import EventReading
from model_core.stream.state import KnownRegime
from model_core.table import Layout, Rows, statistics_line
from model_core.transfer import to_host
from model_core.upm.base import UnderlyingModel

Floats = NDArray[np.float64]


class Readout(NamedTuple):
    """One stream's numbers after a step.

    outlying: the label is more probably an outlier than not. evidence: of a change since the last
    confirmation, see `compiled.belief`; of a filter with a memory of one to a new regime.
    event_*, start_totals: of the start that events are about, the most probable one unless the
    `decisive` evidence has reached the stream's threshold. longest, shortest, coverage: where that
    may be, the fewest starts that hold .9 of the probability; all 0 where it is not asked. totals,
    start_totals: count, sums and sums of squares of the labels, 1 + 2d numbers. regime: of a model
    with typical regimes, or the stored one that the stream is in. Of a filter with a memory:
    new_probability: of a change to a new regime since the last confirmation. return_evidence: of a
    return. returned: the stored regime that began since then, if that is more probable than a new
    one, with its share of the probability.
    """

    log_score: float
    changepoint_probability: float
    pruned_mass: float
    born_previous_start: int
    ok: bool
    outlying: bool
    changed_probability: float
    evidence: float
    recent_change_probability: float
    map_run_length: int
    event_run_length: int
    event_probability: float
    event_previous_start: int
    mean_run_length: float
    hypotheses: int
    best_start: int
    longest: int
    shortest: int
    coverage: float
    totals: list[float]
    start_totals: list[float]
    regime: KnownRegime | None = None
    new_probability: float | None = None
    return_evidence: float | None = None
    returned: KnownRegime | None = None

    @property
    def decisive(self) -> float:
        """Evidence of the more probable kind of change, by which one is confirmed."""
        if self.returned is None or self.return_evidence is None:
            return self.evidence
        return self.return_evidence

    def reading(self, seq: int, time: str | None = None, quantity: bool = True) -> EventReading:
        """Return what events follow; quantity: whether labels are numbers with a mean."""
        return EventReading(
            seq,
            time,
            seq - self.event_run_length,
            self.event_probability,
            self.event_previous_start,
            self.totals if quantity else None,
            self.start_totals if quantity else None,
            self.decisive,
            earliest=seq - self.longest if self.coverage else None,
            latest=seq - self.shortest if self.coverage else None,
            coverage=self.coverage or None,
            returned=self.returned,
            labelled=self.log_score == self.log_score,
        )


# Each is one column of the table, in this order; totals and start_totals follow.
NUMBERS = {name: kind for name, kind in get_type_hints(Readout).items() if isinstance(kind, type)}
# Those that are of the step, not of the belief after it; the first.
OF_STEP = (
    "log_score", "changepoint_probability", "pruned_mass", "born_previous_start", "ok", "outlying"
)  # fmt: skip
OF_MEMORY = 6  # numbers of a filter with a memory, see `compiled.regimes`
_WHOLE = [place for place, kind in enumerate(NUMBERS.values()) if kind is int]
_FLAGS = [place for place, kind in enumerate(NUMBERS.values()) if kind is bool]


def columns(layout: Layout, lines: Tensor, heads: Tensor, info: Info) -> Tensor:
    """Numbers (B, C) of rows that `table` reads off, where the rows are; info: of their step."""
    of_step = [getattr(info, name).double() for name in OF_STEP]
    read = [lines[:, part].flatten(1) for part in _read(layout)]
    return torch.cat((torch.stack(of_step, 1), heads, *read), 1)


def at_rest(layout: Layout, lines: Floats, heads: Floats) -> Floats:
    """As `columns`, of rows on the host that were not stepped."""
    read = [lines[:, part].reshape(len(lines), -1) for part in _read(layout)]
    return np.hstack((np.zeros((len(lines), len(OF_STEP))), heads, *read))


def _read(layout: Layout) -> list[slice]:
    """Lines that are read off."""
    beliefs = slice(statistics_line(layout.outputs))
    return [beliefs, slice(layout.origin, layout.returns + 1)] if layout.regimes else [beliefs]


def table(
    layout: Layout, numbers: Floats, inputs: Floats, hazards: Floats, recent_window: int
) -> tuple[Floats, Floats]:
    """Return the numbers (B, 19 + 2 + 4d) of `Readout` of rows as they are, on the host.

    numbers: by `columns` or `at_rest`; what follows them, if anything, is returned, too. inputs
    (B, 7 at least), hazards (B, H): of the step, as of `Kernel.advance`. recent_window: run lengths
    that count as a recent change.
    """
    from model_core.compiled import step  # numba: half a second

    origin = statistics_line(layout.outputs)
    height = origin + (2 if layout.regimes else 0)
    first = len(OF_STEP) + layout.head
    last = first + height * layout.width
    heads = np.ascontiguousarray(numbers[:, len(OF_STEP) : first])
    lines = numbers[:, first:last].reshape(-1, height, layout.width)
    held = Rows(layout.slots, np.ascontiguousarray(lines), heads, layout.regimes)
    found = step.read(layout.outputs, held, origin, inputs, hazards, recent_window)
    found[:, : len(OF_STEP)] = numbers[:, : len(OF_STEP)]
    return found, numbers[:, last:]


def of_row(layout: Layout, own: StreamRow, settled: int, hazard: Floats) -> Readout:
    """What the belief of a row says, as a step would read it off.

    settled: position up to which changes are. hazard: (H,), as of `Inputs`.
    """
    watched = np.zeros((1, LABEL))
    watched[:, (SETTLED, SINCE)] = settled
    head = own.head[None]
    held = at_rest(layout, own.lines[None], head)
    numbers, _ = table(layout, held, watched, hazard[None], 0)
    (line,) = rows(numbers, head[:, layout.numbers :] if layout.regimes else None)
    return line


def rows(numbers: Floats, memories: Floats | None = None) -> list[Readout]:
    """Return the readout of each stream of a table, on the host.

    memories: (B, ...) numbers of the memories of filters that have one.
    """
    first = len(NUMBERS)
    end = numbers.shape[1] - (0 if memories is None else OF_MEMORY)
    middle = first + (end - first) // 2
    columns: list[list[Any]] = numbers[:, :first].T.tolist()
    whole = numbers[:, _WHOLE].astype(np.int64).T.tolist()
    for place, values in zip(_WHOLE, whole, strict=True):
        columns[place] = values
    for place in _FLAGS:
        columns[place] = list(map(bool, columns[place]))
    totals = (numbers[:, first:middle].tolist(), numbers[:, middle:end].tolist())
    lines = list(map(Readout, *columns, *totals))
    if memories is None:
        return lines
    read = numbers[:, end:].tolist()
    return [
        line._replace(**_recalled(own, memory))
        for line, own, memory in zip(lines, read, memories, strict=True)
    ]


def _recalled(read: Sequence[float], memory: Floats) -> dict[str, Any]:
    """Fields of a readout by what `compiled.regimes` reads off, and numbers of the memory."""
    fresh, returned, since, since_share, now, now_probability = read
    ids, seen, last = memory[regimes.REGIMES :].reshape(regimes.OF_EACH, -1).astype(int).tolist()

    def regime(origin: float, probability: float) -> KnownRegime | None:
        at = int(origin) - 1
        return None if at < 0 else KnownRegime(None, probability, ids[at], seen[at], last[at])

    return {
        "new_probability": fresh,
        "return_evidence": returned,
        "returned": regime(since, since_share),
        "regime": regime(now, now_probability),
    }


def typical_regimes(model: UnderlyingModel, state: FilterState) -> list[KnownRegime]:
    """The typical regime of each stream: weights of hypotheses are those of the belief."""
    weight = state.belief.log_prob.unsqueeze(-1).exp()
    chances = (weight * model.types(state.stats).exp()).sum(1)
    best, at = to_host(list(chances.max(-1)))
    pairs = zip(at.tolist(), best.tolist(), strict=True)
    return [KnownRegime(model.typical[m], min(p, 1.0)) for m, p in pairs]
