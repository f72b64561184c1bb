"""Errors: the tree, those of HTTP alone, and those of streams."""
