"""Figures of training, evaluation and reports, drawn by matplotlib."""
