"""Pictures of a replayed series: data and predictive band, run-length belief, alarms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray

from moca_client.replayed import Beliefs, Replayed
from moca_client.stream_settings import ALARM_SILENCE, ANOMALY_ALARM, drawn_outputs

WIDTH = 11.0  # inches of a picture
# Inches around and between the panels: to find out what texts need takes as long as to draw.
LEFT = 0.8
RIGHT = 0.9  # of the heat map's scale
TOP = 0.62  # the title, and the legend below it
TITLE_PAD = 24  # points from the panel to the title: the legend stands between
TITLE_LINE = 0.2  # inches of each further line
TITLE_CHARACTERS = 105  # of a line
TITLE_LINES = 2
BOTTOM = 0.5
BETWEEN = 0.2
# Dates of changes stand above the panels, in rows; those that no row has room for are left out.
DATE_ROW = 0.16  # inches
DATE_ROWS = 4
DATE_POINTS = 7.5
DATE_CHARACTER = 0.07  # inches of one, at most
DATE_PAD = 0.08
MAX_CELLS = (1100, 250)  # time x run length of the heat map: as many as it has pixels
PLACES = 2200  # along the time axis, two in each pixel: few rows of one place are drawn
FLOOR = 1e-4  # probabilities below it look like none
# A scale of colours is drawn where other run lengths than the most probable one have such a
# probability in such a share of the picture; else there is only a line to see.
DOUBT = 1e-3
DOUBTFUL = 0.05
BEYOND = 100  # times the evidence that confirms a change: the highest shown
HIGHEST = 1e6  # evidence shown where none confirms a change
# Those of the console (light), by their names in colours.css.
COLOURS = {
    "label": "#1f4e79",
    "forecast": "#6b7f93",
    "anomaly": "#b3261e",
    "changed": "#8a3ffc",
    "tried": "#00796b",
    "state-confirmed": "#c2410c",
    "quiet": "#55626f",
    "line": "#dfe4ea",
    "raised": "#f8fafc",
}
BAND = "#3e84c4"
BAND_ALPHA = 0.18
HEAT = ("#f1f5fa", "#b9d4ea", "#5fa3d1", "#1c6aa8", "#06284d")
HEAT_MAP = LinearSegmentedColormap.from_list("moca", HEAT)
Floats = NDArray[np.float64]


class Band(NamedTuple):
    """Predictive median and 90 % band of one label dimension; NaN without one."""

    low: Floats
    middle: Floats
    high: Floats


def plot_replay(replayed: Replayed, file: Path) -> None:
    """Draw the replay to `file` (PNG).

    Top: data, predictive median and 90 % band, and a line at each confirmed changepoint, one
    panel per output: of more than six those that changed last, and of the others the first.
    Middle: the run-length belief as a heat map with the MAP run length. Bottom: `evidence` of a
    change, and where it confirms one.
    """
    outputs = len(replayed.series.y_names)
    latest = sorted(replayed.confirmed, key=lambda event: -event.start)
    explanations = [event.explanation for event in latest]
    changed = [explained.output for explained in explanations if explained is not None]
    drawn = drawn_outputs(outputs, changed)
    heights = [2.6 if len(drawn) == 1 else 1.8] * len(drawn) + [2.1, 1.2]
    x = positions(replayed)
    rows, dates = _dates(replayed, x)
    title = wrap(replayed.headline, TITLE_CHARACTERS, max_lines=TITLE_LINES, placeholder=" ...")
    strip = DATE_ROW * max((date.row + 1 for date in dates), default=0)
    top = TOP + strip + TITLE_LINE * (len(title) - 1)
    height = top + BOTTOM + sum(heights) + BETWEEN * (len(heights) - 1)
    figure = Figure(figsize=(WIDTH, height), dpi=120)
    FigureCanvasAgg(figure)
    margins = {
        "left": LEFT / WIDTH,
        "right": 1 - RIGHT / WIDTH,
        "top": 1 - top / height,
        "bottom": BOTTOM / height,
        "hspace": BETWEEN / (sum(heights) / len(heights)),
    }
    grid = figure.subplots(
        len(heights), sharex=True, height_ratios=heights, squeeze=False, gridspec_kw=margins
    )
    panels: list[Axes] = list(grid[:, 0])
    for panel, output in zip(panels, drawn, strict=False):
        _draw_data(panel, replayed, x, output)
    above = strip / heights[0]  # as a share of the first panel
    panels[0].legend(
        loc="lower right", bbox_to_anchor=(1, 1 + above), ncols=5, frameon=False, fontsize=8
    )
    _draw_belief(figure, panels[-2], replayed, x)
    draw_alarm(panels[-1], replayed, x)
    _shade_warm_up(panels, replayed, x)
    _mark_changes(panels, rows, x)
    _draw_dates(panels[0], dates)
    _finish(panels, replayed, x)
    panels[0].set_title("\n".join(title), loc="left", fontsize=11, pad=TITLE_PAD + 72 * strip)
    if len(drawn) < outputs:
        text = f"{len(drawn)} of {outputs} outputs, those that changed last first"
        panels[len(drawn) - 1].annotate(text, (0.005, 0.03), xycoords="axes fraction", fontsize=8)
    file.parent.mkdir(parents=True, exist_ok=True)
    # A file as small as of the default level, in half the time.
    figure.savefig(file, pil_kwargs={"compress_level": 3})


def positions(replayed: Replayed) -> Floats:
    """Return where each answer stands on the time axis: its time when that increases, else seq."""
    rows = len(replayed.answers)
    if _uses_time(replayed):
        assert replayed.series.axis is not None
        return np.asarray(replayed.series.axis.value[:rows], np.float64)
    return np.arange(replayed.first_seq, replayed.first_seq + rows, dtype=np.float64)


def _uses_time(replayed: Replayed) -> bool:
    axis = replayed.series.axis
    return axis is not None and bool(np.all(np.diff(axis.value) > 0))


def band(replayed: Replayed, dimension: int) -> Band:
    """Return the predictive band; a classifier's is the probability of class 1 in `middle`."""
    predictives = [answer.predictive for answer in replayed.answers]
    quantiles = [(p and p.quantiles) or {} for p in predictives]

    def at(level: str) -> Floats:
        values = [own.get(level) or () for own in quantiles]
        return np.array([v[dimension] if dimension < len(v) else None for v in values], float)

    middle = at("0.5")
    for row, predictive in enumerate(predictives):
        probabilities = None if predictive is None else predictive.probabilities
        if probabilities is not None and len(probabilities) == 2:
            middle[row] = probabilities[1]
    return Band(at("0.05"), middle, at("0.95"))


def firsts(x: Floats) -> NDArray[np.intp]:
    """Return the first row of each place along the time axis."""
    places = PLACES * (x - x[0]) / ((x[-1] - x[0]) or 1.0)
    return np.flatnonzero(np.diff(places.astype(int), prepend=-1))


def line(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return the points of a line, of several in one place the lowest and the highest."""
    rows = firsts(x)
    if len(rows) == len(x):
        return x, y
    low = np.fmin.reduceat(y, rows)
    high = np.fmax.reduceat(y, rows)
    return x[rows].repeat(2), np.ravel([low, high], "F")


def _draw_data(panel: Axes, replayed: Replayed, x: Floats, dimension: int) -> None:
    rows = len(x)
    column = [None if y is None else y[dimension] for y in replayed.series.y[:rows]]
    labels = np.array([np.nan if y is None else y for y in column])
    predictive = band(replayed, dimension)
    classes = bool(np.isnan(predictive.low).all() and not np.isnan(predictive.middle).all())
    if not classes:
        shown = firsts(x)
        panel.fill_between(
            x[shown],
            predictive.low[shown],
            predictive.high[shown],
            color=BAND,
            alpha=BAND_ALPHA,
            lw=0,
            label="90 % band",
        )
    panel.plot(
        *line(x, predictive.middle),
        color=COLOURS["forecast"],
        lw=1.4,
        ls=":",
        label="P(y = 1)" if classes else "median",
    )
    size = float(np.clip(2500 / max(rows, 1), 2, 18))
    panel.scatter(x, labels, s=size, color=COLOURS["label"], lw=0, zorder=3, label="observed")
    strange = anomalies(replayed)
    if strange:
        at = x[strange]
        y = labels[strange]
        panel.scatter(
            at, y, s=60, marker="D", fc="none", ec=COLOURS["anomaly"], zorder=4, label="anomaly"
        )
    panel.set_ylabel(replayed.series.y_names[dimension])
    _limit(panel, labels, predictive)
    _mark_regimes(panel, replayed, x)


def anomalies(replayed: Replayed) -> list[int]:
    """Rows that are unusual for the stream, the first of each run."""
    marked: list[int] = []
    for row, answer in enumerate(replayed.answers):
        strange = answer.anomaly is not None and answer.anomaly >= ANOMALY_ALARM
        if strange and (not marked or row - marked[-1] >= ALARM_SILENCE):
            marked.append(row)
    return marked


def _mark_regimes(panel: Axes, replayed: Replayed, x: Floats) -> None:
    """Put a triangle below the start of each regime after the first, where known in hindsight."""
    if replayed.hindsight is None or replayed.hindsight.seq is None:
        return
    starts = [segment.start for segment in replayed.segmentation[1:]]
    rows = [row for start in starts if (row := replayed.row(start)) is not None]
    if rows:
        panel.plot(
            edges(x)[rows],
            [0.0] * len(rows),
            "^",
            color=COLOURS["label"],
            ms=6,
            clip_on=False,
            transform=panel.get_xaxis_transform(),
            label="regime in hindsight",
        )


def _limit(panel: Axes, labels: Floats, predictive: Band) -> None:
    """Keep the data in view: the band of a first hypothesis can be a hundred times as wide."""
    seen = labels[np.isfinite(labels)]
    if not seen.size:
        return
    low = float(seen.min())
    high = float(seen.max())
    room = (high - low) or abs(high) or 1.0
    inside = [side[np.isfinite(side)] for side in predictive]
    reach = np.concatenate([*inside, seen])
    bottom = max(float(reach.min()), low - 0.6 * room)
    top = min(float(reach.max()), high + 0.6 * room)
    if top == bottom:
        bottom = bottom - room / 2
        top = top + room / 2
    panel.set_ylim(bottom - 0.06 * (top - bottom), top + 0.06 * (top - bottom))


def edges(x: Floats) -> Floats:
    """Cell borders half-way between neighbours, for cells that need not be equally wide."""
    if len(x) == 1:
        return np.array([x[0] - 0.5, x[0] + 0.5])
    middle = (x[1:] + x[:-1]) / 2
    return np.concatenate([[x[0] - (middle[0] - x[0])], middle, [x[-1] + (x[-1] - middle[-1])]])


def belief_grid(beliefs: Beliefs) -> tuple[Floats, int, int]:
    """Probability by run length (rows) and time (columns), with the bins' widths.

    Probabilities of run lengths in one bin add up; of the times in one bin the largest shows,
    so that a brief doubt is not lost in a long file.
    """
    count = len(beliefs.counts)
    rows = np.repeat(np.arange(count), beliefs.counts)
    run_lengths = np.asarray(beliefs.run_length)
    longest = int(run_lengths.max(initial=0))
    per_time = -(-count // MAX_CELLS[0])
    per_length = -(-(longest + 1) // MAX_CELLS[1])
    lengths = longest // per_length + 1
    # One number for each cell of a row of the file; they nearly always come in order.
    numbers = rows * lengths + run_lengths // per_length
    order = np.argsort(numbers, kind="stable")
    numbers = numbers[order]
    firsts = np.flatnonzero(np.diff(numbers, prepend=-1))
    cells = numbers[firsts]
    sums = np.add.reduceat(np.asarray(beliefs.probability, np.float64)[order], firsts)
    grid = np.zeros((lengths, -(-count // per_time)))
    np.maximum.at(grid, (cells % lengths, cells // lengths // per_time), sums)
    return grid, per_time, per_length


def _draw_belief(figure: Figure, panel: Axes, replayed: Replayed, x: Floats) -> None:
    grid, per_time, per_length = belief_grid(replayed.beliefs)
    if grid.any():
        borders = edges(x)[[*range(0, len(x), per_time), len(x)]]
        mesh = panel.pcolorfast(
            borders,
            np.arange(grid.shape[0] + 1) * per_length - 0.5,
            np.ma.masked_less(grid, FLOOR),
            norm=LogNorm(FLOOR, 1.0),
            cmap=HEAT_MAP,
        )
        # Whether there is more to see than the line of the most probable run length.
        off = np.abs(np.arange(len(grid))[:, None] - grid.argmax(axis=0)) > 1
        if ((grid >= DOUBT) & off).any(axis=0).mean() >= DOUBTFUL:
            scale = panel.inset_axes((1.01, 0, 0.014, 1))
            bar = figure.colorbar(mesh, cax=scale, format="{x:g}")
            bar.minorticks_off()
            bar.set_label("probability", fontsize=8)
            bar.ax.tick_params(labelsize=7)
            bar.outline.set_visible(False)
    summaries = [answer.run_length for answer in replayed.answers]
    lengths = np.array([np.nan if own is None else own.map for own in summaries])
    points = line(x, lengths)
    panel.plot(*points, color=COLOURS["tried"], lw=0.9, ds="steps-mid", label="most probable")
    panel.set_ylabel("run length (observations)")
    if np.isfinite(lengths).any():
        panel.legend(loc="upper left", frameon=False, fontsize=8, borderaxespad=0.2)


def draw_alarm(panel: Axes, replayed: Replayed, x: Floats) -> None:
    """Draw `evidence` of a change, with the level that confirms one, where there is one."""
    threshold = replayed.settings.get("false_alarm_every")
    top = BEYOND * threshold if threshold else HIGHEST
    values = np.array([np.nan if a.evidence is None else a.evidence for a in replayed.answers])
    shown = np.clip(values, 1.0, top)
    panel.set_yscale("log")
    panel.set_ylim(1.0, top)  # before anything is drawn: without evidence there is no range to find
    panel.yaxis.set_major_formatter(EngFormatter(places=0, sep=""))
    panel.minorticks_off()
    places, evidence = line(x, shown)
    colour = COLOURS["changed"]
    panel.fill_between(places, 1.0, evidence, color=colour, alpha=0.14, lw=0, step="mid")
    panel.step(places, evidence, where="mid", color=colour, lw=1.1)
    if threshold:
        panel.axhline(threshold, color=COLOURS["quiet"], lw=0.9, ls=(0, (4, 3)))
    panel.set_ylabel("evidence: 1 in")


class Date(NamedTuple):
    """When a change was, above the panels; lengths in inches from the left edge of the panels.

    place: of its line. begin: of its text. row: from below.
    """

    place: float
    begin: float
    text: str
    row: int


def _dates(replayed: Replayed, x: Floats) -> tuple[list[int], list[Date]]:
    """Return the rows of the file at which confirmed regimes start, and their dates."""
    starts = [event.start for event in replayed.confirmed]
    rows = sorted(row for start in starts if (row := replayed.row(start)) is not None)
    borders = edges(x)
    across = (borders[rows] - borders[0]) / (borders[-1] - borders[0])
    places = (across * (WIDTH - LEFT - RIGHT)).tolist()
    texts = [replayed.when(replayed.first_seq + row) for row in rows]
    return rows, arranged(places, texts)


def arranged(places: Sequence[float], texts: Sequence[str]) -> list[Date]:
    """Put dates into rows, the last first; leaves out those that no row has room for.

    A date stands right of its line, above the dates of all lines that its text is over: so no line
    crosses one. At the right edge it is moved to the left, over lines that have no date then.
    """
    dates: list[Date] = []
    for place, text in zip(reversed(places), reversed(texts), strict=True):
        width = DATE_CHARACTER * len(text) + DATE_PAD
        begin = min(place, WIDTH - LEFT - width)
        row = 1 + max((date.row for date in dates if date.begin <= begin + width), default=-1)
        if row < DATE_ROWS and all(place <= date.begin for date in dates):
            dates.append(Date(place, begin, text, row))
    return dates


def _mark_changes(panels: Sequence[Axes], rows: Sequence[int], x: Floats) -> None:
    """Draw a line where each confirmed regime starts."""
    for panel in panels:
        if rows:
            panel.vlines(
                edges(x)[rows],
                0.0,
                1.0,
                transform=panel.get_xaxis_transform(),
                color=COLOURS["state-confirmed"],
                lw=1.1,
                ls=(0, (5, 2)),
                alpha=0.9,
                zorder=4,
            )


def _draw_dates(panel: Axes, dates: Sequence[Date]) -> None:
    """Write dates above the panel, each at the end of its line."""
    width = WIDTH - LEFT - RIGHT
    for date in dates:
        foot = DATE_ROW * date.row
        label = panel.annotate(
            date.text,
            (date.begin / width, 1.0),
            xycoords="axes fraction",
            xytext=(3, 72 * foot + 3),
            textcoords="offset points",
            va="bottom",
            color=COLOURS["state-confirmed"],
            fontsize=DATE_POINTS,
            fontweight="bold",
        )
        label.set_in_layout(False)
        beside = 0.8 * DATE_ROW if date.begin == date.place else 0.0
        panel.annotate(
            "",
            (date.place / width, 1.0),
            xycoords="axes fraction",
            xytext=(0, 72 * (foot + beside)),
            textcoords="offset points",
            arrowprops={
                "arrowstyle": "-",
                "color": COLOURS["state-confirmed"],
                "lw": 0.8,
                "shrinkA": 0,
                "shrinkB": 0,
            },
        )


def _shade_warm_up(panels: Sequence[Axes], replayed: Replayed, x: Floats) -> None:
    """Grey out the observations from which location and scale were taken: no answers there."""
    rows = next((k for k, a in enumerate(replayed.answers) if not a.warming_up), len(x))
    if not rows:
        return
    borders = edges(x)
    for panel in panels:
        panel.axvspan(borders[0], borders[rows], color=COLOURS["raised"], lw=0, zorder=0)
    if borders[rows] - borders[0] > 0.07 * (borders[-1] - borders[0]):
        note = panels[-2].annotate(  # where there is no belief to write over
            "warm-up",
            ((borders[0] + borders[rows]) / 2, 0.45),
            xycoords=("data", "axes fraction"),
            ha="center",
            color=COLOURS["quiet"],
            fontsize=8,
        )
        note.set_in_layout(False)


def _finish(panels: Sequence[Axes], replayed: Replayed, x: Floats) -> None:
    borders = edges(x)
    for panel in panels:
        panel.set_xlim(borders[0], borders[-1])
        panel.margins(x=0)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=8)
        panel.grid(axis="y", color=COLOURS["line"], lw=0.6)
        panel.set_axisbelow(True)
    axis = replayed.series.axis if _uses_time(replayed) else None
    panels[-1].set_xlabel("observation (seq)" if axis is None else axis.name)
    if axis is not None and axis.kind == "datetime":
        locator = AutoDateLocator()  # type: ignore[no-untyped-call]
        panels[-1].xaxis.set_major_locator(locator)
        formatter = ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]
        panels[-1].xaxis.set_major_formatter(formatter)
