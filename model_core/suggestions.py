"""The name that was probably meant by a misspelt one, for error messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

LIKE = 0.6  # least similarity of two names, of which 1 is the same


def did_you_mean(name: str, names: Iterable[str], most: int = 1, like: float = LIKE) -> str:
    """Return "; did you mean 'x'?", with at most `most` names like it; empty: none is."""
    close = get_close_matches(name, names, most, like)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
