"""External override of the run-length posterior.

An override is kept with the observation that follows it, so that a rerun makes it again.
"""

from __future__ import annotations

from collections.abc import Sequence

from model_core import readout
from model_core.stream.beliefs import believed
from model_core.stream.columns import effective_rates, hazard_table
from service.problems import NotAwaited, UnfitBelief, WarmingUp
from service.wire import SetBelief
from service.worker.streams.registry import Engine
from service.worker.streams.stream import Stream
from service.worker.streams.validation import check_position


def set_belief(engine: Engine, stream: Stream, command: SetBelief) -> None:
    """Put the stated probabilities in place of the believed ones.

    Only run lengths that have a hypothesis can be given any: of all others there are no
    statistics. What is known of the observation to come is kept as its supervision.
    """
    head = stream.live()
    if head.pending:
        raise NotAwaited(
            f"labels are pending from seq {head.seq} on: post them before overriding the belief"
        )
    check_position(command.seq, head.seq)
    if command.belief is not None:
        _replace(engine, stream, command.belief)
    if command.changepoint is not None:
        head.pending_supervision = command.changepoint


def _replace(engine: Engine, stream: Stream, stated: list[tuple[int, float]]) -> None:
    head = stream.live()
    slab = stream.slab
    if slab is None or head.seq == 0:
        raise WarmingUp(f"the stream has no belief yet at seq {head.seq}", seq=head.seq)
    kept = slab.belief(stream.row).run_length
    for run_length, _ in stated:
        if run_length not in kept:
            raise UnfitBelief(
                f"belief: no hypothesis has run length {run_length}; existing run lengths: "
                + ", ".join(map(str, kept[:20]))
                + (", ..." if len(kept) > 20 else ""),
                field="belief",
            )
    head.belief_override = [
        (run_length, probability) for run_length, probability in stated if probability
    ]
    believe(stream, head.belief_override)
    engine.commit_state(stream)


def believe(stream: Stream, stated: Sequence[tuple[int, float]]) -> None:
    """Have a stream that has observations believe what is stated, and its head say so."""
    head = stream.live()
    slab = stream.slab
    assert slab is not None
    own = slab.restate(stream.row, stated)
    if slab.model.typical:
        (regime,) = readout.typical_regimes(slab.model, slab.state(stream.row))
        head.regime = regime
    hazard, _ = effective_rates(slab.model, head.settings)
    (table,) = hazard_table(slab.model, [hazard])
    last = head.seq - 1
    belief = believed(slab.layout, own.lines, own.head, last - head.track.settled, table)
    head.map_run_length = belief.map_run_length
    head.best_start = last - belief.best_run_length
    head.changed_probability = belief.changed_probability
    head.evidence = belief.evidence
