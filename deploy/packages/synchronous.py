"""Write `moca_client/sync.py` from `moca_client/asynchronous.py`; `--check`: only compare."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import unasync

CLIENT = Path(__file__).parents[2] / "moca_client"
SOURCE = CLIENT / "asynchronous.py"
TARGET = CLIENT / "sync.py"
# The asynchronous name, and the other one; beside those that unasync knows.
NAMES = {
    "AsyncBaseTransport": "BaseTransport",
    "AsyncClient": "Client",
    "AsyncMessages": "Messages",
    "aclose": "close",
    "aclosing": "closing",
    "aiter_sse": "iter_sse",
    "aread": "read",
    "asyncio": "time",
}
# Of prose, types and what has no need of a counterpart.
TEXTS = {
    '"""The asynchronous client. `sync.py` is made from this file: `make client`."""': (
        '"""The synchronous client, made from `asynchronous.py`: `make client`; edit that file."""'
    ),
    "Asynchronous client of one service; use it as an asynchronous context manager.": (
        "Synchronous client of one service; use it as a context manager."
    ),
    "Callable[[S], Awaitable[Any]]": "Callable[[S], Any]",
    # Generators both, of which httpx_sse says it of one.
    "aiter_sse()) as messages:": "aiter_sse()) as messages:  # type: ignore[type-var]",
}


def synchronous() -> str:
    """Return the source of the synchronous client."""
    text = SOURCE.read_text()
    for before, after in TEXTS.items():
        if text.count(before) != 1:
            raise ValueError(f"{SOURCE}: expected {before!r} once: keep TEXTS in step with it")
        text = text.replace(before, after)
    with TemporaryDirectory() as folder:
        draft = Path(folder, "async", "client.py")
        draft.parent.mkdir()
        draft.write_text(text)
        unasync.unasync_files([str(draft)], [unasync.Rule("/async/", "/sync/", NAMES)])
        made = Path(folder, "sync", "client.py")
        settings = ["--quiet", "--config", str(CLIENT.parent / "pyproject.toml"), str(made)]
        for order in (["check", "--select=F401,I", "--fix"], ["format"]):
            subprocess.run([sys.executable, "-m", "ruff", *order, *settings], check=True)
        return made.read_text()


if __name__ == "__main__":
    if "--check" not in sys.argv:
        TARGET.write_text(synchronous())
    elif TARGET.read_text() != synchronous():
        sys.exit("moca_client/sync.py differs from what asynchronous.py gives: run `make client`")
