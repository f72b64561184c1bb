"""Redis as the service uses it: keys, scripts, the log and the store."""
