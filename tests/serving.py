"""HTTP servers of tests, each in a thread of its own."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ThreadServer(ThreadingHTTPServer):
    """Serves from its making until `stop`, or to the end of a `with` block."""

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler], port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,))
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Close the port; returns once the thread has ended."""
        self.shutdown()
        self.server_close()
        self._thread.join()
