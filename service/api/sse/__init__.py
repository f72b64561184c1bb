"""Server-sent events: changepoints, and the observations of one stream."""
