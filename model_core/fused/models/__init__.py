"""Models: the predictive of an output under each hypothesis, and the update of the statistics."""
