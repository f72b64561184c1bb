"""Models of `upm.conjugate`: loops over outputs, parts and slots around `maths.conjugate`.

The class of a model's statistics decides on its equations, the family of its predictives on scores
and summaries (`compiled.families`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
from numba.core import cgutils
from numba.extending import overload
from numba.np import arrayobj

from model_core.compiled import LABEL, step
from model_core.compiled.families import ANSWERS, Places
from model_core.compiled.jit import OPTIONS, Floats, compiled, implements, intrinsic, whole
from model_core.compiled.ops import maths
from model_core.upm import conjugate

_EQUATIONS = maths("conjugate")
_MODEL_OF = {model.statistics: model for model in conjugate.Conjugate.__subclasses__()}
_INLINED = {"forceinline": True, **OPTIONS}


class Conjugate(NamedTuple):
    """A model. outputs: numbers in a label, or classes: equations look at one of them at a time.

    step: as of `Places`, of the statistics, and an instance of their class: compiled code knows the
    model by it. first: their rows. aside: in place of those of shared statistics until the last
    output has them. stated: of the parameters of the predictive. mixture: of each part of the
    prior what the equations need, if it is a mixture.
    """

    step: Any
    first: tuple[int, ...]
    aside: tuple[int, ...]
    stated: Places
    mixture: tuple[tuple[float, ...], ...]
    outputs: int
    classes: int
    rows: int
    kept: int
    params: int
    statistics: int
    parts: int
    outliers: int
    spare: int


def of(model: conjugate.Conjugate) -> Conjugate:
    """Dimensions of a model."""
    outputs, parts = model.classes or model.y_dim, max(len(model.mixture), 1)
    answers = ANSWERS[model.family]
    stated, params = answers.places(outputs, parts)
    widths = [1 if name in model.shared else outputs for name in model.statistics._fields]
    steps = [int(name not in model.shared) for name in model.statistics._fields]
    kept = sum(widths)
    first = [sum(widths[:k]) for k in range(len(widths))]
    return Conjugate(
        step=model.statistics(*steps),
        first=tuple(first),
        aside=tuple(first[k] if own else kept + k for k, own in enumerate(steps)),
        stated=stated,
        mixture=model.mixture,
        outputs=outputs,
        classes=model.classes,
        rows=kept + len(widths),
        kept=kept,
        params=params,
        statistics=len(widths),
        parts=parts,
        outliers=int(hasattr(_EQUATIONS, f"wide_{model.equations}")),
        spare=answers.spare,
    )


# --- numbers of one output in a slot --------------------------------------------------------------


def _pointers(target: Any, builder: Any, signature: Any, arguments: Any) -> list[Any]:
    rows, first, step, at, slot = arguments[:5]
    array = arrayobj.make_array(signature.args[0])(target, builder, rows)
    width = cgutils.unpack_tuple(builder, array.shape)[1]
    pointers = []
    for row, further in zip(
        cgutils.unpack_tuple(builder, first), cgutils.unpack_tuple(builder, step), strict=True
    ):
        own = builder.mul(builder.add(row, builder.mul(further, at)), width)
        pointers.append(builder.gep(array.data, [builder.add(own, slot)]))
    return pointers


@intrinsic
def take(context: Any, rows: Any, first: Any, step: Any, at: Any, slot: Any) -> Any:
    """The numbers of an output in one slot of rows, as a tuple; first, step: see `Places`."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values = map(builder.load, _pointers(target, builder, signature, arguments))
        return target.make_tuple(builder, signature.return_type, list(values))

    kind = numba.types.UniTuple(numba.types.float64, first.count)
    return kind(rows, first, step, at, slot), generate


@intrinsic
def put(context: Any, rows: Any, first: Any, step: Any, at: Any, slot: Any, numbers: Any) -> Any:
    """Write the numbers of an output into one slot of rows."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values = cgutils.unpack_tuple(builder, arguments[5])
        for value, pointer in zip(
            values, _pointers(target, builder, signature, arguments), strict=True
        ):
            builder.store(value, pointer)
        return target.get_dummy_value()

    return numba.types.void(rows, first, step, at, slot, numbers), generate


# --- equations ------------------------------------------------------------------------------------


def _equation(step: Any, prefix: str = "") -> Any:
    """Of the model whose statistics are of this type; None: it has none."""
    return getattr(_EQUATIONS, prefix + _MODEL_OF[step.instance_class].equations, None)


def _part(mixture: Any, k: int) -> Any:
    """What the equations need of a part of the prior; nothing of a prior that is no mixture."""


def _state(step: Any, stats: Any, part: Any, location: float) -> Any:
    """Parameters of the predictive."""


def _widen(step: Any, parameters: Any, part: Any) -> Any:
    """Those of an outlier."""


def _update(step: Any, stats: Any, y: float, weight: float) -> Any:
    """Statistics after a label."""


@overload(_part, jit_options=_INLINED, strict=False)  # type: ignore[untyped-decorator]
def _part_of(mixture: Any, k: int) -> Any:
    return (lambda mixture, k: mixture[k]) if mixture.count else lambda mixture, k: ()


@overload(_state, jit_options=_INLINED, strict=False)  # type: ignore[untyped-decorator]
def _state_by(step: Any, stats: Any, part: Any, location: float) -> Any:
    function = _equation(step)
    if part.count:
        return lambda step, stats, part, location: function(stats, part, location)
    return lambda step, stats, part, location: function(stats)


@overload(_widen, jit_options=_INLINED, strict=False)  # type: ignore[untyped-decorator]
def _widen_by(step: Any, parameters: Any, part: Any) -> Any:
    function = _equation(step, "wide_")
    if function is None:  # no label is an outlier
        return lambda step, parameters, part: parameters
    if part.count:
        return lambda step, parameters, part: function(parameters, part)
    return lambda step, parameters, part: function(parameters)


@overload(_update, jit_options=_INLINED, strict=False)  # type: ignore[untyped-decorator]
def _update_by(step: Any, stats: Any, y: float, weight: float) -> Any:
    function = _equation(step, "update_")
    return lambda step, stats, y, weight: function(stats, y, weight)


@implements(step.predict, Conjugate)
def predict(
    model: Conjugate,
    number: Floats,
    context: Floats,
    location: Floats,
    own: Floats,
    params: Floats,
) -> None:
    """Parameters of the predictives; those of outliers in the last column."""
    for o in range(model.outputs):
        for k in range(model.parts):
            part, at = _part(model.mixture, k), o * model.parts + k
            centre = location[0 if model.classes > 0 else o]
            _predict(model.step, model.first, model.stated, part, o, at, centre, own, params)
    finish(model, params)


@compiled
def _predict(
    step: Any,
    first: tuple[int, ...],
    stated: Places,
    part: tuple[float, ...],
    output: int,
    at: int,
    location: float,
    own: Floats,
    params: Floats,
) -> None:
    n = whole(own[0])
    for i in range(n):
        parameters = _state(step, take(own, first, step, output, i), part, location)
        put(params, stated.first, stated.step, at, i, parameters)
    parameters = take(params, stated.first, stated.step, at, n - 1)
    put(params, stated.first, stated.step, at, n - 1, _widen(step, parameters, part))


@implements(step.score, Conjugate)
def score(model: Conjugate, number: Floats, own: Floats, params: Floats, each: Floats) -> None:
    """As the family has it."""
    log_density(model, number, params, each)


@implements(step.learn, Conjugate)
def learn(
    model: Conjugate, number: Floats, context: Floats, share: Floats, own: Floats, params: Floats
) -> None:
    """Conjugate update with the responsibility as a fraction of an observation."""
    for o in range(model.outputs):
        of_class = 1.0 if number[LABEL] == o else 0.0
        y = of_class if model.classes > 0 else number[LABEL + o]
        into = model.first if o == model.outputs - 1 else model.aside
        _learn(model.step, model.first, into, o, y, share, own)


@compiled
def _learn(
    step: Any,
    first: tuple[int, ...],
    into: tuple[int, ...],
    output: int,
    y: float,
    share: Floats,
    own: Floats,
) -> None:
    for i in range(whole(share)):
        stats = take(own, first, step, output, i)
        put(own, into, step, output, i, _update(step, stats, y, share[i]))


@implements(step.remember, Conjugate)
def remember(model: Conjugate, number: Floats, params: Floats, context: Floats) -> None:
    """Nothing."""


@implements(step.summarise, Conjugate)
def summarise(
    model: Conjugate,
    number: Floats,
    chance: Floats,
    params: Floats,
    levels: Floats,
    spare: Floats,
    out: Floats,
) -> None:
    """As the family has it."""
    describe(model, number, chance, params, levels, spare, out)


# --- families -------------------------------------------------------------------------------------


def _of_family(function: Callable[..., None]) -> Callable[..., None]:
    """Make a function of a model that of the same name in the answers of its family."""

    def chosen(model: Any, *arguments: Any) -> Any:
        kind = _MODEL_OF[model.types[model.fields.index("step")].instance_class]
        return getattr(ANSWERS[kind.family], function.__name__)

    overload(function, jit_options=OPTIONS, strict=False)(chosen)
    return function


@_of_family
def finish(model: Conjugate, params: Floats) -> None:
    """See `families.Answers`."""


@_of_family
def log_density(model: Conjugate, number: Floats, params: Floats, each: Floats) -> None:
    """See `families.Answers`."""


@_of_family
def describe(
    model: Conjugate,
    number: Floats,
    chance: Floats,
    params: Floats,
    levels: Floats,
    spare: Floats,
    out: Floats,
) -> None:
    """See `families.Answers`."""
