"""Numbers at the edge of what a form takes must not be beyond what its worker can do."""

import pytest
from pydantic import ValidationError

from service import wire
from service.schema.observations import MAX_TTL, StreamForm
from service.store.effects import index_effects
from service.wire import Head, StreamSettings


def test_the_longest_time_to_live_can_be_listed():
    """A time of 1e308 s was once taken, and stopped each worker that came to it."""
    assert StreamForm(ttl=MAX_TTL).ttl == MAX_TTL
    head = Head(1, StreamSettings(ttl=MAX_TTL), updated_ms=2**42)
    ((command, _, when, name),) = index_effects(0, "a", head, wire.StreamSettings())
    assert (command, when, name) == ("ZADD", 2**42 + 1000 * MAX_TTL, "a")
    with pytest.raises(ValidationError):
        StreamForm(ttl=1e308)
