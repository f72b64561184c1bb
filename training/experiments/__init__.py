"""Experiments: presets, data sources, grids of runs, and the jobs that train them."""
