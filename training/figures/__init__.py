"""Figures of experiments: described once (`chart`), drawn as HTML and as PNG (`save`)."""
