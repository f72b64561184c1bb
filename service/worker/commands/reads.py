"""What a stream believes: read, foretold and acted by; stated, and its regimes named.

A stated belief is kept with the observation that follows it, so that a rerun makes it again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from moca_client import responses
from moca_client.responses import (
    Action,
    Hypothesis,
    Prediction,
    Predictions,
    RunLengthSummary,
)
from model_core import actions, readout
from model_core import filter as moca
from model_core.actions import Strategy
from model_core.lazy import torch
from model_core.predictive import Mixture
from model_core.stream import forecasts, seasons, warmup
from model_core.stream.checks import check_input
from model_core.stream.columns import Floats, effective_rates, hazard_table, packed
from model_core.stream.slab import RECENT_RUN_LENGTHS, Refused, Slab
from model_core.stream.state import KnownRegime
from service.observability import metrics
from service.problems import (
    NotAwaited,
    NotInstalled,
    NumericalFault,
    UnfitBelief,
    UnfitModel,
    UnknownRegime,
    WarmingUp,
)
from service.wire import (
    LEVELS,
    Act,
    Envelope,
    NameRegime,
    Predict,
    Record,
    Regimes,
    RunLength,
    SetBelief,
)
from service.worker.filtering import delayed_labels
from service.worker.filtering.pipeline import StoredPipeline
from service.worker.streams import step_inputs, validation
from service.worker.streams.answers import components, predictives, summarise
from service.worker.streams.registry import Engine
from service.worker.streams.stream import Stream


def predictions(
    engine: Engine, stream: Stream, command: Predict, envelope: Envelope
) -> Predictions:
    """Answer to POST predictions: the mixture for the observation to come, at each input."""
    if command.horizon:
        return _forecast(engine, stream, command)
    if described(command):
        engine.need_torch()
    head = stream.live()
    inputs = command.x if command.x is not None else [[]]
    for i, x in enumerate(inputs):
        check_input(x, head.x_dim, f"x[{i}]")
    validation.check_predictions(stream, command, len(inputs))
    StoredPipeline(engine).wake([stream])
    predicted = [Prediction() for _ in inputs]
    slab = stream.slab or engine.slab(head)
    if stream.slab is not None:
        row: int | None = delayed_labels.newest(engine, stream)
    else:
        seen = step_inputs.columns_of(slab.model, stream.buffer)
        (row,) = warmup.begun(slab, [seen], [head.settings])
    if row is not None:
        records = [step_inputs.coming(slab.model, head, command.elapsed, x or None) for x in inputs]
        offset = stream.offset(len(head.pending))
        try:
            predicted = _predicted(slab, row, records, offset, command)
        finally:
            if stream.slab is None:
                slab.remove(row)
    for prediction, x in zip(predicted, inputs, strict=True):
        prediction.x = x or None
    return Predictions(
        stream=stream.name,
        seq=head.next_seq,
        model=head.settings.model,
        warming_up=stream.slab is None,
        predictions=predicted,
    )


def _forecast(engine: Engine, stream: Stream, command: Predict) -> Predictions:
    """Answer to POST predictions with a horizon: one predictive for each label to come.

    Exact where labels are exchangeable, else of paths that are drawn. The i-th samples of all
    steps are one path.
    """
    head = stream.live()
    model = engine.catalogue.of(head)
    if model.x_dim:
        raise UnfitModel(
            f"horizon: {head.settings.model} predicts labels from inputs; give `x` instead",
            field="horizon",
        )
    StoredPipeline(engine).wake([stream])
    if stream.slab is None:
        detail = (
            f"horizon: the stream is still warming up at seq {head.seq}; a forecast needs "
            f"{head.settings.warmup} labels, or the settings `location` and `scale`"
        )
        raise WarmingUp(detail, seq=head.seq)
    count = max(command.samples, 0 if model.exchangeable else forecasts.PATHS)
    validation.check_predictions(stream, command, command.horizon)
    if count:
        validation.check_paths(engine, stream, command, count)
    slab = stream.slab
    row = delayed_labels.newest(engine, stream)
    coming = step_inputs.columns_of(model, [step_inputs.coming(model, head, command.elapsed)])
    first = len(head.pending)
    offsets = seasons.ahead(stream.season_state, first + command.horizon, model.y_dim)[first:]
    levels = sorted(command.quantiles)
    drawn = None
    try:
        if count:
            summaries, drawn = forecasts.drawn(
                slab, row, coming, offsets, levels, count, command.seed, engine.tick
            )
        else:
            summaries = forecasts.ahead(slab, row, coming, offsets, levels)
    except Refused as error:
        raise _not_finite(head.seq) from error
    steps = [
        Prediction(ahead=i, predictive=predictive)
        for i, predictive in enumerate(predictives(summaries, command.quantiles), start=1)
    ]
    if command.samples and drawn is not None:
        for i, step in enumerate(steps):
            step.samples = drawn[: command.samples, i].tolist()
    return Predictions(
        stream=stream.name,
        seq=head.next_seq,
        model=head.settings.model,
        warming_up=False,
        predictions=steps,
    )


def described(command: Predict) -> bool:
    """Whether predictions name more than their summary, which kernels do not compute."""
    return command.components or command.samples > 0


def _predicted(
    slab: Slab, row: int, records: list[Record], offset: list[float], command: Predict
) -> list[Prediction]:
    """Predictions of the label to come by a row of a slab; offset: the label's season.

    Raises NumericalFault.
    """
    offsets = np.tile(offset or np.zeros(slab.model.y_dim), (len(records), 1))
    coming = step_inputs.columns_of(slab.model, records)
    levels = sorted(command.quantiles)
    try:
        summaries, applied = forecasts.tried(slab, row, coming, offsets, levels)
    except Refused as error:
        raise _not_finite(records[0].seq) from error
    predicted = [
        Prediction(predictive=predictive)
        for predictive in predictives(summaries, command.quantiles)
    ]
    if described(command):
        mixture, run_lengths = slab.mixture(row, packed(slab.model, coming))
        _describe(predicted, mixture.shifted(offset), run_lengths, applied, command)
    return predicted


def _not_finite(seq: int) -> NumericalFault:
    metrics.NUMERICAL_FAULTS.inc()
    return NumericalFault(f"the prediction at seq {seq} is not finite", seq=seq)


def _describe(
    predicted: list[Prediction],
    mixture: Mixture,
    run_lengths: list[Any],
    applied: Floats,
    command: Predict,
) -> None:
    """Add components, and samples, which are corrected as the summaries were."""
    if command.components:
        for prediction, parts in zip(predicted, components(mixture, run_lengths), strict=True):
            prediction.components = parts
    if command.samples:
        generator = torch.Generator(mixture.log_weight.device).manual_seed(command.seed)
        drawn = mixture.sample(command.samples, generator).cpu().numpy()
        draws = forecasts.moved(drawn, applied[:, None]).tolist()
        for prediction, drawn in zip(predicted, draws, strict=True):
            prediction.samples = drawn


def act(engine: Engine, stream: Stream, command: Act, envelope: Envelope) -> Action:
    """Answer to POST actions: the candidate chosen, and the values it was the best of."""
    engine.need_torch()
    head = stream.live()
    model = engine.catalogue.of(head)
    takes_none = model.x_dim == 0 and head.x_dim is not None  # None: no input has come yet
    if takes_none or model.label == "class" or model.y_dim != 1:
        raise UnfitModel(
            "actions require a model with inputs and one numeric label; "
            f"{head.settings.model} has x_dim {model.x_dim}, y_dim {model.y_dim} and labels "
            f"of kind {model.label!r}"
        )
    for i, candidate in enumerate(command.candidates):
        check_input(candidate, head.x_dim, f"candidates[{i}]")
    StoredPipeline(engine).wake([stream])
    if stream.slab is None:
        other = "" if model.scales_inputs else ", or create it with `location` and `scale`"
        raise WarmingUp(
            f"the stream is still warming up at seq {head.seq}: post more observations{other}",
            seq=head.seq,
        )
    slab = stream.slab
    coming = step_inputs.coming(model, head, command.elapsed, command.candidates[0])
    state, prior = slab.batch([delayed_labels.newest(engine, stream)])
    grown, _ = moca.grow(state, prior, step_inputs.inputs(slab, [coming]))
    candidates = torch.tensor([command.candidates], dtype=torch.float64, device=slab.device)
    strategy = Strategy(command.strategy, command.samples)  # type: ignore[arg-type]
    generators = actions.seeded([command.seed], slab.device)
    held = actions.hypotheses(grown)
    choice = actions.choose(model, held, candidates, strategy, generators)
    chosen = int(choice.chosen[0])
    return Action(
        stream=stream.name,
        seq=head.next_seq,
        model=head.settings.model,
        strategy=command.strategy,
        chosen=chosen,
        candidate=command.candidates[chosen],
        values=(choice.values[0] + sum(stream.offset(len(head.pending)))).tolist(),
        seed=None if command.strategy == "greedy" else command.seed,
    )


# --- the belief itself, and regimes ---------------------------------------------------------------


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
    validation.check_position(command.seq, head.seq)
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
        (regime,) = readout.typical_regimes(slab.model, slab.batch([stream.row])[0])
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
        regimes=_with_predictives(engine, stream, _known(stream)),
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
    described = _with_predictives(engine, stream, known)
    return described[known.index(chosen[0])]


def _known(stream: Stream) -> list[KnownRegime]:
    """The regimes that are remembered, by id; none while warming up."""
    return [] if stream.slab is None else stream.slab.regimes(stream.row)


def _with_predictives(
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
