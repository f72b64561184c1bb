"""Interval estimates and calibration measures."""
