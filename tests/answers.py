"""Comparison of JSON answers."""

from __future__ import annotations

import math


def close(found: object, expected: object, tolerance: float = 1e-9, at: str = "$") -> None:
    """Check that two JSON values are equal, their numbers to the tolerance."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), at
        assert found.keys() == expected.keys(), at
        for key in expected:
            close(found[key], expected[key], tolerance, f"{at}.{key}")
    elif isinstance(expected, list | tuple):
        assert isinstance(found, list | tuple), at
        assert len(found) == len(expected), at
        for i, pair in enumerate(zip(found, expected, strict=True)):
            close(*pair, tolerance, f"{at}[{i}]")
    elif isinstance(expected, float) and isinstance(found, float):
        same = math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance)
        assert same, f"{at}: {found!r} is not {expected!r}"
    else:
        assert found == expected, f"{at}: {found!r} is not {expected!r}"
