"""Offline jobs that meta-train models and publish artifacts."""
