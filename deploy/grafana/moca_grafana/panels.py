"""Panels: each kind takes what every panel must have, a description, a unit and thresholds."""

from __future__ import annotations

import re
from typing import NamedTuple, TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    heatmap,
    prometheus,
    stat,
    table,
    text,
    timeseries,
)
from grafana_foundation_sdk.builders.dashboard import DashboardLink, ThresholdsConfig
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.text import TextMode

from moca_grafana import infinity
from moca_grafana.infinity import JsonQuery

JSON_SOURCE = infinity.SOURCE
SOURCE = DataSourceRef("prometheus", "${datasource}")
CONSOLE_STREAM = "${console}/#/streams/"
CHOSEN = 'namespace=~"$namespace"'
_SELECTOR = re.compile(r"\b(moca[_:][a-z0-9_:]+|process_[a-z_]+|up|ALERTS)\b(\{)?")

Panel = bargauge.Panel | heatmap.Panel | stat.Panel | table.Panel | text.Panel | timeseries.Panel
Kind = TypeVar("Kind", bargauge.Panel, heatmap.Panel, stat.Panel, table.Panel, timeseries.Panel)


class What(NamedTuple):
    """What a panel shows. unit: one of Grafana's, or `suffix: text`."""

    title: str
    about: str
    unit: str
    limits: ThresholdsConfig


class Query(NamedTuple):
    """A PromQL expression and the name of its series."""

    expr: str
    legend: str = ""
    exemplars: bool = False


def of_deployment(expr: str) -> str:
    """Return an expression with every selector limited to the deployment chosen on the page."""
    return _SELECTOR.sub(lambda found: found[1] + ("{" + CHOSEN + ("," if found[2] else "}")), expr)


def number(what: What, expr: str, decimals: int | None = None) -> stat.Panel:
    """One number, with its course behind it."""
    panel = _dressed(stat.Panel(), what).height(4).span(4)
    panel = panel.graph_mode(models.BigValueGraphMode.AREA)
    panel = panel.color_mode(models.BigValueColorMode.VALUE).reduce_options(_last())
    if decimals is not None:
        panel = panel.decimals(decimals)
    return panel.with_target(_query(0, Query(expr)).range())


def lines(what: What, *queries: Query, span: int = 12, stacked: bool = False) -> timeseries.Panel:
    """Curves over time; their thresholds are dashed lines."""
    panel = _dressed(timeseries.Panel(), what).height(8).span(span).line_width(1.5)
    panel = panel.fill_opacity(35 if stacked else 8).show_points(models.VisibilityMode.NEVER)
    dashed = common.GraphThresholdsStyleConfig().mode(models.GraphThresholdsStyleMode.DASHED)
    panel = panel.thresholds_style(dashed).legend(_legend())
    panel = panel.tooltip(common.VizTooltipOptions().mode(models.TooltipDisplayMode.MULTI))
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(models.StackingMode.NORMAL))
    for i, query in enumerate(queries):
        panel = panel.with_target(_query(i, query).range())
    return panel


def band(panel: timeseries.Panel, low: str, high: str) -> timeseries.Panel:
    """Fill a panel between two of its curves, named by their legends."""
    thin = DynamicConfigValue("custom.lineWidth", 0)
    filled = [DynamicConfigValue("custom.fillBelowTo", low), thin]
    panel = panel.override_by_name(high, filled)
    return panel.override_by_name(low, [thin, DynamicConfigValue("custom.fillOpacity", 0)])


def buckets_over_time(what: What, expr: str, span: int = 12) -> heatmap.Panel:
    """Histogram by time; `expr` has a series per `le`. The unit is that of the buckets."""
    panel = _dressed(heatmap.Panel(), what).height(8).span(span)
    scheme = heatmap.HeatmapColorOptions().mode(heatmap_models.HeatmapColorMode.SCHEME)
    panel = panel.color(scheme.scheme("Blues").steps(64)).calculate(False)
    panel = panel.y_axis(heatmap.YAxisConfig().unit(what.unit)).show_legend()
    query = _query(0, Query(expr, "{{le}}")).format(PromQueryFormat.HEATMAP)
    return panel.with_target(query.range())


def buckets(what: What, expr: str, span: int = 12) -> bargauge.Panel:
    """One histogram; `expr` has a series per `le`. The unit is that of the bars."""
    panel = _dressed(bargauge.Panel(), what).height(8).span(span)
    panel = panel.orientation(models.VizOrientation.VERTICAL)
    panel = panel.display_mode(models.BarGaugeDisplayMode.GRADIENT).min(0)
    panel = panel.reduce_options(_last())
    query = _query(0, Query(expr, "{{le}}")).format(PromQueryFormat.HEATMAP)
    return panel.with_target(query.instant())


def rows(what: What, columns: dict[str, Query], span: int = 24) -> table.Panel:
    """One row per stream: `columns` by their titles, joined on the labels that they share.

    A column called P(...) is a probability, coloured by the thresholds.
    """
    panel = _dressed(table.Panel(), what).height(9).span(span)
    names = {"stream": "Stream", "model": "Model"}
    for i, (title, query) in enumerate(columns.items()):
        one = _query(i, query).format(PromQueryFormat.TABLE).instant()
        panel = panel.with_target(one)
        names[f"Value #{_ref(i)}"] = title
    panel = panel.with_transformation(DataTransformerConfig("merge", options={}))
    order = {name: i for i, name in enumerate(names)}
    shown = {"excludeByName": {"Time": True}, "indexByName": order, "renameByName": names}
    panel = panel.with_transformation(DataTransformerConfig("organize", options=shown))
    sort = {"fields": {}, "sort": [{"field": next(iter(columns))}]}
    panel = panel.with_transformation(DataTransformerConfig("sortBy", options=sort))
    links = [
        {"title": "Open in the console", "url": CONSOLE_STREAM + "${__value.text:percentencode}"},
        {"title": "Show below", "url": "?${__url_time_range}&var-stream=${__value.text}"},
    ]
    colored = [
        DynamicConfigValue("custom.cellOptions", {"type": "color-text"}),
        DynamicConfigValue("unit", "percentunit"),
    ]
    panel = panel.override_by_regexp(r"/^P\(/", colored)
    return panel.override_by_name("Stream", [DynamicConfigValue("links", links)])


def json_rows(what: What, query: JsonQuery, link_of: dict[str, str]) -> table.Panel:
    """One row for each element of a list that the service answers; `link_of`: URLs by column."""
    panel = _dressed(table.Panel(), what).datasource(JSON_SOURCE).height(10).span(24)
    panel = panel.with_target(query).filterable(True)
    colored = [
        DynamicConfigValue("custom.cellOptions", {"type": "color-text"}),
        DynamicConfigValue("unit", "percentunit"),
    ]
    panel = panel.override_by_regexp(r"/^P\(/", colored)
    for column, url in link_of.items():
        links = [{"title": "Open in the console", "url": url, "targetBlank": True}]
        panel = panel.override_by_name(column, [DynamicConfigValue("links", links)])
    return panel


def note(title: str, content: str, span: int = 24, height: int = 3) -> text.Panel:
    """Words, in Markdown."""
    panel = text.Panel().title(title).description("How to read this page.")
    return panel.mode(TextMode.MARKDOWN).content(content).span(span).height(height)


def link(title: str, url: str) -> DashboardLink:
    """A link out of a panel."""
    return DashboardLink(title).type(DashboardLinkType.LINK).url(url).target_blank(True)


def _dressed(panel: Kind, what: What) -> Kind:
    panel = panel.title(what.title).description(what.about).datasource(SOURCE)
    return panel.unit(what.unit).thresholds(what.limits)


def _query(i: int, query: Query) -> prometheus.Dataquery:
    found = prometheus.Dataquery().expr(of_deployment(query.expr))
    if query.exemplars:
        found = found.exemplar(True)
    return found.legend_format(query.legend).ref_id(_ref(i))


def _ref(i: int) -> str:
    return "ABCDEFGHIJ"[i]


def _last() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"])


def _legend() -> common.VizLegendOptions:
    found = common.VizLegendOptions().display_mode(models.LegendDisplayMode.LIST)
    return found.placement(models.LegendPlacement.BOTTOM).show_legend(True)
