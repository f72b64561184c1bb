"""Models that streams can use: the catalogue, canaries, sensitivity curves."""
