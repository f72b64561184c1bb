"""The console's files as they are sent: with their types, tags and packed forms."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from html import escape
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from model_core.stream_settings import ALARM_SILENCE, DEFAULTS

STATIC = Path(__file__).with_name("static")
PAGE = "index.html"
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
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
KEPT = "public, max-age=31536000, immutable"  # its name has its version
ASKED_AGAIN = "no-cache"  # an unchanged file costs a 304
# What a stream without an alarm of its own is marked by, as one with the default alarm would be.
ALARM = {"anomaly_alarm": DEFAULTS.anomaly_alarm, "alarm_silence": ALARM_SILENCE}


class Asset(NamedTuple):
    """One file. etag: of its content; the packed form has it with a suffix."""

    content: bytes
    packed: bytes
    kind: str
    etag: str
    cache: str


def names() -> Iterator[str]:
    """Yield the names of the console's own files."""
    return (file.name for file in sorted(STATIC.iterdir()) if file.suffix in TYPES)


def missing(path: str) -> str:
    """Return the page for an unknown path."""
    return MISSING.format(root="../" * (path.count("/") - 1) or "./", path=escape(path))


def asset(name: str) -> Asset | None:
    """Return a file by its name; None if it does not exist."""
    return _asset(name) if name == plotly_name() or name in _own() else None


@cache
def _own() -> frozenset[str]:
    return frozenset(names())


@cache  # one for each file there is
def _asset(name: str) -> Asset:
    if name == plotly_name():
        return _made(_plotly_file().read_bytes(), ".js", KEPT)
    content = (STATIC / name).read_bytes()
    if name == PAGE:
        values = {"plotly": plotly_name() or "", "version": _service_version(), **ALARM}
        for place, value in values.items():
            content = content.replace(f"{{{{{place}}}}}".encode(), str(value).encode())
    return _made(content, Path(name).suffix, ASKED_AGAIN)


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


def _service_version() -> str:
    try:
        return version("moca-service")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return ""


def _made(content: bytes, suffix: str, cache: str) -> Asset:
    etag = blake2b(content, digest_size=12).hexdigest()
    packed = gzip.compress(content, 6, mtime=0)
    return Asset(content, packed, TYPES[suffix], etag, cache)
