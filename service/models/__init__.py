"""Models that streams can use: the catalogue, and canaries."""
