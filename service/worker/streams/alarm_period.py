"""Alarm periods of streams that state none, by the service's `false_alarms_per_day`.

Every stream may raise as many false alarms as any other: with n streams, f false alarms a day over
all of them and m observations a day of its own, it has a `false_alarm_every` of m n / f. That is
fixed once its observations cover an hour, and anew once they cover another day; until then it is
the default. So an alarm depends on few numbers, all of which are in the log and in heads: what is
applied once more after a crash meets the same period.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from model_core.stream_settings import DEFAULTS, TABLE
from service.wire import Envelope, Head, Observation, Pace, timestamps

FIRST_S = 3600.0
DAY_S = 86_400.0
# Observations: less evidence is no reason for an alarm, however slow a stream is.
SHORTEST = 1000.0
LONGEST = TABLE["false_alarm_every"].meaning.le or inf


def followed(head: Head, envelope: Envelope) -> bool:
    """Whether observations of a command count for the period, or have another one fixed."""
    if envelope.quiet_days is not None:
        return not head.own_rule
    return head.pace is not None or is_stale(head)


def follow(head: Head, envelope: Envelope, seen: Sequence[Observation]) -> None:
    """Count observations of a command that were applied; fix the period where it is time."""
    if envelope.quiet_days is None:
        head.pace = None
        if is_stale(head):
            _fix(head, DEFAULTS.threshold)
        return
    if head.own_rule or not seen:
        return
    time = seen[-1].time
    now = envelope.time_ms / 1000 if time is None else timestamps.seconds(time)
    timed = time is not None
    pace = head.pace
    if pace is None or pace.timed != timed or now < pace.since:
        head.pace = Pace(now, timed, per_day=None if pace is None else pace.per_day)
        return
    pace = pace._replace(seen=pace.seen + len(seen))
    covered_s = now - pace.since
    if covered_s < (FIRST_S if pace.per_day is None else DAY_S) or not envelope.quiet_days:
        head.pace = pace
        return
    interval = head.settings.interval
    per_day = DAY_S / interval if interval is not None else pace.seen * DAY_S / covered_s
    head.pace = Pace(now, timed, per_day=per_day)
    _fix(head, min(max(per_day * envelope.quiet_days, SHORTEST), LONGEST))


def is_stale(head: Head) -> bool:
    """Whether the period is of a setting that is no more, or was another service's."""
    return not head.own_rule and head.settings.false_alarm_every != DEFAULTS.threshold


def _fix(head: Head, period: float) -> None:
    head.settings = head.settings._replace(false_alarm_every=period)
