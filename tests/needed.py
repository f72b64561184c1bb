"""What packages bring along."""

import contextlib
from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def needed(requirements):
    """Names of distributions that some requirements bring along, themselves included."""
    found, left = set(), [Requirement(each) for each in requirements]
    while left:
        one = left.pop()
        key = (canonicalize_name(one.name), frozenset(one.extras))
        if key in found:
            continue
        found.add(key)
        with contextlib.suppress(PackageNotFoundError):  # of another platform
            for each in map(Requirement, requires(one.name) or []):
                asked = [{"extra": extra} for extra in (*one.extras, "")]
                if each.marker is None or any(each.marker.evaluate(extra) for extra in asked):
                    left.append(each)
    return {name for name, _ in found}
