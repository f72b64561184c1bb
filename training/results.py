"""Results as tables for the terminal, Markdown and pages, and as JSON."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable

from training.figures import Chart

NOT_FINITE = re.compile(r"\b(nan|inf)\b")


class Table(NamedTuple):
    """A table of texts; the first `named` columns name a row, the others hold numbers."""

    title: str
    caption: str
    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    named: int = 1

    @classmethod
    def of(
        cls,
        title: str,
        caption: str,
        rows: Sequence[Mapping[str, Any]],
        *columns: tuple[str, str],
        named: int = 1,
    ) -> Table:
        """A table of rows by name; columns: each head with the format of its cells.

        As `("mean", "{score.mean:.1f}")`; numbers that are not finite are `-`.
        """
        filled = [[cell.format(**row) for _, cell in columns] for row in rows]
        cells = [
            (
                *row[:named],
                *(NOT_FINITE.sub("-", text.replace(" ± nan", "")) for text in row[named:]),
            )
            for row in filled
        ]
        return cls(title, caption, tuple(head for head, _ in columns), cells, named)

    def for_terminal(self) -> RichTable:
        """The table as rich prints it, with a line between groups of rows."""
        printed = RichTable(
            box=SIMPLE_HEAD, title=self.title, caption=self.caption, padding=(0, 1, 0, 0)
        )
        for k, head in enumerate(self.heads):
            if k < self.named:
                # Names of models are not cut off: numbers are broken before they are.
                longest = max(len(word) for row in self.rows for word in row[k].split())
                printed.add_column(head, min_width=longest, overflow="fold")
            else:
                printed.add_column(head, justify="right", no_wrap=True)
        group = self.rows[0][0]
        for row in self.rows:
            if self.named > 1 and row[0] != group:
                printed.add_section()
                group = row[0]
            printed.add_row(*row)
        return printed

    def save(self, folder: Path, numbers: Mapping[str, Any]) -> None:
        """Write `table.md`, and the numbers that it shows as `table.json`."""
        write(folder / "table.json", numbers)
        (folder / "table.md").write_text(self.markdown(), "utf-8")

    def markdown(self) -> str:
        """The table for a page of documentation."""
        numbers = len(self.heads) - self.named
        lines = [
            f"### {self.title}",
            "",
            self.caption,
            "",
            f"| {' | '.join(self.heads)} |",
            "|" + "---|" * self.named + "---:|" * numbers,
            *(f"| {' | '.join(row)} |" for row in self.rows),
        ]
        return "\n".join(lines) + "\n"


def plain(value: Any) -> Any:
    """Results in JSON types; numbers that are not finite are null, named tuples are objects."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {key: plain(field) for key, field in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (str, int, bool, type(None))) else str(value)


def write(file: Path, results: Any) -> None:
    """Write results as JSON; see `plain`."""
    text = json.dumps(plain(results), indent=1, ensure_ascii=False, allow_nan=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n", "utf-8")


def write_page(
    file: Path,
    title: str,
    about: Sequence[tuple[str, Any]],
    charts: Iterable[Chart],
    tables: Sequence[Table],
) -> None:
    """Write a page that needs no network: its charts are in it as pictures.

    about: what was measured and where; tables without rows are left out.
    """
    environment = Environment(
        loader=PackageLoader("training"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["data_uri"] = lambda chart: (
        f"data:image/svg+xml;base64,{base64.b64encode(chart.svg()).decode()}"
    )
    page = environment.get_template("page.html")
    filled = [table for table in tables if table.rows]
    text = page.render(title=title, about=about, charts=list(charts), tables=filled)
    file.write_text(text, "utf-8")
