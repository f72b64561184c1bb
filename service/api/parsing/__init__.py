"""Request bodies, parsed into commands."""
