"""`moca replay`: stream a file through a running service; write the answers and a plot."""

from service.replay.run import ReplayError, replay
from service.tables.answers import Replayed
from service.tables.series import Series, SeriesError, read_series

__all__ = ["ReplayError", "Replayed", "Series", "SeriesError", "read_series", "replay"]
