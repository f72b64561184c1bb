"""Conversion of published data sets to the files that sources read."""
