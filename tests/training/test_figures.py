"""Every figure as SVG and PNG with what it must show, and the pages that hold figures."""

import base64
import json
import math
import re

import matplotlib.image
import numpy as np
import pytest
import torch

from training import figures, publish
from training.data.windows import Batch
from training.experiments import bandit, players, sinusoid
from training.figures import DPI, METHODS, Dots
from training.results import Estimate, MethodComparison, reliability

HAZARDS = [0.01, 0.05, 0.2]
STEPS = 24
SWITCH = np.zeros(STEPS, bool)
SWITCH[[0, 10, 18]] = True
EVIL = '<script>alert("x")</script> $x$'


def curves(*methods):
    return {
        method: {x: Estimate(m, m - 0.1, m + 0.2, 9) for m, x in enumerate(HAZARDS, start)}
        for start, method in enumerate(methods)
    }


def beliefs():
    belief = np.zeros((STEPS, STEPS))
    length = -1
    for t in range(STEPS):
        length = 0 if SWITCH[t] else length + 1
        belief[t, length] = 0.75
        belief[t, max(length - 1, 0)] += 0.25
    return belief


def classifier():
    probability = np.random.default_rng(0).dirichlet([1, 1, 1], 60)
    return figures.classifier(reliability(probability, np.arange(60) % 3))


def validation():
    history = [{"iteration": k, "elapsed_s": 2.0 * k, "nll": -float(k)} for k in range(5)]
    return figures.validation({"SW5": history, "MOCA": history[:3]}, EVIL)


def dots():
    values = {
        ("a", "one"): Estimate(0.002, 0.001, 0.003, 9),
        ("b", "one"): Estimate(2.0, 1.0, 3.0, 9),
        ("b", "two"): Estimate(5.0, math.nan, math.nan, 1),
    }
    return figures.dots("Dots", [Dots("rate", values, "rates", 0.01, 0.5)], "Rates.")


def densities():
    x, y = sinusoid.GRID
    density = np.exp(-np.abs(np.subtract.outer(y.numpy(), np.sin(x.numpy()))))
    data = torch.linspace(-5, 5, STEPS), torch.arange(STEPS) / 10, torch.tensor(SWITCH)
    batch = Batch(data[0][None, :, None], data[1][None, :, None], data[2][None])
    return sinusoid.densities_chart(batch, dict.fromkeys((5, 12), density), beliefs())


def disc():
    samples = torch.rand(30, 2).double() - 0.5, torch.linspace(-1, 1, 30).double()
    mean = bandit.AXIS + bandit.AXIS[:, None]
    belief = torch.tensor(beliefs()), torch.tensor(SWITCH)
    return bandit.disc_chart(samples, mean, *belief, "Wheel")


FIGURES = {
    "against": lambda: figures.against(curves("SW5", "MOCA"), "NLL (nats)", "NLL", "hazard"),
    "over_time": lambda: figures.over_time(dict.fromkeys("abcd", curves("MOCA")), "regret", ""),
    "validation": validation,
    "dots": dots,
    "heat_map": lambda: figures.heat_map(beliefs(), SWITCH),
    "pit": lambda: figures.calibration(np.linspace(0, 1, 50)),
    "classifier": classifier,
    "densities": densities,
    "disc": disc,
    "trajectory": lambda: players.trajectory(np.full((STEPS, 2), 20.0), beliefs(), "Path"),
}


@pytest.fixture(scope="module")
def charts():
    return {name: make() for name, make in FIGURES.items()}


def test_a_chart_is_a_vector_and_a_picture(charts, tmp_path):
    vector, picture = charts["pit"].save(tmp_path / "new" / "pit.v1")
    assert [vector.name, picture.name] == ["pit.v1.svg", "pit.v1.png"]
    assert vector.read_bytes().endswith(b"</svg>\n")
    height, width, _ = matplotlib.image.imread(picture).shape
    assert [width, height] == pytest.approx(DPI * charts["pit"].figure.get_size_inches(), abs=1)


def check_complete(chart):
    """Axes have labels, and no legend covers data: there is one place for the legends of all."""
    chart.figure.draw_without_rendering()
    for axes in chart.figure.axes:
        if axes.get_visible() and axes.get_label() != "<colorbar>" and axes.get_xlabel():
            shared = not axes.yaxis.get_tick_params().get("labelleft", True)
            assert axes.get_ylabel() or shared
    for legend in chart.figure.legends:
        covered = legend.get_window_extent()
        for axes in chart.figure.axes:
            assert not covered.overlaps(axes.get_window_extent())


def check_marked(axes):
    """True switches are lines, with one key for all of them."""
    at = [line.get_xdata()[0] for line in axes.lines if line.get_label() == "true switch"]
    assert at == [9.5]
    assert sum(line.get_color() == "#c8102e" for line in axes.lines) == 2


def test_axes_have_labels_legends_their_place_and_changes_are_marked(charts):
    for name, chart in charts.items():
        if name != "dots":
            check_complete(chart)
    for name, place in (("heat_map", 0), ("densities", -2), ("disc", -2)):
        check_marked(charts[name].figure.axes[place])


def test_methods_are_in_the_papers_order_with_their_numbers(charts):
    (axes,) = charts["against"].figure.axes
    handles, names = axes.get_legend_handles_labels()
    assert names == ["MOCA", "SW5"]
    line, caps, (bars,) = handles[0]
    assert line.get_color() == METHODS["MOCA"]["color"]
    assert line.get_ydata().tolist() == [1, 2, 3]
    ends = [segment[:, 1].tolist() for segment in bars.get_segments()]
    np.testing.assert_allclose(ends, [[0.9, 1.2], [1.9, 2.2], [2.9, 3.2]])
    assert axes.get_xscale() == "log"
    assert axes.get_ylabel() == "NLL (nats)"
    (axes,) = charts["dots"].figure.axes
    handles, names = axes.get_legend_handles_labels()
    assert names == ["one", "two"]
    assert handles[0][0].get_xdata().tolist() == [0.002, 2.0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b"]
    assert (axes.get_xscale(), axes.get_xlim()[0]) == ("symlog", -0.005)


def test_no_two_methods_look_alike():
    names = [*"abcdefghijklmnopqrst", "MOCA", "SW5", "COE"]
    looks = figures.looks(names)
    assert list(looks) == ["MOCA", "SW5", "COE", *names[:-3]]
    assert len({tuple(look.values()) for look in looks.values()}) == len(names)


def test_text_is_no_mathematics(charts):
    figure = charts["validation"].figure
    assert charts["validation"].title == figure.get_suptitle() == EVIL
    texts = [*figure.texts, *figure.legends[0].get_texts()]
    assert not any(text.get_parse_math() for text in texts)


@pytest.fixture
def measured():
    ahead = Estimate(-0.3, -0.4, -0.2, 200)
    return {
        "version": publish.VERSION,
        "name": f"sinusoid {EVIL}",
        "kind": "alpaca",
        "data_digest": "sha256:12",
        "configuration": {"hazard": 0.05, "encoder": {"layers": [128, 128], EVIL: EVIL}},
        "environment": {"torch": "2.13.0", "device": "cpu", "seed": 7, "wall_time_s": 12.34},
        "metrics": [
            {"name": "NLL", "estimate": Estimate(-3.291, -3.365, -3.217, 200), "unit": "nats"}
        ],
        "comparisons": (
            MethodComparison("SW5", "NLL", Estimate(-3.0, -3.1, -2.9, 200), ahead),
            MethodComparison(EVIL, "NLL", Estimate(1.0, math.nan, math.nan, 1), ahead),
        ),
        "untrained": (),
        "calibration": {
            "pit_distance": 0.021,
            "coverage": [(0.5, 0.493), (0.9, 0.907)],
            "class_error": None,
        },
    }


def test_a_report_is_one_page_that_loads_nothing_and_the_same_numbers(measured, charts, tmp_path):
    figures = [charts["validation"], charts["pit"]]
    publish.write_report(tmp_path, measured, figures)
    text = (tmp_path / "report.html").read_text("utf-8")
    pictures = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]+)" alt="([^"]+)"', text)
    assert [alt for _, alt in pictures] == [chart.description for chart in figures]
    assert base64.b64decode(pictures[0][0]).endswith(b"</svg>\n")
    own = re.sub(r'src="data:[^"]+"', "", text)
    assert not re.search(r"<script|\bsrc=|\bhref=|@import|url\(|http(?!-equiv)", own)
    for shown in ("-3.291 ± 0.074", "encoder.layers", "90.7%", '<html lang="en">', "0.0210"):
        assert shown in own
    assert text.count("<table>") == text.count("<caption>") >= 5
    content = json.loads((tmp_path / "report.json").read_text("utf-8"), parse_constant=pytest.fail)
    assert content["version"] == publish.VERSION
    assert [*content["metrics"][0]["estimate"].values()] == [-3.291, -3.365, -3.217, 200]
    assert content["comparisons"][1]["estimate"]["low"] is None
    assert content["calibration"]["coverage"] == [[0.5, 0.493], [0.9, 0.907]]
    assert [set(chart) for chart in content["figures"]] == [{"title", "description"}] * 2
    assert "Built-in models" not in own
    publish.write_report(tmp_path, {**measured, "comparisons": ()}, ())
    bare = (tmp_path / "report.html").read_text("utf-8")
    for heading in ("Figures", "Comparison"):
        assert f"<h2>{heading}" in text
        assert f"<h2>{heading}" not in bare
