"""What only a stream of the service is checked by: see `model_core.stream.checks` for all else.

What a read or a step may cost is bounded: its worker answers nobody else meanwhile, and has to keep
its leases.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from model_core.stream.checks import Dimensions
from model_core.upm.base import UnderlyingModel
from model_core.upm.builtin import BUILTIN
from service.problems import SeqConflict, SettingsConflict, UnfitModel, UnfitSettings
from service.wire import LEVELS, Head, Observe, Predict
from service.worker.streams.registry import Engine
from service.worker.streams.stream import Stream

REMEDY = {"model": "move it to another model by POST /v1/streams/{id}/model"}
DELETE = "delete the stream first"
FIXED = (
    "model", "warmup", "location", "scale", "classes", "order", "trend", "season", "seasonal",
    "regimes",
)  # fmt: skip
STATE_BYTES = 32 << 20  # of one stream's hypotheses: a step goes through all of them
# Inputs x hypotheses x outputs x quantiles of one read, about 1 us each: some 2 s, while its worker
# has to keep leases of 5 s.
MAX_READ_EVALUATIONS = 2_000_000
# Hypotheses x outputs x 3, of `averaged` x 54, for one observation, about 0.4 us each: 0.4 s.
MAX_STEP_EVALUATIONS = 1_000_000
# In evaluations of a quantile of one component, about 1 us each on one core.
COVARIANCE = 1 / 32  # of an entry, for each component
NUMBER = 4  # in the answer
COMPONENT = 64  # its moments and its family's parameters in the answer
# Of an output on a path: each of its distributions in the label's summary, and a step of one
# hypothesis.
PATH = 1
PATH_STEP = 1 / 4
# Of a step of paths that feed back, in such steps at the usual levels: each quantile more, and each
# in a tail of less than FAR, where components are not merged.
PATH_QUANTILE = 1 / 10
FAR_QUANTILE = 3
FAR = 1e-3
PATH_BYTES = 1 << 30  # of the states of all paths


def check_position(expected: int | None, current: int) -> None:
    """Raise SeqConflict where a command expects its stream at another position."""
    if expected is not None and expected != current:
        detail = f"seq is {expected}, but the next observation is {current}"
        if expected < current:
            detail += f", and no label is pending at seq {expected}"
        raise SeqConflict(detail, seq=current)


def same_model(name: str, current: str) -> bool:
    """Whether a model's name means the one a stream has; without a version it always does."""
    return name in (current, current.partition("@")[0])


def with_model(engine: Engine, head: Head, given: dict[str, Any]) -> dict[str, Any]:
    """Settings that change a stream, with its model's name where they name none or mean its own."""
    own = head.settings.model
    name = given.get("model", own)
    return {**given, "model": own if same_model(name, own) else engine.catalogue.resolve(name)}


def check_fixed(head: Head, given: dict[str, Any]) -> None:
    """Raise SettingsConflict where a setting that shaped the prior would change."""
    for name in FIXED:
        if name in given and given[name] != getattr(head.settings, name):
            raise SettingsConflict(
                f"{name} cannot change on a stream with observations; {REMEDY.get(name, DELETE)}",
                field=name,
            )


# --- costs ----------------------------------------------------------------------------------------


def check_predictions(stream: Stream, command: Predict, points: int) -> None:
    """Raise UnfitModel for predictions of so many labels that they would take too long."""
    head = stream.live()
    outputs = head.y_dim or 1
    hypotheses = head.settings.max_hypotheses
    levels = len(command.quantiles) + 1 + COMPONENT * command.components
    cost = hypotheses * levels + outputs * (hypotheses * COVARIANCE + NUMBER)
    work = points * outputs * (cost + NUMBER * command.samples)
    _check(work, f"{points} predictions of {outputs} numbers")


def check_details(head: Head, command: Observe) -> None:
    """Raise UnfitModel for quantiles or components of observations that would take too long."""
    levels = len(command.quantiles or ()) + COMPONENT * command.components
    count = len(command.observations)
    work = count * (head.y_dim or 1) * head.settings.max_hypotheses * levels
    _check(work, f"quantiles or components of {count} observations")


def check_paths(engine: Engine, stream: Stream, command: Predict, count: int) -> None:
    """Raise UnfitModel for so many paths that they would take too long, or too much memory."""
    assert stream.slab is not None
    head = stream.live()
    model = engine.catalogue.of(head)
    of_output = PATH * model.parts + PATH_STEP * head.settings.max_hypotheses
    if not model.exchangeable:  # each path has predictives of its own
        far = sum(min(level, 1 - level) < FAR for level in command.quantiles)
        more = max(0, len(command.quantiles) - len(LEVELS) - far)
        of_output *= 1 + PATH_QUANTILE * more + FAR_QUANTILE * far
    most = int(MAX_READ_EVALUATIONS / (count * model.y_dim * of_output))
    what = f"{count} paths of {command.horizon} labels"
    if command.horizon > most:
        raise UnfitModel(
            f"horizon: {what} of {model.y_dim} numbers take too long; at most {most} labels do "
            "not; reduce the horizon, the quantiles or the samples",
            field="horizon",
        )
    if count * stream.slab.row_bytes > PATH_BYTES:
        raise UnfitModel(
            f"horizon: {what} do not fit into memory; reduce the horizon or the samples",
            field="horizon",
        )


def _check(work: float, what: str) -> None:
    if work > MAX_READ_EVALUATIONS:
        raise UnfitModel(
            f"{what}, with this many hypotheses, quantiles and samples, cost {work:.0f} "
            f"evaluations, at most {MAX_READ_EVALUATIONS}: split the request"
        )


def check_sizes(engine: Engine, head: Head, dimensions: Dimensions, max_hypotheses: int) -> None:
    """Raise UnfitSettings where a stream with these dimensions would be too large to step."""
    shaped = replace(head, x_dim=dimensions.x_dim, y_dim=dimensions.y_dim)
    settings = head.settings
    outputs = dimensions.y_dim or 1
    limit = engine.settings.max_dimension
    lags = settings.order * outputs
    built_in = BUILTIN.get(settings.model)
    if built_in is not None and "order" in built_in.takes and lags > limit:
        detail = f"{settings.order} labels of {outputs} numbers are {lags} inputs"
        raise UnfitSettings(f"order: {detail}, expected at most {limit}", field="order")
    model = engine.catalogue.of(shaped)
    hypothesis_bytes = engine.catalogue.hypothesis_bytes(model, settings.regimes)
    work = _work(model)
    # In memory there is a slot for the one that is born, and two for each regime.
    beside = 2 * settings.regimes
    most = min(
        STATE_BYTES // hypothesis_bytes - 1 - beside,
        MAX_STEP_EVALUATIONS // max(work, 1) - beside,
    )
    if max_hypotheses > most:
        fit = f"at most {most} fit" if most > 1 else "not even 2 fit"
        raise UnfitSettings(
            f"max_hypotheses: {max_hypotheses} of {hypothesis_bytes} bytes and {work} evaluations "
            f"each, with these lengths of x and y; {fit}",
            field="max_hypotheses",
        )


def _work(model: UnderlyingModel) -> int:
    """Evaluations for the quantiles of an answer, of one hypothesis."""
    if model.label in ("class", "binary"):
        return 0
    return len(LEVELS) * model.y_dim * model.parts
