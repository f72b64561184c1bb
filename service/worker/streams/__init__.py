"""Streams in memory: their state on host and device, and its limits."""
