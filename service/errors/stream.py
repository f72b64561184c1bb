"""Errors of stream commands other than observe and configure."""

from __future__ import annotations

from service.errors.base import StreamConflict


class UnfitModel(StreamConflict):
    """The stream's model does not support this call."""

    status, slug, title = 422, "unfit-model", "Not supported by the model"


class UnfitBelief(StreamConflict):
    """The override names run lengths that have no hypothesis."""

    status, slug, title = 422, "unfit-belief", "Invalid belief"


class UnfitSnapshot(StreamConflict):
    """The snapshot is invalid, or does not fit this deployment."""

    status, slug, title = 422, "unfit-snapshot", "Invalid snapshot"


class WarmingUp(StreamConflict):
    """The stream has no belief yet: it is warming up; `seq` is its position."""

    status, slug, title = 409, "warming-up", "Warming up"


class StreamExists(StreamConflict):
    """A stream with this id already exists."""

    status, slug, title = 409, "stream-exists", "Stream exists"


class UnknownEvent(StreamConflict):
    """The stream has no such event."""

    status, slug, title = 404, "unknown-event", "Unknown event"


class NotRetained(StreamConflict):
    """The observations that the request refers to are not retained."""

    status, slug, title = 409, "not-retained", "Not retained"


class StreamReplaced(StreamConflict):
    """The subscribed stream was replaced; `seq` is the position of the present one."""

    status, slug, title = 409, "stream-replaced", "Stream replaced"


class TimeBackwards(StreamConflict):
    """The observation is earlier than the previous one, in a stream with an `interval`."""

    status, slug, title = 422, "time-backwards", "Time out of order"


class NotAwaited(StreamConflict):
    """The label does not fit its pending observation, or pending labels are disabled."""

    status, slug, title = 409, "not-awaited", "Pending-label conflict"
