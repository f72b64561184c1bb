"""Underlying predictive models and the protocol they keep."""
