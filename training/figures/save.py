"""Charts as files."""

from __future__ import annotations

from pathlib import Path

from training.figures import page, png
from training.figures.chart import Chart


def save(chart: Chart, stem: Path) -> list[Path]:
    """Write the chart as `stem.html` and `stem.png`; returns the files."""
    document, picture = (stem.with_name(stem.name + end) for end in (".html", ".png"))
    document.parent.mkdir(parents=True, exist_ok=True)
    document.write_text(page.page(chart), "utf-8")
    png.write(chart, picture)
    return [document, picture]
