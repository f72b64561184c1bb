"""`moca evaluate all`: the quality of the service's default settings."""
