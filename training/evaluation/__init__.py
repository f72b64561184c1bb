"""Evaluations of what the service says by default: `moca evaluate`."""
