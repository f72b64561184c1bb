"""Tables and progress bars on a console; they need rich, an extra of the wheel."""

from __future__ import annotations

from collections.abc import Collection

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table


def table(*headings: str, words: Collection[str] = (), title: str | None = None) -> Table:
    """Return an empty table; columns after the first, names, are numbers, but for those of `words`.

    Words and names are wrapped where the terminal is narrow, nothing else is.
    """
    made = Table(
        title=title,
        title_justify="left",
        min_width=None if title is None else len(title),
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for i, heading in enumerate(headings):
        text = heading in words
        justify: JustifyMethod = "right" if i and not text else "left"
        made.add_column(heading, justify=justify, no_wrap=i > 0 and not text, overflow="fold")
    return made


def progress_bar(console: Console, unit: str = "", transient: bool = False) -> Progress:
    """Return a bar that counts units; transient: it is gone at the end."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
        console=console,
        transient=transient,
    )
