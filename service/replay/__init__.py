"""`moca replay`: stream a file through a running service; write the answers and a plot."""

from moca_client.tables.answers import Replayed
from moca_client.tables.series import Series, SeriesError, read_series
from service.replay.run import ReplayError, replay

__all__ = ["ReplayError", "Replayed", "Series", "SeriesError", "read_series", "replay"]
