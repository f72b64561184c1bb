"""Queries of the service's own JSON, by Grafana's Infinity data source."""

from __future__ import annotations

from typing import Any, NamedTuple

from grafana_foundation_sdk.cog import builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models.dashboard import DataSourceRef

PLUGIN = "yesoreyeram-infinity-datasource"
SOURCE = DataSourceRef(PLUGIN, "${service}")


class Column(NamedTuple):
    """A column: path within a row, title, and `string`, `number` or `timestamp`."""

    selector: str
    title: str
    kind: str = "string"


class JsonQuery(Dataquery, builder.Builder["JsonQuery"]):
    """A GET of the service, one row for each element of the list at `root`."""

    def __init__(
        self, path: str, parameters: dict[str, str], root: str, columns: list[Column]
    ) -> None:
        self._path, self._parameters = path, parameters
        self._root, self._columns = root, columns

    def build(self) -> JsonQuery:
        """Return the query itself."""
        return self

    def to_json(self) -> dict[str, Any]:
        """Return the query as the data source stores it."""
        given = [{"key": name, "value": value} for name, value in self._parameters.items()]
        return {
            "refId": "A",
            "datasource": SOURCE,
            "type": "json",
            "source": "url",
            "parser": "backend",
            "format": "table",
            "url": self._path,
            "url_options": {"method": "GET", "data": "", "params": given},
            "root_selector": self._root,
            "columns": [
                {"selector": each.selector, "text": each.title, "type": each.kind}
                for each in self._columns
            ],
            "filters": [],
        }
