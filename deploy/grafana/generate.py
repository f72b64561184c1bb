"""Write the dashboards' JSON: `python deploy/grafana/generate.py`, or with --check compare it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from moca_grafana import changepoints, quality, traffic, workers
from moca_grafana.page import document

FOLDER = Path(__file__).parent / "dashboards"
PAGES = (changepoints.page, traffic.page, quality.page, workers.page)


def main(arguments: list[str] | None = None) -> int:
    """Return 0; with --check 1 where a file is not what would be written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    check = parser.parse_args(arguments).check
    made = {FOLDER / f"{page.uid}.json": document(page) for page in (make() for make in PAGES)}
    wrong = set(FOLDER.glob("*.json")) - made.keys()
    for path, text in made.items():
        if check and (not path.exists() or path.read_text() != text):
            wrong.add(path)
        elif not check:
            path.write_text(text)
    for path in sorted(wrong):
        print(f"{path.name} is outdated: run {Path(__file__).name}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
