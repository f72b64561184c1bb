"""Labels, inputs and levels as users give them."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from datetime import UTC, date, datetime
from typing import Any, NamedTuple, TypeVar

import numpy as np

from model_core import labels
from model_core.errors import BadInput
from model_core.lazy import is_tensor

Label = Any  # a number, a sequence of numbers, a mapping of them, or None or nan: missing
Parsed = TypeVar("Parsed")


def levels(quantiles: Sequence[float]) -> list[float]:
    """Levels of quantiles in rising order, the median in any case; raises BadInput."""
    ordered = sorted(numbers("quantiles", quantiles))
    if (
        not ordered
        or not all(0 < level < 1 for level in ordered)
        or len(set(ordered)) < len(ordered)
    ):
        raise BadInput(f"quantiles: expected distinct levels between 0 and 1, got {quantiles!r}")
    return sorted({*ordered, 0.5})


def elements(values: Any) -> list[Any]:
    """Elements of a list, an array, or a column or frame of pandas or polars."""
    if isinstance(values, str | bytes | Mapping | Set):  # a set has no order
        raise BadInput(f"expected a list or an array of observations, got {type(values).__name__}")
    if isinstance(values, list):
        return values
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    listed = values.tolist() if isinstance(values, np.ndarray) or is_tensor(values) else values
    if not isinstance(listed, Iterable):
        raise BadInput(f"expected a list or an array of observations, got {values!r}")
    return list(listed)


class Frame(NamedTuple):
    """Observations; their times, None where they have none; names of its numbers, if any."""

    rows: Any
    times: Any
    names: list[str | int]


def frame(rows: Any) -> Frame:
    """Observations of a frame or column of pandas or polars, or of anything else.

    Times are a frame's one column of dates, else pandas' index of dates; names those of the other
    columns, unless they only count them. Raises BadInput for columns without numbers, and for those
    that have one name, by their names.
    """
    columns = _columns(rows)
    dates = [column for column in columns if str(column.dtype).lower().startswith("date")]
    if len(dates) > 1:
        names = [column.name for column in dates]
        raise BadInput(f"expected at most one column of dates, got {names}; leave the others out")
    labels = [column for column in columns if not any(column is times for times in dates)]
    if others := [column.name for column in labels if not _numeric(column)]:
        raise BadInput(
            f"expected columns of numbers, and at most one of dates; {others} have none: convert "
            "them to numbers, or leave them out"
        )
    names = [named(column.name) for column in labels]
    if again := [name for name, times in Counter(names).items() if times > 1]:
        raise BadInput(
            f"expected columns with names of their own, got several {again}; rename them"
        )
    if names == list(range(len(names))):  # what pandas has in place of names
        names = []
    if dates:
        return Frame(list(zip(*map(list, labels), strict=True)), list(dates[0]), names)
    index: Any = getattr(rows, "index", None)
    if type(index).__name__ == "PeriodIndex":
        index = index.to_timestamp()
    return Frame(rows, index if type(index).__name__ == "DatetimeIndex" else None, names)


def named(name: Any) -> str | int:
    """A name as a file can have it: a text or a whole number; of several levels their texts."""
    if isinstance(name, str):
        return name
    if isinstance(name, tuple):
        return " ".join(map(str, name))
    return int(name) if isinstance(name, int | np.integer) else str(name)


def _columns(rows: Any) -> list[Any]:
    """Columns of a frame; none of anything else."""
    if hasattr(rows, "collect"):
        raise BadInput(f"expected rows, got a {type(rows).__name__}; call its collect() first")
    if hasattr(rows, "get_columns"):  # polars
        return list(rows.get_columns())
    return [column for _, column in rows.items()] if hasattr(rows, "iterrows") else []


def _numeric(column: Any) -> bool:
    """Whether values of a frame's column are numbers, or may be: objects that are no text."""
    if hasattr(column.dtype, "is_numeric"):  # polars
        numbers = column.dtype.is_numeric() or str(column.dtype) == "Null"
        objects = str(column.dtype) == "Object"
    else:
        numbers = column.dtype.kind in "iuf"
        objects = column.dtype.kind == "O"
    return numbers or (
        objects and not any(isinstance(value, str | bool | datetime) for value in column)
    )


def numbers(name: str, value: Any) -> tuple[float, ...]:
    """Numbers of a label or an input, nan where missing; raises BadInput.

    A truth value is no number.
    """
    try:
        if isinstance(value, str | bytes | bool | np.bool_):
            raise TypeError
        if isinstance(value, float | int):
            return (float(value),)
        if _is_missing(value):
            return (math.nan,)
        alone = (isinstance(value, np.ndarray) or is_tensor(value)) and not value.ndim
        if isinstance(value, Iterable) and not alone:
            several = list(value)
            if any(isinstance(number, bool | np.bool_) for number in several):
                raise TypeError
            return tuple(math.nan if _is_missing(number) else float(number) for number in several)
        return (float(value),)
    except (TypeError, ValueError) as error:
        truth = isinstance(value, bool | np.bool_)
        hint = (
            f"as a label it is {int(value)}"
            if truth
            else "convert text to numbers, and leave columns of other types out"
        )
        raise BadInput(
            f"{name}: expected a number or a list of numbers, got {value!r}; {hint}"
        ) from error
    except OverflowError as error:
        raise BadInput(
            f"{name}: expected numbers up to {labels.LARGEST:g}, got a larger one"
        ) from error


def _is_missing(value: Any) -> bool:
    """Whether a value is None, or pandas' NA or NaT, which is not imported for that."""
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def by_name(name: str, value: Mapping[Any, Any], fields: Sequence[Any]) -> list[Any]:
    """Values of a mapping in the order of its names, None where missing; raises BadInput."""
    unknown = [field for field in value if field not in fields]
    if unknown:
        raise BadInput(f"{name}: expected the names {list(fields)}, got {unknown} as well")
    return [value.get(field) for field in fields]


def moments(times: Any, count: int) -> list[float]:
    """When `count` observations were made, in seconds since 1970; nan where that is not known.

    times: datetimes or dates, None where missing; None: of none it is known. One without an offset
    is UTC. Raises BadInput.
    """
    if times is None:
        times = [None] * count
    given = list(times) if isinstance(times, Iterable) else [times]
    if len(given) != count:
        raise BadInput(f"time: expected one for each of {count} labels, got {len(given)}")
    return each("time", _moment, given)


def _moment(time: Any) -> float:
    if time is None:
        return math.nan
    if type(time) is date:
        time = datetime(time.year, time.month, time.day, tzinfo=UTC)
    if not isinstance(time, datetime):
        raise BadInput(f"time: expected a datetime, got {time!r}")
    if time != time:  # pandas' NaT, which is a datetime
        return math.nan
    seconds = (time.replace(tzinfo=UTC) if time.tzinfo is None else time).timestamp()
    try:
        datetime.fromtimestamp(seconds, UTC)  # as events have it
    except (ValueError, OverflowError):
        raise BadInput(f"time: expected one from year 1 to 9999 in UTC, got {time}") from None
    return seconds


def time(elapsed: Any) -> float:
    """Time since the observation before, 1 by default; raises BadInput."""
    number = 1.0 if elapsed is None else _alone("elapsed", elapsed)
    if not 0 < number < math.inf:
        raise BadInput(f"elapsed: expected a number above 0, got {elapsed!r}")
    return number


def probability(changepoint: Any) -> float:
    """Supervision, nan where there is none; raises BadInput."""
    number = _alone("changepoint", changepoint)
    if changepoint is not None and not 0 <= number <= 1:
        raise BadInput(f"changepoint: expected a probability, got {changepoint!r}")
    return number


def _alone(name: str, value: Any) -> float:
    """One number; nan where it is none, or several."""
    try:
        values = numbers(name, value)
    except BadInput:
        return math.nan
    return values[0] if len(values) == 1 else math.nan


def names(streams: Any) -> list[str]:
    """Names of series, empty ones where only their number is given; raises BadInput."""
    named: list[str] = []
    if not isinstance(streams, str | bytes | bool):
        try:
            named = [""] * operator.index(streams)
        except TypeError:
            named = list(map(str, streams)) if isinstance(streams, Iterable) else []
    if not named:
        raise BadInput(
            "streams: expected how many series, at least one, or a list of their names, got "
            f"{streams!r}"
        )
    return named


def places(names: Sequence[str]) -> dict[str, int]:
    """Index of each name that one series alone has."""
    times = Counter(names)
    return {name: i for i, name in enumerate(names) if times[name] == 1}


def index(stream: Any, count: int, places: Mapping[str, int]) -> int:
    """Index of one of `count` series by its index or name; raises BadInput."""
    if isinstance(stream, str) and stream in places:
        return places[stream]
    try:
        position = -1 if isinstance(stream, bool) else operator.index(stream)
    except TypeError:
        position = -1
    if not 0 <= position < count:
        name = ", or the name of one series" if isinstance(stream, str) else ""
        raise BadInput(f"stream: expected an index from 0 to {count - 1}{name}, got {stream!r}")
    return position


def each(name: str, parse: Callable[[Any], Parsed], values: Sequence[Any]) -> list[Parsed]:
    """Parse each of the values; the error of one of several names its place, as `name[3]`."""
    parsed: list[Parsed] = []
    try:
        for value in values:
            parsed.append(parse(value))
    except BadInput as error:
        if len(values) > 1:
            error.args = (str(error).replace(f"{name}:", f"{name}[{len(parsed)}]:", 1),)
        raise
    return parsed
