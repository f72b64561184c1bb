"""Convert validation errors of pydantic and msgspec to the field errors of problem documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from service.problems import MAX_ERRORS, FieldError
from service.schema.observations import STREAM_ID_RULE

# Of the branches of a union that do not apply.
OTHER_BRANCH = ("list_type", "model_type", "model_attributes_type")
JSON_TYPES = {"float": "number", "int": "integer", "str": "string", "bool": "boolean"}
_msgspec_text = re.compile(r"(.*?)(?: - at `\$(.*)`)?", re.DOTALL).fullmatch
_field = re.compile(r"Object (?:contains (unknown)|missing required) field `(.*)`", re.DOTALL).match
_quoted = re.compile(r"`([^`]*)`")
_branch = re.compile(
    r"float|constrained-.*|list\[.*|function-.*|nullable.*|DurationsForm"
).fullmatch


def field_errors(errors: Sequence[Any], root: str = "") -> list[FieldError]:
    """Return the field errors, without those of union branches that do not apply.

    root: place of the whole; empty where it comes first in the place of each error, as in those of
    FastAPI. At most one more than a problem document lists, so that it can mention further ones.
    """
    named: list[FieldError] = []
    for item in errors:
        if len(named) > MAX_ERRORS:
            break
        loc, kind = item["loc"], item["type"]
        nested = isinstance(item.get("input"), list | dict)
        in_union = bool(loc) and isinstance(loc[-1], str) and _branch(loc[-1]) is not None
        if in_union and (kind in OTHER_BRANCH or (kind == "float_type" and nested)):
            continue
        detail = item["msg"].removeprefix("Value error, ")
        if kind == "string_pattern_mismatch" and loc[-1] == "stream":
            detail = f"expected {STREAM_ID_RULE}"
        named.append(FieldError(_loc(root, loc), _DETAILS.get(kind, detail)))
    if not named:  # no branch applies, such as an object for a number or a list
        named = [FieldError(_loc(root, errors[0]["loc"]), "wrong type")]
    return named


_DETAILS = {
    "extra_forbidden": "unknown field",
    "missing": "required",
    "model_attributes_type": "expected an object",
    "float_type": "expected a number",
    "finite_number": "expected a finite number",
}


def _loc(root: str, loc: Iterable[int | str]) -> str:
    text = root
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif not _branch(part):
            text += f".{part[:100]}"
    return text.removeprefix(".")


def field_error(error: msgspec.ValidationError, root: str) -> FieldError:
    """Return the field error of msgspec, which stops at the first one."""
    match = _msgspec_text(str(error))
    assert match is not None
    text = match[1]
    loc = root + (match[2] or "")
    field = _field(text)
    if field is not None:
        detail = "unknown field" if field[1] else "required"
        return FieldError(f"{loc}.{field[2][:100]}", detail)
    if text == "Number out of range":
        return FieldError(loc, "expected a finite number")
    plain = _quoted.sub(lambda quoted: " or ".join(_json_types(quoted[1])), text)
    return FieldError(loc, plain[:1].lower() + plain[1:])


def _json_types(names: str) -> Iterable[str]:
    return (JSON_TYPES.get(name, name) for name in names.split(" | "))
