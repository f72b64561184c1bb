"""The training report of a published model: measurements, JSON, web page."""
