"""Predictions of several labels to come, of models that take no input."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from moca_client.responses import Prediction, Predictions, Predictive
from model_core import horizon
from model_core.upm.base import UnderlyingModel
from service.problems import UnfitModel, WarmingUp
from service.schema.rendering import of_classes, of_numbers
from service.wire import Predict, Record
from service.worker.filtering import delayed_labels
from service.worker.filtering.step import wake
from service.worker.streams import limits, step_inputs
from service.worker.streams.answers import summarise
from service.worker.streams.registry import Engine
from service.worker.streams.stream import Stream

HORIZON_PATHS = 256  # drawn where labels feed back; a median's level has a standard error of 0.03


def predictions(engine: Engine, stream: Stream, command: Predict) -> bytes:
    """Answer to POST predictions with a horizon: one predictive for each label to come.

    Exact where labels are exchangeable, else of HORIZON_PATHS paths. The i-th samples of all
    steps are one path.
    """
    head = stream.live()
    model = engine.catalogue.of(head)
    if model.x_dim:
        raise UnfitModel(
            f"horizon: {head.settings.model} predicts labels from inputs; give `x` instead",
            field="horizon",
        )
    wake(engine, [stream])
    if stream.slab is None:
        detail = f"horizon: the stream is still warming up at seq {head.seq}"
        raise WarmingUp(detail, seq=head.seq)
    count = max(command.samples, 0 if model.exchangeable else HORIZON_PATHS)
    limits.check_predictions(engine, stream, command, command.horizon)
    if count:
        limits.check_paths(engine, stream, command, count)
    drawn = _paths(engine, stream, command, count) if count else None
    if model.exchangeable:
        predictives = _exact(engine, stream, command)
    else:
        assert drawn is not None
        predictives = [
            _summary(model, drawn[:, i], command.quantiles) for i in range(command.horizon)
        ]
    steps = [
        Prediction(ahead=i, predictive=predictive)
        for i, predictive in enumerate(predictives, start=1)
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


def _coming(stream: Stream, command: Predict) -> Record:
    head = stream.live()
    assert stream.slab is not None
    return step_inputs.coming(stream.slab.model, head, command.elapsed)


def _exact(engine: Engine, stream: Stream, command: Predict) -> list[Predictive]:
    slab = stream.slab
    assert slab is not None
    state = slab.state(delayed_labels.newest(engine, stream))
    prior = slab.prior(stream.row)
    inputs = step_inputs.inputs(slab, [_coming(stream, command)])
    mixtures = horizon.mixtures(slab.model, state, prior, inputs, command.horizon)
    if stream.season is not None:
        seasons = _seasons(stream, command).to(slab.device)
        mixtures = (mixture.shifted(seasons[i]) for i, mixture in enumerate(mixtures))
    return [summarise(mixture, command.quantiles)[0] for mixture in mixtures]


def _seasons(stream: Stream, command: Predict) -> Tensor:
    """Seasons (horizon,) of the labels to come."""
    first = len(stream.live().pending)
    offsets = [stream.offset(first + i) for i in range(command.horizon)]
    return torch.tensor(offsets, dtype=torch.float64)


def _paths(engine: Engine, stream: Stream, command: Predict, count: int) -> Tensor:
    """Labels (count, horizon, d)."""
    slab = stream.slab
    assert slab is not None
    states, priors = horizon.repeated(
        slab.state(delayed_labels.newest(engine, stream)), slab.prior(stream.row), count
    )
    inputs = step_inputs.inputs(slab, [_coming(stream, command)] * count)
    generator = torch.Generator(slab.device).manual_seed(command.seed)
    paths = horizon.paths(slab.model, states, priors, inputs, command.horizon, generator)
    return paths if stream.season is None else paths + _seasons(stream, command)[:, None].to(paths)


def _summary(model: UnderlyingModel, drawn: Tensor, levels: Sequence[float]) -> Predictive:
    """Of draws (N, d) of one label: as of a predictive."""
    if model.label == "class":
        counts = torch.bincount(drawn[:, 0].long(), minlength=model.classes)
        return of_classes((counts / len(drawn)).tolist())
    if model.label == "binary":
        share = float(drawn.mean())
        return of_classes([1 - share, share])
    at = torch.tensor(levels, dtype=drawn.dtype, device=drawn.device)
    values = torch.quantile(drawn, at, dim=0).tolist()
    variance = torch.cov(drawn.T).reshape(drawn.shape[1], -1)
    quantiles = dict(zip(map(str, levels), values, strict=True))
    return of_numbers(drawn.mean(0).tolist(), variance.tolist(), quantiles)
