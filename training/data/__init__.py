"""Series for training and evaluation, one module for each source."""
