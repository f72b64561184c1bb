"""Kernels of the built-in models: predict, score, learn, remember and summarise of each."""
