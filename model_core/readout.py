"""What the host needs to know of a step: one table for a batch, copied from the device at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import NDArray

from model_core import belief as beliefs
from model_core import hazard as hazards
from model_core import regimes
from model_core.filter import FilterState, Info, expected_hazard
from model_core.lazy import Tensor, torch
from model_core.stream.events import EventReading
from model_core.stream.state import KnownRegime
from model_core.transfer import to_host
from model_core.upm.base import UnderlyingModel


class Readout(NamedTuple):
    """One stream's numbers after a step.

    outlying: the label is more probably an outlier than not. evidence: of a change since the last
    confirmation, see `belief.evidence_of_change`; of a filter with a memory of one to a new regime.
    event_*, start_totals: of the start that events are about, the most probable one unless the
    `decisive` evidence has reached the stream's threshold. longest, shortest, coverage: where that
    may be, see `belief.likely_starts`; all 0 where it is not asked. totals, start_totals: count,
    sums and sums of squares of the labels, 1 + 2d numbers. regime: of a model with typical regimes,
    or the stored one that the stream is in. Of a filter with a memory: new_probability: of a change
    to a new regime since the last confirmation. return_evidence: of a return. returned: the stored
    regime that began since then, if that is more probable than a new one, with its share of the
    probability.
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
_WHOLE = [place for place, kind in enumerate(NUMBERS.values()) if kind is int]
_FLAGS = [place for place, kind in enumerate(NUMBERS.values()) if kind is bool]


def table(
    state: FilterState,
    info: Info,
    hazard: Tensor,
    watch: Tensor,
    recent_window: int,
) -> Tensor:
    """Return the numbers of `Readout` (B, 19 + 2 + 4d) on the state's device; see `rows`.

    state: after the step. hazard: (B, H), as of `Inputs`. watch: (B, 3) numbers of
    `Watch`. recent_window: run lengths that count as a recent change.
    """
    settled, since, thresholds = watch.unbind(-1)
    belief = state.belief
    seq = state.seq - 1
    # Starts after the settled ones: run lengths below seq - settled.
    below = seq - settled
    rate = hazards.greatest(hazard, expected_hazard(state, hazard))
    origins = None
    if state.memory is None:
        evidence = beliefs.evidence_of_change(belief, below, rate)
        decisive = evidence
    else:
        origins, evidence = regimes.origins(belief, state.memory, below, rate)
        decisive = torch.where(origins.since > 0, origins.returned, evidence)
    slot = beliefs.suspected(belief, below, decisive, thresholds)
    asked = (decisive >= thresholds) | (since < settled)
    stream = torch.arange(len(slot), device=slot.device)
    # Of a new change none are those of the one before, whose start is not looked at again yet.
    new = belief.run_length[stream, slot] < below
    likely = beliefs.likely_starts(belief, torch.where(new, below, seq - since))
    longest, shortest, coverage = (torch.where(asked, value, 0) for value in likely)
    probability = belief.log_prob.exp()
    columns = {
        "log_score": info.log_score,
        "changepoint_probability": info.changepoint_probability,
        "pruned_mass": info.pruned_mass,
        "born_previous_start": info.born_previous_start,
        "ok": info.ok,
        "outlying": info.outlying,
        "changed_probability": beliefs.mass_below(belief, below),
        "evidence": evidence,
        "recent_change_probability": beliefs.mass_below(
            belief, torch.full_like(below, recent_window)
        ),
        "map_run_length": belief.run_length[
            stream, beliefs.likeliest(belief.log_prob, belief.run_length)
        ],
        "event_run_length": belief.run_length[stream, slot],
        "event_probability": probability[stream, slot],
        "event_previous_start": belief.previous_start[stream, slot],
        "mean_run_length": (probability * belief.run_length).sum(-1),
        "hypotheses": torch.isfinite(belief.log_prob).sum(-1),
        "best_start": seq
        - belief.run_length[stream, beliefs.likeliest(belief.score, belief.run_length)],
    }
    columns |= {"longest": longest, "shortest": shortest, "coverage": coverage}
    numbers = torch.stack([columns[name].double() for name in NUMBERS], 1)
    parts = [numbers, state.totals, state.totals_at_start[stream, slot]]
    if origins is not None:
        parts.append(torch.stack([column.double() for column in origins], 1))
    return torch.cat(parts, 1)


def rows(
    table: Tensor | NDArray[np.float64], memories: NDArray[np.float64] | None = None
) -> list[Readout]:
    """Return the readout of each stream of a table, on the host.

    memories: (B, ...) numbers of the memories of filters that have one.
    """
    first = len(NUMBERS)
    numbers = table if isinstance(table, np.ndarray) else to_host([table])[0].numpy()
    end = numbers.shape[1] - (0 if memories is None else len(regimes.Origins._fields))
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


def _recalled(read: Sequence[float], memory: NDArray[np.float64]) -> dict[str, Any]:
    """Fields of a readout by numbers of `regimes.Origins`, and those of the memory."""
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
