"""What all dashboards have in common: variables, links, alerts as annotations."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from moca_grafana.infinity import PLUGIN, JsonQuery
from moca_grafana.panels import SOURCE, Panel, of_deployment

TAG = "moca"
ALERTS = 'ALERTS{alertstate="firing",alertname=~"Moca.*"}'

STEPS = of_deployment("moca_run_length_observations_count")


class Page(NamedTuple):
    """One dashboard. Rows by title; the first is always open."""

    uid: str
    title: str
    about: str
    rows: dict[str, list[Panel]]
    by_model: bool = False
    choices: dict[
        str, tuple[str, tuple[str, ...]]
    ] = {}  # labels and values of lists; first: chosen
    marks: tuple[str, JsonQuery] | None = None  # annotations that the service answers


def document(page: Page) -> str:
    """Return a dashboard's JSON."""
    made = builders.Dashboard(page.title).uid(page.uid).description(page.about).tags([TAG])
    made = made.editable().tooltip(DashboardCursorSync.CROSSHAIR).refresh("10s")
    made = made.time("now-1h", "now").timezone("browser")
    for variable in _variables(page):
        made = made.with_variable(variable)
    for link in _links():
        made = made.link(link)
    for title, panels in page.rows.items():
        made = made.with_row(builders.Row(title))
        for panel in panels:
            made = made.with_panel(panel)
    made = made.annotation(_annotation("Alerts", ALERTS, "red"))
    found: dict[str, Any] = json.loads(json.dumps(made.build(), cls=JSONEncoder))
    for number, panel in enumerate(found["panels"], 1):
        panel["id"] = number
    _finish(found["annotations"]["list"], page)
    return json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _finish(annotations: list[dict[str, Any]], page: Page) -> None:
    titles = "{{alertname}} {{instance}}{{model}}", "{{stream}} changed"
    for each, title in zip(annotations, titles, strict=False):
        each["titleFormat"] = title
    if page.marks is not None:
        annotations.append(_marks(*page.marks))


def _variables(page: Page) -> list[Any]:
    console = builders.TextBoxVariable("console").label("Console")
    found: list[Any] = [
        builders.DatasourceVariable("datasource").label("Data source").type("prometheus"),
        console.description("Address of the console").default_value("http://localhost:8000"),
    ]
    every = VariableOption(True, "All", "$__all")
    # Of a Prometheus with one deployment there is no such label, and all is shown.
    namespaces = _values("namespace", 'label_values(up{job=~"moca-.*"}, namespace)')
    found.append(namespaces.label("Namespace").include_all(True).all_value(".*").current(every))
    if page.by_model:
        models = _values("model", f"label_values({STEPS}, model)")
        found.append(
            models.label("Model").multi(True).include_all(True).all_value(".*").current(every)
        )
    if page.marks is not None:
        service = builders.DatasourceVariable("service").label("Service").type(PLUGIN)
        found.append(service.description("Data source Infinity with the address of the API"))
    found += [_choice(name, label, values) for name, (label, values) in page.choices.items()]
    return found


def _values(name: str, query: str) -> builders.QueryVariable:
    asked = {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"}
    found = builders.QueryVariable(name).query(asked).datasource(SOURCE)
    found = found.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    return found.sort(VariableSort.ALPHABETICAL_ASC)


def _links() -> list[builders.DashboardLink]:
    others = builders.DashboardLink("Dashboards").type(DashboardLinkType.DASHBOARDS).tags([TAG])
    console = builders.DashboardLink("Console").type(DashboardLinkType.LINK).url("${console}/")
    return [
        others.as_dropdown(False).include_vars(True).keep_time(True),
        console.icon("external link").target_blank(True).tooltip("Streams, events, models"),
    ]


def _marks(name: str, query: JsonQuery) -> dict[str, Any]:
    """Return an annotation by JSON; the SDK's builder has only those of Prometheus."""
    made = {
        "name": name,
        "datasource": query.to_json()["datasource"],
        "enable": True,
        "iconColor": "orange",
        "target": query,
    }
    found: dict[str, Any] = json.loads(json.dumps(made, cls=JSONEncoder))
    return found


def _choice(name: str, label: str, values: tuple[str, ...]) -> builders.CustomVariable:
    options = [VariableOption(each == values[0], each, each) for each in values]
    found = builders.CustomVariable(name).label(label).values(",".join(values))
    return found.options(options).current(options[0])


def _annotation(name: str, expr: str, color: str) -> builders.AnnotationQuery:
    found = builders.AnnotationQuery().name(name).datasource(SOURCE).expr(of_deployment(expr))
    return found.enable(True).icon_color(color)
