"""Pages of results that need no network: training reports, and the quality of the defaults."""
