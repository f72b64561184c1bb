"""Sample series that ship with the service; README.md names their sources."""
