"""Errors in words: those of pydantic, as what was expected and what was got; misspelt names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

# What to say of a name that looks like another one and means its inverse.
INVERSE = {
    "false_alarms_per_day": "; `false_alarm_every` is the observations of one series between two "
    "false alarms, and the service's option --false-alarms-per-day a rate of all its streams"
}
SHOWN = 50  # characters of a value
LIKE = 0.6  # least similarity of two names, of which 1 is the same
BOUNDS = {
    "greater_than_equal": ("a number of at least", "ge"),
    "greater_than": ("a number above", "gt"),
    "less_than_equal": ("a number of at most", "le"),
    "less_than": ("a number below", "lt"),
}
LENGTHS = {
    "string_too_short": ("at least", "min_length", "character"),
    "string_too_long": ("at most", "max_length", "character"),
    "too_short": ("at least", "min_length", "item"),
    "too_long": ("at most", "max_length", "item"),
}
TYPES = {
    "float_type": "a number",
    "float_parsing": "a number",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}


def expected(error: Mapping[str, Any]) -> str:
    """Return what was expected, without the value, which may be a secret."""
    kind = error["type"]
    context = error.get("ctx", {})
    if kind == "missing":
        return "required"
    if kind == "finite_number":  # 1e999 stands for NaN, which is not JSON
        return "expected a finite number"
    if kind in BOUNDS and BOUNDS[kind][1] in context:
        words, name = BOUNDS[kind]
        bound = context[name]
        return f"expected {words} {format(bound, 'g') if isinstance(bound, float) else bound}"
    if kind in LENGTHS and LENGTHS[kind][1] in context:
        words, name, unit = LENGTHS[kind]
        count = context[name]
        return f"expected {words} {count} {unit}{'' if count == 1 else 's'}"
    if kind == "literal_error" and "expected" in context:
        return f"expected {context['expected']}"
    if kind == "string_pattern_mismatch" and "pattern" in context:
        return f"expected text that matches {context['pattern']}"
    if kind in TYPES:
        return f"expected {TYPES[kind]}"
    message: str = error["msg"]
    return message.removeprefix("Value error, ")


def described(error: Mapping[str, Any]) -> str:
    """Return what was expected, and what was got where that is short and not said yet."""
    text = expected(error)
    if not text.startswith("expected ") or error["type"] == "finite_number" or ", got " in text:
        return text
    if error["type"] == "value_error" and isinstance(error["input"], dict):
        return text  # of fields together: that they are an object is right
    return f"{text}, got {_shown(error)}"


def _shown(error: Mapping[str, Any]) -> str:
    value: Any = error["input"]
    if error["type"] in ("too_short", "too_long"):
        return str(error["ctx"]["actual_length"])
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    constant = {True: "true", False: "false", None: "null"}
    text = constant[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def did_you_mean(name: str, names: Iterable[str], most: int = 1, like: float = LIKE) -> str:
    """Return "; did you mean 'x'?", with at most `most` names like it; empty: none is."""
    if name in INVERSE:
        return INVERSE[name]
    close = get_close_matches(name, names, most, like)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
