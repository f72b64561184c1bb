"""Evaluation of trained models and of the default settings: `moca evaluate`."""
