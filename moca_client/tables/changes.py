"""Changes of all streams as a table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from typing import Any

from moca_client.responses import ExplainedEvent, RegimeStatistics, StreamChange

_PLAIN = (
    "stream",
    "model",
    "id",
    "state",
    "start",
    "suspected_at",
    "confirmed_at",
    "start_time",
    "suspected_time",
    "confirmed_time",
    "direction",
    "size",
    "probability",
    "verdict",
)
EXPLAINED = (
    "explanation",
    *(f"{side}_{name}" for side in ("before", "after") for name in ("mean", "sd", "count")),
)
COLUMNS = (*_PLAIN, "kind", *EXPLAINED, "link", "tags")
NUMBERS = ("size", "before_mean", "before_sd", "after_mean", "after_sd")  # one for each output


def row(change: StreamChange) -> dict[str, Any]:
    """Return a change as one row; those of NUMBERS are lists where there are several outputs."""
    cells: dict[str, Any] = {name: getattr(change, name) for name in _PLAIN}
    cells["kind"] = None if change.explanation is None else change.explanation.kind
    cells |= explained(change)
    cells["link"] = change.link
    cells["tags"] = json.dumps(change.tags, ensure_ascii=False, sort_keys=True)
    return cells


def explained(change: StreamChange | ExplainedEvent) -> dict[str, Any]:
    """Return the columns EXPLAINED of a change."""
    text = None if change.explanation is None else change.explanation.text
    cells: dict[str, Any] = {"explanation": text}
    for side, regime in (("before", change.before), ("after", change.after)):
        statistics = RegimeStatistics(0) if regime is None else regime
        cells[f"{side}_mean"] = statistics.mean
        cells[f"{side}_sd"] = statistics.sd
        cells[f"{side}_count"] = None if regime is None else regime.count
    return cells


def lines(changes: Iterable[StreamChange], heading: bool = True) -> str:
    """Return changes as CSV, by default with a line of headings; lists as JSON."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    if heading:
        writer.writeheader()
    for change in changes:
        cells = row(change)
        listed = {name: json.dumps(cells[name]) for name in NUMBERS if type(cells[name]) is list}
        writer.writerow(cells | listed)
    return text.getvalue()
