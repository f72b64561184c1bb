"""Plots: what goes into them, and that every shape of replay can be drawn."""

import matplotlib.image
import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex

from moca_client import plots, stream_settings
from moca_client.replayed import Beliefs, Replayed
from moca_client.responses import (
    Answer,
    BeliefColumns,
    Event,
    Explanation,
    Hindsight,
    Predictive,
    RunLengthSummary,
    Segment,
)
from moca_client.series import Series, time_axis

LEVELS = ("0.05", "0.5", "0.95")


def row(seq, dimensions=1, warming_up=False, classes=0):
    """One answer of a made-up stream that changes at 30."""
    if warming_up:
        return Answer("s", seq, "gaussian", warming_up=True)
    since = seq - (30 if seq >= 33 else 0)
    mean = [5.0 if seq < 33 else 1.0] * dimensions
    quantiles = {level: [m + k - 1 for m in mean] for k, level in enumerate(LEVELS)}
    predictive = Predictive(mean=mean, quantiles=quantiles)
    if classes:
        predictive = Predictive(probabilities=[1 / classes] * classes)
    belief = BeliefColumns([since, max(since - 2, 0)], [0.9, 0.1])
    summary = RunLengthSummary(since, float(since), hypotheses=2, pruned_mass=0.0, belief=belief)
    changed, evidence = (0.95, 3e4) if 32 <= seq < 42 else (0.02, 0.5)
    return Answer(
        "s",
        seq,
        "gaussian",
        predictive,
        changed_probability=changed,
        evidence=evidence,
        anomaly=0.3,
        log_score=-1.0,
        changepoint_probability=0.01,
        recent_change_probability=0.05,
        run_length=summary,
    )


def replayed_of(rows=60, dimensions=1, warmup=0, times=None, first=0, classes=0):
    y = [[float(k % 2 if classes else 5 - 4 * (k >= 30))] * dimensions for k in range(rows)]
    y[7 % rows] = None
    names = ["y"] if dimensions == 1 else [f"y{k + 1}" for k in range(dimensions)]
    axis = None if times is None else time_axis(times, "when")
    replayed = Replayed("s", Series(y, None, names, [], axis))
    replayed.add([row(first + k, dimensions, k < warmup, classes) for k in range(rows)])
    replayed.events = [
        Event(id=1, state="confirmed", start=30, suspected_at=33, confirmed_at=43),
        Event(id=2, state="withdrawn", start=50, suspected_at=52),
    ]
    replayed.segmentation = [Segment(0, 29), Segment(29, 60)]
    replayed.hindsight = Hindsight("current", 0, 60)
    replayed.settings = {"false_alarm_every": 5000.0}
    return replayed


def test_the_first_of_what_is_strange_for_a_while_is_marked():
    replayed = replayed_of(rows=400)
    assert plots.anomalies(replayed) == []
    for at in (50, 51, 120, 151, 399):
        replayed.answers[at].anomaly = 0.9995
    replayed.answers[300].anomaly = None
    assert plots.anomalies(replayed) == [50, 151, 399]


def test_every_shape_of_replay_can_be_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(stream_settings, "DRAWN", 2)
    file = tmp_path / "folder" / "plot.png"
    for shape in (
        {"warmup": 20, "times": [str(1871 + k) for k in range(60)], "dimensions": 3},
        {"rows": 1},
        {"classes": 4},
    ):
        plots.plot_replay(replayed_of(**shape), file)
        picture = matplotlib.image.imread(file)
        assert min(picture.shape[:2]) > 500, shape
        assert picture[:, :, :3].std() > 0.05, shape  # not an empty sheet


def test_of_many_outputs_those_that_changed_last_are_drawn(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plots, "_finish", lambda panels, *_: drawn.extend(panels))
    replayed = replayed_of(dimensions=8)
    replayed.events = [
        Event(
            id=start,
            state=state,
            start=start,
            suspected_at=start,
            explanation=Explanation("mean rose", output=output),
        )
        for start, state, output in (
            (40, "confirmed", 6),
            (20, "confirmed", 2),
            (50, "withdrawn", 5),
            (45, "confirmed", None),
        )
    ]
    plots.plot_replay(replayed, tmp_path / "plot.png")
    assert [panel.get_ylabel() for panel in drawn[:-2]] == ["y7", "y3", "y1", "y2", "y4", "y5"]
    assert [text.get_text() for text in drawn[5].texts][-1].startswith("6 of 8 outputs")


def test_dates_cross_neither_each_other_nor_lines():
    rng = np.random.default_rng(0)
    for _ in range(50):
        places = sorted(rng.uniform(0, 9.3, rng.integers(1, 40)).tolist())
        texts = ["2015-09-17", "2015-09-17 11:30", "2015-09-17 11:30:22"]
        dates = plots.arranged(places, [texts[i % 3] for i in range(len(places))])
        assert dates[0].place == places[-1]  # the last change has one
        for date in dates:
            end = date.begin + plots.DATE_CHARACTER * len(date.text)
            assert end <= plots.WIDTH - plots.LEFT
            for other in dates:
                if other is not date and date.begin <= other.place <= end:
                    assert other.row < date.row or other.place == date.place
                if other is not date and other.row == date.row:
                    assert not date.begin <= other.begin <= end


@pytest.mark.parametrize(("lengths", "scale"), [({0: 1.0}, False), ({0: 0.98, 9: 0.02}, True)])
def test_a_scale_of_colours_is_drawn_where_there_is_more_than_a_line(lengths, scale, tmp_path):
    replayed = replayed_of()
    replayed.beliefs = beliefs_of([{row + k: p for k, p in lengths.items()} for row in range(60)])
    figures = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots.Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
        plots.plot_replay(replayed, tmp_path / "plot.png")
    assert bool(figures[0].axes[1].child_axes) is scale


@pytest.mark.parametrize("name", ["pump", "p" * 200])
def test_a_title_crosses_neither_the_legend_nor_the_edge(tmp_path, monkeypatch, name):
    figures = []
    monkeypatch.setattr(plots.Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    replayed = replayed_of()
    replayed.stream = name
    replayed.events[0].sentence = "mean fell by 8.3 sd, 13.5 → 7.0; spread × 1.4, 0.59 → 0.81"
    plots.plot_replay(replayed, tmp_path / "plot.png")
    (figure,) = figures
    figure.draw_without_rendering()
    panel = figure.axes[0]
    title = panel._left_title.get_window_extent()
    assert not title.overlaps(panel.get_legend().get_window_extent())
    assert figure.bbox.contains(title.x1, title.y1)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_replay_that_only_warms_up_can_be_drawn(tmp_path, rows):
    replayed = replayed_of(rows=rows, warmup=rows)
    replayed.events = []
    replayed.segmentation = []
    plots.plot_replay(replayed, tmp_path / "plot.png")


def test_regimes_are_marked_online_and_in_hindsight(tmp_path, monkeypatch):
    """A line stands before the first observation of a regime."""
    drawn = []
    monkeypatch.setattr(plots, "_finish", lambda panels, *_: drawn.extend(panels))
    monkeypatch.setattr(plots.Figure, "savefig", lambda *_, **__: None)
    plots.plot_replay(replayed_of(times=[str(1871 + k) for k in range(60)]), tmp_path / "plot.png")
    for panel in drawn:
        (lines,) = [own for own in panel.collections if isinstance(own, LineCollection)]
        (line,) = lines.get_segments()
        assert line.tolist() == [[1900.5, 0.0], [1900.5, 1.0]]  # 1901 starts the regime
        assert to_hex(lines.get_color()[0]) == plots.COLOURS["state-confirmed"]
    dates = [text.get_text() for text in drawn[0].texts]
    assert list(filter(None, dates)) == ["1901"]  # withdrawn ones have none
    evidence, level = drawn[-1].lines[:2]
    assert set(evidence.get_ydata()) == {1.0, 3e4}  # what is below the axis stands at its foot
    assert set(level.get_ydata()) == {5000.0}
    for hindsight, places in ((Hindsight("current", 0, 60), [[28.5]]), (None, [])):
        drawn.clear()
        replayed = replayed_of()
        replayed.hindsight = hindsight
        plots.plot_replay(replayed, tmp_path / "plot.png")
        marked = [line for line in drawn[0].lines if line.get_marker() == "^"]
        assert [list(line.get_xdata()) for line in marked] == places  # the regime starts at 29


def beliefs_of(rows):
    """Beliefs of observations, each of which has some run lengths with probabilities, or None."""
    beliefs = Beliefs()
    for row in rows:
        beliefs.add(None if row is None else BeliefColumns(list(row), list(row.values())))
    return beliefs


def test_a_cell_of_the_heat_map_is_the_largest_sum_of_its_observations(monkeypatch):
    monkeypatch.setattr(plots, "MAX_CELLS", (7, 5))
    rng = np.random.default_rng(3)
    rows = [None, {}]
    for row in range(2, 30):
        lengths = rng.choice(row, size=int(rng.integers(1, row)), replace=False).tolist()
        rows.append(dict(zip(lengths, rng.random(len(lengths)).tolist(), strict=True)))
    grid, per_time, per_length = plots.belief_grid(beliefs_of(rows))
    expected = np.zeros(grid.shape)
    for row, belief in enumerate(rows):
        column = np.zeros(len(grid))
        for length, probability in (belief or {}).items():
            column[length // per_length] += probability
        at = row // per_time
        expected[:, at] = np.maximum(expected[:, at], column)
    np.testing.assert_allclose(grid, expected, rtol=1e-6)  # of numbers with 24 bits
    assert plots.belief_grid(beliefs_of([None] * 3))[0].tolist() == [[0.0] * 3]


def test_belief_grid_is_bounded_and_a_brief_doubt_survives():
    rows = [{k: 1.0} for k in range(5000)]
    rows[2001] = {0: 0.4, 2001: 0.6}
    grid, per_time, _ = plots.belief_grid(beliefs_of(rows))
    assert grid.shape[1] <= plots.MAX_CELLS[0]
    assert grid.shape[0] <= plots.MAX_CELLS[1]
    assert grid[0, 2001 // per_time] == pytest.approx(0.4)


def test_a_line_of_many_rows_is_drawn_by_its_extremes():
    x = np.arange(20_000.0)
    y = np.sin(x)
    y[7_001:7_003] = 5.0, -3.0
    y[40:80] = np.nan
    at, drawn = plots.line(x, y)
    assert 2 * plots.PLACES <= len(at) == len(drawn) <= 2 * plots.PLACES + 2
    assert np.all(np.diff(at) >= 0)
    assert abs(at[np.nanargmax(drawn)] - 7_001) < 20_000 / plots.PLACES
    assert (np.nanmax(drawn), np.nanmin(drawn)) == (5.0, -3.0)
    assert np.isnan(drawn[(at > 49) & (at < 69)]).all()
    few = x[:2000]
    assert all(own is few for own in plots.line(few, few))
