"""`moca bench`: measurements of the service and the filter that anyone can repeat.

A measure has one value for each round; everything is measured in turn in each round, so that a
machine that slows down slows all, and ratios are those of neighbours.
"""
