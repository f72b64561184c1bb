"""Whether the service's process in this container lives; exit status 0: it does.

A worker is asked for its metrics at MOCA_METRICS_PORT, anything else for /livez at MOCA_PORT.
Alive is not ready: a container must not be restarted because the store is away.
"""

import os
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 4.0


def address(environ):
    """Return what to ask."""
    port = environ.get("MOCA_METRICS_PORT", "0")
    if port != "0":
        return f"http://127.0.0.1:{port}/metrics"
    return f"http://127.0.0.1:{environ.get('MOCA_PORT', '8000')}/livez"


def main():
    """Ask, and say why not."""
    url = address(os.environ)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=TIMEOUT_S) as answer:
            return int(answer.status != 200)
    except (OSError, urllib.error.HTTPError) as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
