"""Headers as ASGI has them."""

from __future__ import annotations

from starlette.types import Scope


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return a header by its lower-case name."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None
