"""Print each alert that Alertmanager posts as a line of JSON: python receiver.py [HOST [PORT]]."""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

MAX_BODY_BYTES = 1 << 20
TIMEOUT_S = 10


class Receiver(BaseHTTPRequestHandler):
    """Takes the messages of a webhook receiver."""

    timeout = TIMEOUT_S

    def do_POST(self):
        """Print the alerts of a message."""
        try:
            size = int(self.headers.get("Content-Length", ""))
            if not 0 <= size <= MAX_BODY_BYTES:
                raise ValueError(f"expected a body of at most {MAX_BODY_BYTES} bytes, got {size}")
            lines = [line_of(alert) for alert in json.loads(self.rfile.read(size))["alerts"]]
        except (ValueError, KeyError, TypeError) as error:
            self.send_error(400, explain=f"not a message of Alertmanager: {error!r}")
            return
        for line in lines:
            print(line, flush=True)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        """Print alerts alone."""


def line_of(alert):
    """Return the line of one alert."""
    labels, annotations = alert["labels"], alert["annotations"]
    shown = {
        "status": alert["status"],
        "alert": labels["alertname"],
        "severity": labels.get("severity"),
        "namespace": labels.get("namespace"),
        "summary": annotations.get("summary"),
        "runbook_url": annotations.get("runbook_url"),
        "since": alert["startsAt"],
    }
    return json.dumps({name: value for name, value in shown.items() if value is not None})


def main():
    """Run until the process is ended."""
    host, port = (*sys.argv[1:], *("0.0.0.0", "9095")[len(sys.argv) - 1 :])  # noqa: S104
    with HTTPServer((host, int(port)), Receiver) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
