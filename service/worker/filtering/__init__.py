"""The filter's way through an observation: warm-up, step, labels, events."""
