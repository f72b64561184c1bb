"""Conjugate models, see `upm.conjugate`: loops over outputs, parts and slots around equations.

The class of a model's statistics decides on its equations, the family of its predictives on scores
and summaries (`compiled.families`). An instance of that class, of ones where a statistic is of each
output and zeros where all outputs share it, stands for the model in compiled code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import chain
from typing import Any

import numba
import numpy as np
from numba.core import cgutils

from model_core.compiled import LABEL
from model_core.compiled.arithmetic import maths
from model_core.compiled.belief import SHARE
from model_core.compiled.families import answers_of
from model_core.compiled.jit import (
    FUNCTIONS,
    entry,
    inlined,
    intrinsic,
    of_class,
    slot_pointer,
    state,
    state_at,
    whole,
)
from model_core.compiled.step import Functions, Model, Noise, RowStep, forget
from model_core.maths import counterpart
from model_core.upm.conjugate import Conjugate


def of(model: Conjugate) -> tuple[Model, Functions]:
    """Sizes and functions of a model."""
    outputs = model.classes or model.y_dim
    parts = max(len(model.mixture), 1)
    answers = answers_of(model.family, bool(model.mixture))
    sizes = Model(
        outputs=model.y_dim,
        kept=sum(1 if name in model.shared else outputs for name in model.statistics._fields),
        params=answers.lines_of(outputs, parts),
        classes=model.classes,
        spare=answers.spare,
        spares=parts,
        outliers=int(model.equations.wide is not None),
        noise=Noise(parts, 0, 1, np.ones(parts)),
        numbers=np.array([*chain(*model.mixture)], dtype=float),
    )
    return sizes, functions_of(type(model))


@lru_cache
def functions_of(kind: type[Conjugate]) -> Functions:
    """Functions of all models of a class."""
    names = kind.statistics._fields
    which = kind.statistics(*(int(name not in kind.shared) for name in names))
    mixed = kind.mixture is not Conjugate.mixture  # whether priors of the class are mixtures
    answers = answers_of(kind.family, mixed)
    FUNCTIONS[kind.statistics] = {
        **_equations(kind, mixed),
        "places": answers.places,
        "finish": answers.finish,
    }

    def predict(step: RowStep) -> float:
        """Parameters of the predictives; those of outliers in the last column."""
        model = step.model
        own = step.own
        params = step.params
        n = whole(own[0])
        parts = model.noise.parts
        outputs = max(model.classes, model.outputs)
        numbers = model.numbers
        location = step.context[0] if numbers.shape[0] > 0 else 0.0
        for o in range(outputs):
            lines = lines_of(which, outputs, o)
            for k in range(parts):
                part = (0.0, 0.0, 0.0, 0.0)
                if numbers.shape[0] > 0:
                    own_numbers = numbers[4 * k :]
                    part = (own_numbers[0], own_numbers[1], own_numbers[2], own_numbers[3])
                places = of_class(which, "places", outputs, parts, o * parts + k)
                for i in range(n):
                    stats = state_at(own, lines, i)
                    state(params, places, i, of_class(which, "predictive", stats, part, location))
                widest = of_class(which, "wide", state_at(params, places, n - 1), part)
                state(params, places, n - 1, widest)
        of_class(which, "finish", model, params)
        return 0.0

    def learn(step: RowStep, log_score: float) -> float:
        """Conjugate update with the responsibility as a fraction of an observation."""
        model = step.model
        number = step.number
        own = step.own
        share = step.work[SHARE]
        outputs = max(model.classes, model.outputs)
        for o in range(outputs):
            y = number[LABEL + o] if model.classes == 0 else (1.0 if number[LABEL] == o else 0.0)
            lines = lines_of(which, outputs, o)
            last = o == outputs - 1
            for i in range(whole(share)):
                stats = of_class(which, "update", state_at(own, lines, i), y, share[i])
                put(own, lines, which, last, i, stats)
        return log_score

    # By these names numba's cache tells the functions of one class from those of another.
    for function in (predict, learn):
        function.__qualname__ = f"{function.__name__}_{kind.kind}"
    return Functions(
        entry(predict), answers.score, entry(learn), forget, answers.summarise, answers.draw
    )


def _equations(kind: type[Conjugate], mixed: bool) -> dict[str, Callable[..., Any]]:
    """Equations that take what those of mixtures do, whatever the prior."""
    update = counterpart(kind.equations.update, maths)
    predictive = counterpart(kind.equations.predictive, maths)
    if kind.equations.wide is None:  # no label is an outlier
        wide: Callable[..., Any] = inlined(lambda parameters: parameters)
    else:
        wide = counterpart(kind.equations.wide, maths)
    if mixed:
        return {"update": update, "predictive": predictive, "wide": wide}
    return {
        "update": update,
        "predictive": inlined(lambda stats, part, location: predictive(stats)),
        "wide": inlined(lambda parameters, part: wide(parameters)),
    }


# --- numbers of one output in a slot --------------------------------------------------------------


@intrinsic
def lines_of(context: Any, which: Any, outputs: Any, output: Any) -> Any:
    """Line of each statistic of an output."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        fields, count, at = arguments
        zero = at.type(0)
        first = zero
        lines = []
        for own in cgutils.unpack_tuple(builder, fields):
            shared = builder.icmp_signed("==", own, zero)
            lines.append(builder.add(first, builder.select(shared, zero, at)))
            first = builder.add(first, builder.select(shared, at.type(1), count))
        return target.make_tuple(builder, signature.return_type, lines)

    kind = numba.types.UniTuple(numba.types.int64, len(which.types))
    return kind(which, outputs, output), generate


@intrinsic
def put(context: Any, own: Any, lines: Any, which: Any, last: Any, slot: Any, numbers: Any) -> Any:
    """Write the statistics of an output into one slot; those that are shared with the last."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, *tuples, of_last, place, values = arguments
        places, fields, numbers = (
            cgutils.unpack_tuple(builder, each) for each in (*tuples, values)
        )
        for line, field, value in zip(places, fields, numbers, strict=True):
            pointer = slot_pointer(target, builder, signature.args[0], rows, line, place)
            own_line = builder.icmp_signed("!=", field, field.type(0))
            with builder.if_then(builder.or_(of_last, own_line)):
                builder.store(value, pointer)
        return target.get_dummy_value()

    return numba.types.void(own, lines, which, last, slot, numbers), generate
