"""What is computed of labels to come without changing a stream: predictions, forecasts, actions."""

from __future__ import annotations

from typing import Any

import numpy as np

from moca_client.responses import Action, Prediction, Predictions
from model_core import actions
from model_core import filter as moca
from model_core.actions import Strategy
from model_core.lazy import torch
from model_core.predictive import Mixture
from model_core.stream import forecasts, seasons, warmup
from model_core.stream.checks import check_input
from model_core.stream.slab import Slab
from model_core.summary import Summary
from service.observability import metrics
from service.problems import NumericalFault, UnfitModel, WarmingUp
from service.wire import LEVELS, Act, Envelope, Predict, Record
from service.worker.filtering import delayed_labels
from service.worker.filtering.pipeline import StoredPipeline
from service.worker.streams import step_inputs, validation
from service.worker.streams.answers import components, predictives
from service.worker.streams.registry import Engine
from service.worker.streams.stream import Stream


def predictions(
    engine: Engine, stream: Stream, command: Predict, envelope: Envelope
) -> Predictions:
    """Answer to POST predictions: the mixture for the observation to come, at each input."""
    if command.horizon or described(command):
        engine.need_torch()
    if command.horizon:
        return _forecast(engine, stream, command)
    head = stream.live()
    inputs = command.x if command.x is not None else [[]]
    for i, x in enumerate(inputs):
        check_input(x, head.x_dim, f"x[{i}]")
    validation.check_predictions(engine, stream, command, len(inputs))
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
        detail = f"horizon: the stream is still warming up at seq {head.seq}"
        raise WarmingUp(detail, seq=head.seq)
    count = max(command.samples, 0 if model.exchangeable else forecasts.PATHS)
    validation.check_predictions(engine, stream, command, command.horizon)
    if count:
        validation.check_paths(engine, stream, command, count)
    slab = stream.slab
    row = delayed_labels.newest(engine, stream)
    coming = step_inputs.coming(model, head, command.elapsed)
    first = len(head.pending)
    offsets = seasons.ahead(stream.season_state, first + command.horizon, model.y_dim)[first:]
    levels = sorted(command.quantiles)
    drawn = None
    if count:
        inputs = step_inputs.inputs(slab, [coming] * count)
        summaries, drawn = forecasts.drawn(
            slab, row, inputs, offsets, levels, command.seed, engine.tick
        )
    if model.exchangeable:
        summaries = forecasts.ahead(slab, row, step_inputs.inputs(slab, [coming]), offsets, levels)
    steps = [
        Prediction(ahead=i, predictive=predictives(step, command.quantiles)[0])
        for i, step in enumerate(summaries, start=1)
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
    """Whether predictions name more than their usual summary, which kernels do not compute."""
    return command.components or command.samples > 0 or tuple(command.quantiles) != LEVELS


def _predicted(
    slab: Slab, row: int, records: list[Record], offset: list[float], command: Predict
) -> list[Prediction]:
    """Predictions of the label to come by a row of a slab; offset: the label's season.

    Without a kernel a step costs far more than the mixture before it. Raises NumericalFault.
    """
    if described(command) or not slab.in_series:
        mixture, run_lengths = _mixture(slab, row, records)
        return _described(slab, row, mixture.shifted(offset), run_lengths, command)
    coming = step_inputs.columns_of(slab.model, records)
    steps = slab.tried(row, coming)
    if not all(step.readout.ok for step in steps):
        metrics.NUMERICAL_FAULTS.inc()
        seq = records[0].seq
        raise NumericalFault(f"the prediction at seq {seq} is not finite", seq=seq)
    rows = [step.predictive.numbers(offset) for step in steps if step.predictive is not None]
    summary = Summary(np.array(rows), slab.model.y_dim, slab.model.label)
    return [Prediction(predictive=predictive) for predictive in predictives(summary, LEVELS)]


def _mixture(slab: Slab, row: int, records: list[Record]) -> tuple[Mixture, list[int | None]]:
    """Mixture of a row at each input (batch: the inputs), and the run length of each component.

    Shortest run first, whatever slots they are in, so that a seed means the same draws.
    """
    state = slab.state(row)
    prior = slab.prior(row)
    grown = forecasts.ordered(moca.grow(state, prior, step_inputs.inputs(slab, records[:1]))[0])
    states, priors = forecasts.repeated(grown, prior, len(records))
    mixture = moca.predict(slab.model, states, priors, step_inputs.inputs(slab, records)).mixture
    slots = grown.belief.log_prob.shape[1]
    alive = int(torch.isfinite(grown.belief.log_prob[0]).sum())
    outliers = mixture.log_weight.shape[1] - slots  # their component, if any
    at = torch.tensor([*range(alive), *range(slots, slots + outliers)], device=slab.device)
    parts = [parameter.index_select(1, at) for parameter in mixture.components.parameters()]
    ordered = Mixture(mixture.log_weight.index_select(1, at), mixture.components.rebuilt(*parts))
    return ordered, [*grown.belief.run_length[0, :alive].tolist(), *[None] * outliers]


def _described(
    slab: Slab, row: int, mixture: Mixture, run_lengths: list[Any], command: Predict
) -> list[Prediction]:
    """mixture: of a row of a slab, which is not corrected."""
    levels = sorted(command.quantiles)
    described, applied = forecasts.summarised(slab, row, mixture, levels)
    predicted = [
        Prediction(predictive=predictive)
        for predictive in predictives(described, command.quantiles)
    ]
    if command.components:
        for prediction, parts in zip(predicted, components(mixture, run_lengths), strict=True):
            prediction.components = parts
    if command.samples:
        generator = torch.Generator(mixture.log_weight.device).manual_seed(command.seed)
        drawn = mixture.sample(command.samples, generator)
        draws = forecasts.moved(drawn, applied[:, None]).tolist()
        for prediction, drawn in zip(predicted, draws, strict=True):
            prediction.samples = drawn
    return predicted


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
    state = slab.state(delayed_labels.newest(engine, stream))
    grown, _ = moca.grow(state, slab.prior(stream.row), step_inputs.inputs(slab, [coming]))
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
