"""Clients of a Redis cluster."""
