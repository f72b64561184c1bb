"""Refusals of what is asked or told of a stream beside observations and settings."""

from __future__ import annotations

from service.errors import Refused


class UnfitModel(Refused):
    """The stream's model cannot do what is asked."""

    status, slug, title = 422, "unfit-model", "Unfit model"


class UnfitBelief(Refused):
    """An override that names what the stream has no hypothesis of."""

    status, slug, title = 422, "unfit-belief", "Unfit belief"


class UnfitSnapshot(Refused):
    """A snapshot that cannot be read, or not by this deployment."""

    status, slug, title = 422, "unfit-snapshot", "Unfit snapshot"


class WarmingUp(Refused):
    """The stream has no belief yet; `seq` says how far it is."""

    status, slug, title = 409, "warming-up", "Warming up"


class StreamExists(Refused):
    """There is a stream of this name already."""

    status, slug, title = 409, "stream-exists", "Stream exists"


class UnknownEvent(Refused):
    """The stream has no such event."""

    status, slug, title = 404, "unknown-event", "Unknown event"


class NotRetained(Refused):
    """What is asked about lies outside of the observations that are retained."""

    status, slug, title = 409, "not-retained", "Not retained"


class StreamReplaced(Refused):
    """What was followed is not the present stream; `seq` says where that is."""

    status, slug, title = 409, "stream-replaced", "Stream replaced"


class TimeBackwards(Refused):
    """An observation from before the one before it, in a stream whose times count."""

    status, slug, title = 422, "time-backwards", "Time goes backwards"


class NotAwaited(Refused):
    """A label that does not fit the observation that awaits it, or that cannot be awaited."""

    status, slug, title = 409, "not-awaited", "Label not awaited"
