"""Redis: keys, scripts, the log, and reads of committed state."""
