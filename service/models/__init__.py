"""Models that streams can use."""
