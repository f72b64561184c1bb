"""Predictions of several labels to come, of models that take no input."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from moca_client.responses import Prediction, Predictions, Predictive
from model_core import summary
from model_core.lazy import Tensor
from model_core.stream import forecasts
from model_core.summary import Summary
from model_core.upm.base import UnderlyingModel
from service.problems import UnfitModel, WarmingUp
from service.wire import Predict
from service.worker.filtering import delayed_labels
from service.worker.filtering.pipeline import StoredPipeline
from service.worker.streams import limits, step_inputs
from service.worker.streams.answers import predictives, summarise
from service.worker.streams.registry import Engine
from service.worker.streams.stream import Stream


def predictions(engine: Engine, stream: Stream, command: Predict) -> bytes:
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
    limits.check_predictions(engine, stream, command, command.horizon)
    if count:
        limits.check_paths(engine, stream, command, count)
    slab = stream.slab
    row = delayed_labels.newest(engine, stream)
    coming = step_inputs.coming(model, head, command.elapsed)
    first = len(head.pending)
    offsets = np.array([stream.offset(first + i) for i in range(command.horizon)])
    drawn = None
    if count:
        inputs = step_inputs.inputs(slab, [coming] * count)
        drawn = forecasts.paths(slab, row, inputs, offsets, command.seed)
    if model.exchangeable:
        mixtures = forecasts.mixtures(slab, row, step_inputs.inputs(slab, [coming]), offsets)
        forecast = [summarise(mixture, command.quantiles)[0] for mixture in mixtures]
    else:
        assert drawn is not None
        forecast = [of_draws(model, drawn[:, i], command.quantiles) for i in range(command.horizon)]
    steps = [
        Prediction(ahead=i, predictive=predictive) for i, predictive in enumerate(forecast, start=1)
    ]
    if command.samples and drawn is not None:
        for i, step in enumerate(steps):
            step.samples = drawn[: command.samples, i].tolist()
    answer = Predictions(
        stream=stream.name,
        seq=delayed_labels.position(head),
        model=head.settings.model,
        warming_up=False,
        predictions=steps,
    )
    return msgspec.json.encode(answer)


def of_draws(model: UnderlyingModel, drawn: Tensor, levels: Sequence[float]) -> Predictive:
    """Predictive of draws (N, d) of one label."""
    numbers = summary.of_draws(drawn, sorted(levels), model.label, model.classes)
    (predictive,) = predictives(Summary(numbers[None], model.y_dim, model.label), levels)
    return predictive
