"""Time elapsed between observations, from their own times."""

from __future__ import annotations

from collections.abc import Sequence

from service import clock
from service.unfit import TimeBackwards
from service.wire import Observation


def elapsed(seen: Observation, interval: float | None, last: float | None) -> float:
    """Steps since the observation before: as stated, else by its time, else one.

    interval: seconds in a step, None where times do not count. last: when that one was.
    """
    if seen.elapsed is not None:
        return seen.elapsed
    if interval is None or seen.time is None or last is None:
        return 1.0
    return max(0.0, clock.seconds(seen.time) - last) / interval


def check(
    observations: Sequence[Observation], first: int, interval: float | None, last: float | None
) -> None:
    """Raise TimeBackwards where one is from before the one before it, and times count."""
    if interval is None:
        return
    for i, seen in enumerate(observations, first):
        if seen.time is None:
            continue
        now = clock.seconds(seen.time)
        if last is not None and now < last and seen.elapsed is None:
            where = "" if len(observations) == 1 and first == 0 else f"observations[{i}]."
            raise TimeBackwards(
                f"{where}time: {last - now:g} s before the observation before it; give `elapsed`, "
                "or post in order",
                field="time",
            )
        last = now
