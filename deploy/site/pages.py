"""Write the generated pages of docs/: `python deploy/site/pages.py`, or with --check compare."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import typer

from moca_site import calls, commands, settings
from service.commands.main import app

DOCS = Path(__file__).parents[2] / "docs"


def main(arguments: list[str] | None = None) -> int:
    """Return 0; with --check 1 where a page is not what would be written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    check = parser.parse_args(arguments).check
    pages = {
        "reference.md": calls.page(),
        "commands.md": commands.page(typer.main.get_command(app)),
        "settings.md": settings.page(),
    }
    outdated = 0
    for name, text in pages.items():
        path = DOCS / name
        if not check:
            path.write_text(text)
        elif path.read_text() != text:
            print(f"{name} is outdated: run deploy/site/pages.py", file=sys.stderr)
            outdated = 1
    return outdated


if __name__ == "__main__":
    sys.exit(main())
