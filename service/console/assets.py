"""The console's page and files, which hold no data: that comes by the REST interface."""

from __future__ import annotations

import os
from functools import cache
from html import escape
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from model_core.stream_settings import ALARM_SILENCE, DEFAULTS
from service import installed_version

STATIC = Path(__file__).with_name("static")
PAGE = Path(__file__).with_name("page.html")
# For a browser at an address that nothing is at; console and reference are found from there.
MISSING = """\
<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8" />
    <meta name="viewport" content="width=device-width, initial-scale=1" />
    <title>No such page · MOCA service</title>
    <link rel="stylesheet" href="{root}console/colours.css" />
    <link rel="stylesheet" href="{root}console/console.css" />
  </head>
  <body>
    <main>
      <h1>There is no such page</h1>
      <p>
        This service has nothing at <code>{path}</code>. It has a <a href="{root}">console</a>,
        and a <a href="{root}docs">reference of its REST interface</a>, which is under /v1.
      </p>
    </main>
  </body>
</html>
"""
# No script but the service's own files. Styles: the plotting code writes them into its elements.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
SAFETY = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
KEPT = "public, max-age=31536000, immutable"  # its name has its version
ASKED_AGAIN = "no-cache"  # an unchanged file costs a 304
# What a stream without an alarm of its own is marked by, as one with the default alarm would be.
ALARM = {"anomaly_alarm": DEFAULTS.anomaly_alarm, "alarm_silence": ALARM_SILENCE}


def missing(path: str) -> str:
    """Return the page for an unknown path."""
    return MISSING.format(root="../" * (path.count("/") - 1) or "./", path=escape(path))


@cache
def page() -> str:
    """Return the page."""
    text = PAGE.read_text()
    values = {"plotly": plotly_name() or "", "version": installed_version(), **ALARM}
    for place, value in values.items():
        text = text.replace(f"{{{{{place}}}}}", str(value))
    return text


@cache
def plotly_name() -> str | None:
    """Return the name of the plotting code with its version; None: not installed."""
    try:
        installed = version("plotly")
    except PackageNotFoundError:
        return None
    return f"plotly-{installed}.min.js" if _plotly_file().is_file() else None


def _plotly_file() -> Path:
    """Where the package has it; the package itself is not imported, which takes a while."""
    spec = find_spec("plotly")
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    return Path(places[0] if places else "") / "package_data" / "plotly.min.js"


class ConsoleFiles(StaticFiles):
    """The files of the page."""

    path = "/console/{name}"  # as a route has it, which requests are counted by

    def __init__(self) -> None:
        super().__init__(directory=STATIC)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a file, packed where that is understood."""
        scope["route"] = self
        await GZipMiddleware(super().__call__)(scope, receive, send)

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        """Return the place of a file; the plotting code is in its package."""
        if path == plotly_name():
            return str(_plotly_file()), _plotly_file().stat()
        return super().lookup_path(path)

    def file_response(
        self, full_path: Any, stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """Return a file, or that the one that is kept is the same."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(SAFETY)
        kept = full_path == str(_plotly_file())
        response.headers["Cache-Control"] = KEPT if kept else ASKED_AGAIN
        return response
