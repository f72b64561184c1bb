"""`moca evaluate all` on small files of the formats that they read."""

import json
from io import StringIO

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from model_core.stream_settings import DEFAULTS
from model_core.upm.builtin import Options, build
from training.commands.evaluate import app
from training.online import StartBelief
from training.quality.measures import (
    QualityStudy,
    ages,
    candidates,
    evaluate,
    periods,
    show,
    starts_read,
    variants,
    write,
)
from training.quality.series import Corpora, Sizes
from training.results import write as write_numbers

SMALL = Sizes(2, 120, 2, 40, 30, (1.0, 2.0, 3.0), 2, 2, (40,), (1000.0,))


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)

    def steps(length, outputs=1):
        y = rng.normal(size=(length, outputs))
        y[length // 2 :] += 5.0
        return y

    marked = {"a": [60], "b": [61]}
    content = {
        name: {"values": steps(120).T.tolist(), "annotations": marked} for name in ("one", "two")
    }
    content["short"] = {"values": steps(15).T.tolist(), "annotations": marked}
    (tmp_path / "tcpd.json").write_text(json.dumps(content))
    window = np.zeros(200, np.uint8)
    window[100:120] = 1
    arrays = {}
    for k in range(6):
        arrays[f"c__{k}__value"] = steps(200)[:, 0]
        arrays[f"c__{k}__window"] = window
    np.savez(tmp_path / "nab.npz", **arrays)
    changepoint = np.zeros(120, np.uint8)
    changepoint[60] = 1
    np.savez(tmp_path / "beedance.npz", seq1__x=steps(120, 2), seq1__changepoint=changepoint)
    return tmp_path


def run(*arguments, **environment):
    return CliRunner(env=environment).invoke(app, [str(argument) for argument in arguments])


@pytest.mark.slow
def test_every_measure_of_the_files_that_are_there(folder, tmp_path):
    text = StringIO()
    console = Console(file=text, width=100)
    results = evaluate(folder, variants(["gaussian"], True, 2), 0, SMALL, console)
    assert {"skab.npz", "hasc.npz", "elec2.npz"} <= set(results["missing"])
    assert len(results["families"]) % 11 == 0
    corpora = {(row["corpus"], row["method"]): row["f1"].mean for row in results["changes"]}
    assert corpora["TCPD", "gaussian less seasons, confirmed online"] > 0.85
    assert corpora["TCPD", "gaussian with 2 regimes, confirmed online"] > 0.85
    assert ("bees", "gaussian less seasons") not in corpora  # of several outputs
    assert corpora["bees", "multivariate"] == 1.0
    assert corpora["bees", "evenly spaced"] == 1.0  # one mark in the middle
    assert corpora["bees", "no change"] == 0.0
    assert corpora["bees", "always fire, every 60"] == 1.0  # the mean regime is half the series
    methods = {row["method"] for row in results["families"]}
    assert "FOCuS at the rate of gaussian, confirmed" in methods
    assert len(results["periods"]) == 11 * 3
    starts = [row["confirmed"] for row in results["starts"] if row["shift"] == 3.0]
    assert {row["family"] for row in results["starts"]} >= {"normal", "1 % outliers", "lognormal"}
    assert 0.8 < np.mean([read["inside"] for read in starts]) <= 1.0
    assert [row["shift"] for row in results["ages"]] == [1.0] * 3 + [2.0] * 3 + [3.0] * 3
    forecasts = {(row["corpus"], row["method"]): row["score"] for row in results["forecasts"]}
    assert {corpus for corpus, _ in forecasts} == {"TCPD", "NAB"}
    assert len(forecasts) == 10
    assert forecasts["TCPD", "gaussian"]["log_score"].count == 2  # the third is too short
    assert 0.8 < forecasts["NAB", "gaussian"]["coverage"] < 0.97
    anomalies = {row["method"]: row["score"] for row in results["nab"]}
    assert anomalies["no change"].in_sample == 0.0
    assert anomalies["gaussian, -log_score"].mean > 60.0  # it falls in at the window's start
    volumes = {row["method"]: row["vus"] for row in results["vus"]}
    assert volumes["gaussian, -log_score"].count == 6
    assert volumes["no change"].mean < volumes["gaussian, evidence"].mean < 1.0
    show(results, console)
    assert "skab.npz" in text.getvalue()
    write(tmp_path / "out", results)
    drawn = {f"{name}.{form}" for name in ("false_alarms", "delays") for form in ("svg", "png")}
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"tables.md", *drawn}
    write_numbers(tmp_path / "new" / "numbers.json", results)
    numbers = json.loads((tmp_path / "new" / "numbers.json").read_text())
    assert len(numbers["nab"]) == len(results["nab"])


def studied(sizes, models):
    """A study of simulations."""
    rng = np.random.default_rng(0)
    return QualityStudy(models, {}, Corpora({}, {}, []), sizes, 0, rng)


def test_models_are_measured_at_other_settings_too():
    names = ["gaussian", "averaged"]
    models = variants(names, seasons=True, regimes=4)
    after = ("", " less seasons", " with 4 regimes")
    assert list(models) == [f"{name}{settings}" for settings in after for name in names]
    settings = {name: own for name, (_, own) in models.items()}
    assert settings["averaged less seasons"] == DEFAULTS._replace(seasonal=True)
    assert settings["gaussian with 4 regimes"] == DEFAULTS._replace(regimes=4)
    assert studied(SMALL, models).names == list(variants(names)) == names


def test_alarms_got_are_fewer_the_fewer_are_asked_for():
    sizes = Sizes(quiet=3, quiet_length=400, periods=(30.0, 10_000.0))
    rows = {
        (row["family"], row["every"]): row
        for row in periods(studied(sizes, variants(["gaussian"])))
    }
    often = rows["AR(0.9)", 30.0]
    seldom = rows["AR(0.9)", 10_000.0]
    # Alarms by 1,200 observations; a filter of independent noise has many of them here.
    assert often["got"].mean / 30 > seldom["got"].mean / 10_000 > 0
    quiet = rows["normal", 10_000.0]
    assert quiet["got"].mean == 0.0
    assert 0.0 <= often["steady"] < quiet["steady"] <= 1.0


def test_larger_shifts_are_found_sooner():
    sizes = Sizes(aged=6, ages=(40,), within=60, shifts=(0.5, 4.0))
    small, large = ages(studied(sizes, variants(["gaussian"])))
    assert (small["after"], small["shift"], large["shift"]) == (40, 0.5, 4.0)
    assert large["found"] == 1.0
    assert large["delay"] <= large["late"] < small["delay"]


def test_intervals_of_starts_are_those_of_the_first_change_after_a_shift():
    def read(seq, confirmed_at, earliest, latest, coverage, *chances):
        possible = np.arange(seq + 1 - len(chances), seq + 1)
        return StartBelief(
            seq, confirmed_at, earliest, latest, coverage, possible, np.array(chances)
        )

    sure = read(44, 44, 40, 40, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0)
    unsure = read(43, 43, 41, 42, 0.9, 0.0, 0.5, 0.4, 0.1)  # it leaves 40 out
    beliefs = [
        [],
        [read(41, 31, 32, 33, 0.9, 1.0), sure, sure._replace(seq=54), sure._replace(seq=61)],
        [unsure, unsure._replace(seq=70, confirmed_at=60)],
        [read(36, 36, 35, 36, 1.0, 1.0)],  # of a change before the shift
    ]
    fit = starts_read(beliefs, 40, 0)
    confirmed, later = fit["confirmed"], fit["later"]
    numbers = ("count", "inside", "stated", "length")
    assert [confirmed[name] for name in numbers] == [2, 0.5, pytest.approx(0.95), 1.5]
    assert [later[name] for name in numbers] == [1, 1.0, 1.0, 1]
    assert confirmed["central"].mean == 0.5  # all starts that are believed in are after the shift
    assert later["central"].mean == 1.0
    assert starts_read(beliefs[:1], 40, 0) == {"confirmed": None, "later": None}


def test_what_cannot_be_evaluated_is_named(tmp_path):
    for arguments, environment, message in (
        (("all", "--data", tmp_path), {}, "tcpd.json, nab.npz"),
        (("all",), {"MOCA_TEST_DATA": ""}, "--data"),
        (("all", "--data", tmp_path, "--model", "poisson"), {}, "--model: "),
    ):
        result = run(*arguments, **environment)
        assert result.exit_code == 2, arguments
        assert message in result.stderr
    for name, content in (
        ("tcpd.json", b"{"),
        ("nab.npz", b"no archive"),
        ("tcpd.json", b'{"one": {}}'),
    ):
        (tmp_path / name).write_bytes(content)
        result = run("all", "--data", tmp_path)
        assert result.exit_code == 2
        assert name in result.stderr
        (tmp_path / name).unlink()


def test_settings_that_are_tried_are_drawn_constant_by_constant_the_outlier_rate_last():
    model = build("gaussian", Options())
    (first, settings), (changed, other) = candidates(model, 1, np.random.default_rng(0))
    assert (first, settings) == (model, DEFAULTS)
    factors = np.exp(np.log(2.0) * np.random.default_rng(0).uniform(-1, 1, 5))
    names = ("kappa", "alpha", "beta", "outlier_rate")
    ratios = [getattr(changed, name) / getattr(model, name) for name in names]
    assert ratios == pytest.approx(factors[:4])
    assert other.false_alarm_every == pytest.approx(DEFAULTS.false_alarm_every * factors[4])
