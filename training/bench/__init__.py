"""Measurements of training under `moca bench`."""
