"""Experiments, each with the preparation of its data, its source of series, and its figures."""
