"""A training report as files: a page that needs no network, and its numbers as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from training.report import Report, as_json
from training.report_page import page


def write(folder: Path, report: Report) -> list[Path]:
    """Write `report.html` and `report.json` to the folder; returns the files."""
    numbers = write_numbers(folder, report)
    document = folder / "report.html"
    document.write_text(page(report), "utf-8")
    return [document, numbers]


def write_numbers(folder: Path, report: Report) -> Path:
    """Write `report.json` alone, to ship it with a small model."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = folder / "report.json"
    said = json.dumps(as_json(report), indent=2, ensure_ascii=False, allow_nan=False)
    numbers.write_text(said + "\n", "utf-8")
    return numbers
