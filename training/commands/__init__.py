"""The offline subcommands of `moca`: train, evaluate, publish, data."""
