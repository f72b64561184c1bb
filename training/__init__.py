"""Offline meta-training of models, their evaluation, and the publication of artifacts."""
