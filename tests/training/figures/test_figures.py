"""Every figure as HTML that loads nothing and as PNG, with the numbers that were given."""

import base64
import json
import re

import matplotlib.image
import numpy as np
import torch

from training.figures import bandit, belief, dots, palette, performance, trajectory
from training.figures import calibration as calibrated
from training.figures import performance as losses
from training.figures.chart import Axis, Chart, Line, Panel, Points
from training.figures.rendering import save
from training.statistics import calibration

HAZARDS = np.array([0.01, 0.05, 0.2])


STEPS = 24


SWITCH = np.zeros(STEPS, bool)


SWITCH[[0, 10, 18]] = True


def curve(method, start=0.0):
    mean = start + np.arange(3.0)
    return performance.Curve(method, HAZARDS, mean, mean - 0.1, mean + 0.2)


def beliefs():
    found = np.zeros((STEPS, STEPS))
    length = -1
    for t in range(STEPS):
        length = 0 if SWITCH[t] else length + 1
        found[t, length] = 0.75
        found[t, max(length - 1, 0)] += 0.25
    return found


def sinusoid():
    x, y = np.linspace(-5, 5, 9), np.linspace(-3, 3, 7)
    density = np.exp(-np.abs(np.subtract.outer(y, np.sin(x))))
    shown = [belief.Density(5, x, y, density, np.sin(x)), belief.Density(12, x, y, density)]
    data = belief.Data(np.linspace(-5, 5, STEPS), np.arange(STEPS) / 10, SWITCH)
    return belief.sinusoid(data, shown, beliefs())


def wheel():
    rng, grid = np.random.default_rng(0), np.linspace(-1, 1, 11)
    samples = bandit.Samples(rng.uniform(-0.7, 0.7, (30, 2)), rng.normal(size=30))
    surface = bandit.Surface(grid, grid, np.add.outer(grid, grid))
    return bandit.wheel(samples, surface, beliefs(), SWITCH)


def classifier():
    probability = torch.rand(60, 3, generator=torch.Generator().manual_seed(0)).softmax(-1)
    return calibrated.classifier(calibration.reliability(probability, torch.arange(60) % 3))


def facet():
    return performance.Facet("sinusoid", "test NLL (nats)", [curve("SW5", 1), curve("MOCA")])


def supervision():
    values = performance.Table("test rate", [0, 1], "train rate", [0, 0.5, 1], np.eye(2, 3))
    return performance.table(values, "NLL (nats)", "Supervision")


def training():
    step = np.arange(5.0)
    return losses.losses(
        {
            "train": losses.Losses(step, 2 * step, -step),
            "validation": losses.Losses(step, step, -step),
        }
    )


def dot_plot():
    low = np.array([0.001, 1.0])
    marks = [dots.Marks("one", 2 * low, low, 3 * low), dots.Marks("two", np.array([np.nan, 5.0]))]
    facet = dots.Facet("rate", ["a", "b"], marks, "rates", floor=0.01, rule=0.5)
    return dots.dots("Dots", [facet], "Rates by category.")


FIGURES = {
    "dots": dot_plot,
    "against": lambda: performance.against([facet()]),
    "over_time": lambda: performance.over_time([facet()]),
    "step_time": lambda: performance.step_time([curve("MOCA")]),
    "grouped": lambda: performance.grouped({"a": ("NLL", [curve("one"), curve("two")])}),
    "table": supervision,
    "heat_map": lambda: belief.heat_map(beliefs(), SWITCH),
    "sinusoid": sinusoid,
    "trajectory": lambda: trajectory.segmented(np.full((STEPS, 2), 20.0), beliefs()),
    "bandit": wheel,
    "pit": lambda: calibrated.real(torch.linspace(0, 1, 50, dtype=torch.float64)),
    "classifier": classifier,
    "losses": training,
}


def read(page):
    """Traces and layout out of a page."""
    text = page.read_text("utf-8")
    start = re.search(r"Plotly\.newPlot\(\s*\"chart\",\s*", text).end()
    traces, end = json.JSONDecoder().raw_decode(text, start)
    layout, _ = json.JSONDecoder().raw_decode(text, re.compile(r",\s*").match(text, end).end())
    return traces, layout


def numbers(field):
    """A list, or an array as plotly packs it."""
    if isinstance(field, dict):
        packed = np.frombuffer(base64.b64decode(field["bdata"]), field["dtype"])
        shape = field.get("shape")
        return packed.reshape([int(n) for n in shape.split(",")]) if shape else packed
    return np.array(field, np.float64)


def test_each_is_a_page_that_loads_nothing_and_a_picture(tmp_path):
    for name, make in FIGURES.items():
        chart = make()
        page, picture = save(chart, tmp_path / "new" / f"{name}.v1")
        assert [page.name, picture.name] == [f"{name}.v1.html", f"{name}.v1.png"]
        text = page.read_text("utf-8")
        assert text.count("plotly.js v") == 1, name
        own = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
        assert not re.search(r"<script[^>]*\bsrc\b|<link\b|@import|<(img|iframe)\b", own), name
        assert "default-src 'none'" in text
        height, width, _ = matplotlib.image.imread(picture).shape
        assert width == 2 * chart.width
        assert 2 * sum(chart.row_heights) <= height <= 2 * sum(chart.row_heights) + 200
        traces, _ = read(page)
        assert traces, name


def test_performance_has_the_numbers_in_the_methods_order(tmp_path):
    traces, layout = read(save(performance.against([facet()]), tmp_path / "a")[0])
    assert [each["name"] for each in traces] == ["MOCA", "SW5"]
    np.testing.assert_array_equal(numbers(traces[1]["y"]), [1.0, 2.0, 3.0])
    np.testing.assert_allclose(numbers(traces[0]["error_y"]["array"]), 0.2)
    np.testing.assert_allclose(numbers(traces[0]["error_y"]["arrayminus"]), 0.1)
    assert traces[0]["line"]["color"] == palette.METHODS["MOCA"].colour
    assert layout["xaxis"]["type"] == "log"
    assert layout["yaxis"]["title"]["text"] == "test NLL (nats)"


def test_text_is_text_and_no_points_are_no_trace(tmp_path):
    said = "</script><b>$x$ & ₂"
    layers = (Line(np.arange(2.0), np.arange(2.0), said), Points(np.empty(0), np.empty(0), "none"))
    panel = Panel(Axis(said), Axis("y"), layers, said)
    page, _ = save(Chart(said, ((panel,),), said), tmp_path / "e")
    assert "</script><b>" not in page.read_text("utf-8")
    traces, _ = read(page)
    assert [each["name"] for each in traces] == ["&lt;/script&gt;&lt;b&gt;$x$ &amp; ₂"]
