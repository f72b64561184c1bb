"""`moca evaluate all`: what the service's default settings find and forecast, beside baselines."""
