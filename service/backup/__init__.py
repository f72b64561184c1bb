"""The whole deployment in one file: backup and restore."""
