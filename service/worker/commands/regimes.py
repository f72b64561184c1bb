"""The regimes that a stream remembers, and the names they are given."""

from __future__ import annotations

from collections.abc import Sequence

from moca_client import responses
from model_core.stream.state import KnownRegime
from service.problems import NotInstalled, UnknownRegime
from service.wire import LEVELS, NameRegime, Regimes
from service.worker.streams.answers import summarise
from service.worker.streams.registry import Engine
from service.worker.streams.stream import Stream


def remembered(engine: Engine, stream: Stream, command: Regimes) -> responses.Regimes:
    """Answer to GET regimes: all that are remembered after the last observation."""
    head = stream.live()
    return responses.Regimes(
        stream=stream.name,
        seq=head.seq - 1 if head.seq else None,
        model=head.settings.model,
        warming_up=stream.slab is None,
        regimes=_described(engine, stream, _known(stream)),
    )


def name(engine: Engine, stream: Stream, command: NameRegime) -> responses.RememberedRegime:
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
    described = _described(engine, stream, known)
    return described[known.index(chosen[0])]


def _known(stream: Stream) -> list[KnownRegime]:
    """The regimes that are remembered, by id; none while warming up."""
    return [] if stream.slab is None else stream.slab.regimes(stream.row)


def _described(
    engine: Engine, stream: Stream, known: list[KnownRegime]
) -> list[responses.RememberedRegime]:
    """Regimes with their names, and with the next label as each of them has it."""
    head = stream.live()
    predicted: Sequence[responses.Predictive | None] = []
    if known:
        predicted = _predicted(engine, stream) or [None] * len(known)
    described = []
    for regime, predictive in zip(known, predicted, strict=True):
        fields = regime._asdict() | {"name": head.regime_names.get(regime.id or 0)}
        described.append(responses.RememberedRegime(**fields, predictive=predictive))
    return described


def _predicted(engine: Engine, stream: Stream) -> list[responses.Predictive]:
    """The next label in each remembered regime; none of a model with inputs or without torch."""
    if stream.slab is not None and stream.slab.model.x_dim:
        return []
    try:
        engine.need_torch()
    except NotInstalled:
        return []
    assert stream.slab is not None
    return summarise(stream.slab.in_regimes(stream.row).shifted(stream.offset()), LEVELS)
