"""Handlers of the REST calls, and their table."""
