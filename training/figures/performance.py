"""Performance of methods: against hazard and other settings, over time, in tables; loss curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from training.figures import palette
from training.figures.chart import Axis, Band, Bars, Chart, Floats, Image, Layer, Line, Panel
from training.statistics.intervals import Estimate

FLAT = 0.25  # distance between the marks of methods, in steps between ticks
LOOKS = ("SW10", "COE", "MOCA")  # methods whose looks the loss curves borrow


class Curve(NamedTuple):
    """A method's mean with its interval at each x; all (n,)."""

    method: str
    x: Floats
    mean: Floats
    low: Floats
    high: Floats


class Facet(NamedTuple):
    """One panel: a problem, what is measured (with its unit), and the curves of the methods."""

    problem: str
    measure: str
    curves: Sequence[Curve]


class Table(NamedTuple):
    """Values (rows, columns) by two settings."""

    row_label: str
    rows: Sequence[float]
    column_label: str
    columns: Sequence[float]
    values: Floats


def curve(method: str, x: Sequence[float], estimates: Sequence[Estimate]) -> Curve:
    """A curve of one estimate at each x."""
    mean = np.array([one.mean for one in estimates], np.float64)
    low = np.array([one.low for one in estimates], np.float64)
    high = np.array([one.high for one in estimates], np.float64)
    return Curve(method, np.asarray(x, np.float64), mean, low, high)


def against(
    facets: Sequence[Facet],
    title: str = "Performance against hazard",
    setting: str = "hazard (changes per step)",
) -> Chart:
    """Methods against a setting, logarithmic, with error bars; a panel for each problem."""
    row = tuple(_settings(facet, setting) for facet in facets)
    text = "; ".join(f"{facet.problem}: {facet.measure}" for facet in facets)
    return Chart(
        title,
        (row,),
        f"Mean and 95 % interval of each method against {setting}, in {text}.",
        (340,),
    )


def _settings(facet: Facet, setting: str) -> Panel:
    settings = sorted({float(x) for one in facet.curves for x in one.x})
    # A logarithmic axis has no 0: it is drawn a step below the smallest.
    above = [x for x in settings if x > 0]
    ratio = above[1] / above[0] if len(above) > 1 else 10.0
    place = {x: x or above[0] / ratio for x in settings}
    ticks = tuple((place[x], f"{x:g}") for x in settings)
    step = min(np.diff(np.log(list(place.values()))), default=1.0)
    names = [one.method for one in facet.curves]
    layers = []
    for one in _in_order(facet.curves):
        look = palette.look(one.method)
        # Side by side, so that equal values do not hide each other.
        aside = (names.index(one.method) - (len(names) - 1) / 2) * FLAT * step / len(names)
        layers.append(
            Line(
                np.array([place[float(x)] for x in one.x]) * np.exp(aside),
                one.mean,
                one.method,
                look.colour,
                look.dash,
                look.symbol,
                low=one.low,
                high=one.high,
            )
        )
    return Panel(
        Axis(setting, log=True, ticks=ticks), Axis(facet.measure), tuple(layers), facet.problem
    )


def over_time(
    facets: Sequence[Facet],
    title: str = "Cumulative regret",
    time: str = "time (steps)",
    log: bool = False,
) -> Chart:
    """Methods over time with bands, as cumulative regret; a panel for each problem."""
    panels = []
    for facet in facets:
        layers: list[Layer] = []
        for one in _in_order(facet.curves):
            look = palette.look(one.method)
            layers.append(Band(one.x, one.low, one.high, colour=look.colour))
            layers.append(Line(one.x, one.mean, one.method, look.colour, look.dash))
        panels.append(Panel(Axis(time, log=log), Axis(facet.measure), tuple(layers), facet.problem))
    text = "; ".join(f"{facet.problem}: {facet.measure}" for facet in facets)
    return Chart(title, (tuple(panels),), f"Mean and 95 % interval over {time}, in {text}.", (340,))


def step_time(milliseconds: Sequence[Curve], title: str = "Time per step") -> Chart:
    """Time of a step against the number of steps before it, with intervals."""
    facet = Facet("", "time per step (ms)", milliseconds)
    chart = over_time([facet], title, "observations before (steps)")
    top = max((float(np.nanmax(one.high)) for one in milliseconds), default=1.0)
    panel = chart.rows[0][0]
    y = panel.y._replace(range=(0.0, 1.08 * top))
    return chart._replace(rows=((panel._replace(y=y),),))


def table(values: Table, measure: str, title: str) -> Chart:
    """A table as a heat map, as performance by supervision in training and in the test."""
    x_at = np.arange(len(values.columns), dtype=np.float64)
    y_at = np.arange(len(values.rows), dtype=np.float64)
    ticks = [
        tuple((float(k), f"{value:g}") for k, value in enumerate(settings))
        for settings in (values.columns, values.rows)
    ]
    image = Image(x_at, y_at, values.values, measure, palette.VALUE, written=True)
    x = Axis(values.column_label, ticks=ticks[0], grid=False)
    y = Axis(values.row_label, ticks=ticks[1], grid=False)
    text = f"{measure} by {values.row_label} (rows) and {values.column_label} (columns)."
    return Chart(title, ((Panel(x, y, (image,)),),), text, (420,), 640)


def grouped(
    problems: Mapping[str, tuple[str, Sequence[Curve]]],
    title: str = "Supervision in training and in the test",
    setting: str = "hazard (changes per step)",
) -> Chart:
    """Bars side by side at each setting; problems: name to (measure, curves, all of the same x)."""
    panels = []
    for problem, (measure, curves) in problems.items():
        places = np.arange(len(curves[0].x), dtype=np.float64)
        width = 0.84 / len(curves)
        layers = []
        for k, one in enumerate(curves):
            x = places + (k - (len(curves) - 1) / 2) * width
            colour, hatch = CROSSED[k % len(CROSSED)]
            layers.append(
                Bars(x, one.mean, 0.92 * width, one.method, colour, one.low, one.high, hatch)
            )
        ticks = tuple((float(k), f"{x:g}") for k, x in enumerate(curves[0].x))
        x_axis = Axis(setting, ticks=ticks, grid=False)
        panels.append(Panel(x_axis, Axis(measure), tuple(layers), problem))
    text = "; ".join(f"{name}: {measure}" for name, (measure, _) in problems.items())
    return Chart(title, (tuple(panels),), f"Bars with 95 % intervals, in {text}.", (340,))


# Trained without and tested without, without and with, with and without, with and with.
CROSSED = (("#0072b2", ""), ("#cc79a7", "/"), ("#009e73", ""), ("#5f6b7a", "/"))


def _in_order(curves: Sequence[Curve]) -> list[Curve]:
    by_name = {one.method: one for one in curves}
    return [by_name[name] for name in palette.ordered(by_name)]


class Losses(NamedTuple):
    """Loss (n,) at iterations, and the seconds of training by then."""

    iteration: Floats
    time_s: Floats
    loss: Floats


def losses(
    curves: Mapping[str, Losses],
    measure: str = "negative log likelihood (nats)",
    title: str = "Loss",
) -> Chart:
    """Losses by their names against iteration and against the time of training."""
    panels = []
    for k, label in enumerate(("iteration", "time of training (s)")):
        layers: list[Layer] = [
            Line(curve[k], curve.loss, name, palette.METHODS[look].colour, symbol="circle")
            for (name, curve), look in zip(curves.items(), LOOKS, strict=False)
        ]
        panels.append(Panel(Axis(label), Axis(measure), tuple(layers)))
    text = f"{measure} in {', '.join(curves)} against iteration and time of training."
    return Chart(title, (tuple(panels),), text, (320,))


def of_validation(history: list[dict[str, float]], title: str) -> Chart:
    """Validation losses of a run's history."""
    names = ("iteration", "elapsed_s", "nll")
    columns = (np.array([row[name] for row in history]) for name in names)
    return losses({"validation": Losses(*columns)}, title=title)
