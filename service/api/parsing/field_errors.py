"""What pydantic found wrong, as the problem documents say it: field by field."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pydantic import ValidationError

from service.errors.base import MAX_ERRORS, FieldError
from service.schema.observations import STREAM_ID_SAID

OTHER_BRANCH = ("list_type", "model_type")  # of a union: what was not meant
_branch = re.compile(r"float|constrained-.*|list\[.*|function-.*|nullable.*|Durations").fullmatch


def field_errors(error: ValidationError, root: str) -> list[FieldError]:
    """Return what is wrong, field by field, without the branches of unions nobody meant.

    One more than a problem document names, at most: it says then that there are others.
    """
    found: list[FieldError] = []
    errors = error.errors(include_url=False, include_context=False)
    for each in errors:
        if len(found) > MAX_ERRORS:
            break
        loc, kind = each["loc"], each["type"]
        nested = isinstance(each.get("input"), list | dict)
        in_union = bool(loc) and isinstance(loc[-1], str) and _branch(loc[-1]) is not None
        if in_union and (kind in OTHER_BRANCH or (kind == "float_type" and nested)):
            continue
        detail = each["msg"].removeprefix("Value error, ")
        if kind == "string_pattern_mismatch" and loc[-1] == "stream":
            detail = f"expected {STREAM_ID_SAID}"
        found.append(FieldError(_loc(root, loc), _DETAILS.get(kind, detail)))
    if not found:  # of no branch at all, such as an object for a number or a list
        found = [FieldError(_loc(root, errors[0]["loc"]), "wrong type")]
    return found


_DETAILS = {
    "extra_forbidden": "unknown field",
    "missing": "required",
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
    return text
