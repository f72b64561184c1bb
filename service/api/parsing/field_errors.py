"""Convert pydantic's validation errors to the field errors of problem documents."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pydantic import ValidationError

from service.problems import MAX_ERRORS, FieldError
from service.schema.observations import STREAM_ID_RULE

OTHER_BRANCH = ("list_type", "model_type")  # of the branches of a union that do not apply
_branch = re.compile(
    r"float|constrained-.*|list\[.*|function-.*|nullable.*|DurationsForm"
).fullmatch


def field_errors(error: ValidationError, root: str) -> list[FieldError]:
    """Return the field errors, without those of union branches that do not apply.

    At most one more than a problem document lists, so that it can mention further ones.
    """
    named: list[FieldError] = []
    errors = error.errors(include_url=False, include_context=False)
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
