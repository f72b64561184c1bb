"""Processes: start, supervision, the embedded store, and who may call."""
