"""The subcommands of `moca`."""
