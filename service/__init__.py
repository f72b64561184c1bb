"""The online service: API processes, workers, and the log between them."""
