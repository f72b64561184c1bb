"""From a command to its outcome: load shedding, append, replies, reads."""
