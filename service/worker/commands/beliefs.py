"""What a stream believes, and which regimes it remembers: as it is read, stated and named.

A stated belief is kept with the observation that follows it, so that a rerun makes it again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from moca_client import responses
from moca_client.responses import Hypothesis, RunLengthSummary
from model_core import readout
from model_core.stream.columns import effective_rates, hazard_table
from model_core.stream.slab import RECENT_RUN_LENGTHS
from model_core.stream.state import KnownRegime
from service.problems import NotAwaited, NotInstalled, UnfitBelief, UnknownRegime, WarmingUp
from service.wire import LEVELS, Envelope, NameRegime, Regimes, RunLength, SetBelief
from service.worker.streams.answers import summarise
from service.worker.streams.registry import Engine
from service.worker.streams.stream import Stream
from service.worker.streams.validation import check_position


def run_length(
    engine: Engine, stream: Stream, command: RunLength | SetBelief, envelope: Envelope
) -> responses.RunLength:
    """Answer to GET run-length: the whole belief after the last observation."""
    head = stream.live()
    answer = responses.RunLength(
        stream=stream.name,
        seq=head.seq - 1 if head.seq else None,
        model=head.settings.model,
        warming_up=stream.slab is None,
        changed_probability=head.changed_probability,
        evidence=head.evidence,
    )
    if stream.slab is None or head.seq == 0:
        return answer
    pairs = stream.slab.belief(stream.row).pairs()
    last = head.seq - 1
    answer.belief = [Hypothesis(r, last - r, p) for r, p in pairs]
    answer.run_length = RunLengthSummary(
        map=cast(int, head.map_run_length),
        mean=math.fsum(r * p for r, p in pairs),
        quantiles={str(level): _quantile(pairs, level) for level in LEVELS},
        hypotheses=len(pairs),
        pruned_mass=head.pruned_mass,
    )
    answer.changepoint_probability = sum(p for r, p in pairs if r == 0) if last else None
    recent = math.fsum(p for r, p in pairs if r < RECENT_RUN_LENGTHS)
    answer.recent_change_probability = min(1.0, recent)
    return answer


def _quantile(pairs: list[tuple[int, float]], level: float) -> int:
    total = 0.0
    for r, p in pairs:
        total += p
        if total >= level - 1e-12:
            return r
    return pairs[-1][0]


def set_belief(
    engine: Engine, stream: Stream, command: SetBelief, envelope: Envelope
) -> responses.RunLength:
    """Answer to PUT run-length: the belief, with the stated probabilities in place of its own.

    Only run lengths that have a hypothesis can be given any: of all others there are no
    statistics. What is known of the observation to come is kept as its supervision.
    """
    head = stream.live()
    slab = stream.slab
    if head.pending:
        raise NotAwaited(
            f"labels are pending from seq {head.seq} on: post them before overriding the belief"
        )
    check_position(command.seq, head.seq)
    if command.belief is not None:
        if slab is None or head.seq == 0:
            raise WarmingUp(f"the stream has no belief yet at seq {head.seq}", seq=head.seq)
        kept = slab.belief(stream.row).run_length
        for length, _ in command.belief:
            if length not in kept:
                raise UnfitBelief(
                    f"belief: no hypothesis has run length {length}; existing run lengths: "
                    + ", ".join(map(str, kept[:20]))
                    + (", ..." if len(kept) > 20 else ""),
                    field="belief",
                )
        head.belief_override = [(length, stated) for length, stated in command.belief if stated]
        believe(stream, head.belief_override)
        engine.commit_state(stream)
    if command.changepoint is not None:
        head.pending_supervision = command.changepoint
    stream.touch(envelope.time_ms)
    return run_length(engine, stream, command, envelope)


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
    belief = readout.of_row(slab.layout, own, head.track.settled, table)
    head.map_run_length = belief.map_run_length
    head.best_start = belief.best_start
    head.changed_probability = belief.changed_probability
    head.evidence = belief.evidence


def remembered(
    engine: Engine, stream: Stream, command: Regimes, envelope: Envelope
) -> responses.Regimes:
    """Answer to GET regimes: all that are remembered after the last observation."""
    head = stream.live()
    return responses.Regimes(
        stream=stream.name,
        seq=head.seq - 1 if head.seq else None,
        model=head.settings.model,
        warming_up=stream.slab is None,
        regimes=_described(engine, stream, _known(stream)),
    )


def name_regime(
    engine: Engine, stream: Stream, command: NameRegime, envelope: Envelope
) -> responses.RememberedRegime:
    """Answer to PUT regime: the regime with its new name.

    Names of regimes that are not remembered any more are dropped: there are never more than these.
    """
    head = stream.live()
    known = _known(stream)
    chosen = [regime for regime in known if regime.id == command.regime]
    if not chosen:
        ids = ", ".join(str(regime.id) for regime in known)
        raise UnknownRegime(
            f"the stream remembers no regime {command.regime}; remembered: {ids or 'none'}"
        )
    ids_now = {regime.id for regime in known}
    names = {id_: name for id_, name in head.regime_names.items() if id_ in ids_now}
    names.pop(command.regime, None)
    if command.name is not None:
        names[command.regime] = command.name
    head.regime_names = names
    head.regime = head.named(head.regime)
    stream.touch(envelope.time_ms)
    described = _described(engine, stream, known)
    return described[known.index(chosen[0])]


def _known(stream: Stream) -> list[KnownRegime]:
    """The regimes that are remembered, by id; none while warming up."""
    return [] if stream.slab is None else stream.slab.regimes(stream.row)


def _described(
    engine: Engine, stream: Stream, known: list[KnownRegime]
) -> list[responses.RememberedRegime]:
    """Regimes with their names, and with the next label as each of them has it.

    Without it where the model has inputs, or torch is not installed.
    """
    slab = stream.slab
    predicted: Sequence[responses.Predictive | None] = [None] * len(known)
    if slab is not None and known and not slab.model.x_dim:
        try:
            engine.need_torch()
        except NotInstalled:
            pass
        else:
            predicted = summarise(slab.in_regimes(stream.row).shifted(stream.offset()), LEVELS)
    names = stream.live().regime_names
    described = []
    for regime, predictive in zip(known, predicted, strict=True):
        fields = regime._asdict() | {"name": names.get(regime.id or 0)}
        described.append(responses.RememberedRegime(**fields, predictive=predictive))
    return described
