"""Overrides of a stream's run-length belief: supervision by whoever knows better."""

from __future__ import annotations

import math

import torch

from model_core import belief as beliefs
from service.unfit import NotAwaited, UnfitBelief, WarmingUp
from service.wire import SetBelief
from service.worker.checks import check_position
from service.worker.engine import Engine
from service.worker.stream import Stream


def set_belief(engine: Engine, stream: Stream, command: SetBelief) -> None:
    """Put the stated probabilities in place of the believed ones.

    Only run lengths that have a hypothesis can be given any: of all others there are no
    statistics. What is known of the observation to come is kept as its supervision.
    """
    head = stream.live()
    if head.pending:
        raise NotAwaited(f"labels are to come from seq {head.seq} on: the belief is not settled")
    check_position(command.seq, head.seq)
    if command.belief is not None:
        _replace(engine, stream, command.belief)
    if command.changepoint is not None:
        head.told = command.changepoint


def _replace(engine: Engine, stream: Stream, stated: list[tuple[int, float]]) -> None:
    head, slab = stream.live(), stream.slab
    if slab is None or head.seq == 0:
        raise WarmingUp(f"the stream has no belief yet at seq {head.seq}", seq=head.seq)
    state = slab.state(stream.row)
    found = state.belief.run_length[0].tolist()
    alive = torch.isfinite(state.belief.log_prob[0]).tolist()
    slots = {r: i for i, (r, there) in enumerate(zip(found, alive, strict=True)) if there}
    log_prob = torch.full_like(state.belief.log_prob, beliefs.NEG_INF)
    for run_length, probability in stated:
        if run_length not in slots:
            kept = ", ".join(map(str, sorted(slots)[:20]))
            raise UnfitBelief(
                f"belief: no hypothesis has run length {run_length}; there are {kept}"
                + (", ..." if len(slots) > 20 else ""),
                field="belief",
            )
        log_prob[0, slots[run_length]] = math.log(probability) if probability else beliefs.NEG_INF
    belief = beliefs.override(state.belief, log_prob)
    engine.replace(stream, state._replace(belief=belief))
    last, lengths = head.seq - 1, belief.run_length[0]
    head.map_run_length = int(lengths[belief.log_prob[0].argmax()])
    head.best_start = last - int(lengths[belief.score[0].argmax()])
    since = torch.tensor([last - head.confirmed_start], device=lengths.device)
    head.changed_probability = float(beliefs.mass_below(belief, since))
