"""The online service: API processes, workers, and the log between them."""


def installed_version() -> str:
    """Return the version of the service; 0 in a checkout that is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # longer than some commands run

    try:
        return version("moca-service")
    except PackageNotFoundError:
        return "0"
