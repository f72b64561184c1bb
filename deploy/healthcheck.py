"""Whether the service's process in this container lives; exit status 0: it does.

A worker is asked for its metrics at MOCA_METRICS_PORT, anything else for /livez at MOCA_HOST and
MOCA_PORT.
Alive is not ready: a container must not be restarted because the store is away.
"""

import http.client
import os
import sys
import urllib.request

TIMEOUT_S = 4.0
EVERYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


def address(environ):
    """Return what to ask."""
    port = environ.get("MOCA_METRICS_PORT", "0")
    if port != "0":
        return f"http://127.0.0.1:{port}/metrics"
    host = environ.get("MOCA_HOST", "")
    host = EVERYWHERE.get(host, host)
    place = f"[{host}]" if ":" in host else host
    return f"http://{place}:{environ.get('MOCA_PORT', '8000')}/livez"


def main():
    """Ask, and say why not."""
    url = address(os.environ)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=TIMEOUT_S) as answer:
            return int(answer.status != 200)
    except (OSError, http.client.HTTPException) as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
