"""Declaration of the members of an answer, for rendering, OpenAPI and the client alike.

A member with a plain default is left out while it has that default, and OpenAPI does not require
it. One with `sent` is always there; its default is what a client reads from an older service that
lacks it.
"""

from __future__ import annotations

from copy import copy
from typing import Any, TypeVar

from msgspec import UNSET, Meta, Struct, field

T = TypeVar("T")
ABSENT: Any = UNSET  # leaves a member out, whatever its default


class Response(Struct, omit_defaults=True):
    """Base of the answers."""


def sent(default: T) -> T:
    """Return the default of a member that is sent even while it has it."""
    return field(default_factory=lambda: copy(default))  # a factory's value is never omitted


NULL: Any = sent(None)


def doc(description: str) -> Meta:
    """Description of a member."""
    return Meta(description=description)


def words(*values: str) -> Meta:
    """Values of a member; a client accepts others, of later versions."""
    return Meta(extra_json_schema={"enum": list(values)})
