"""`moca evaluate all` on small files of the formats that it reads."""

import json
from io import StringIO

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from training.commands.evaluate import app
from training.evaluation.quality import evaluate as quality
from training.evaluation.quality import sensitivities
from training.evaluation.quality.changes import Sizes
from training.evaluation.quality.tables import as_json, markdown, show, tables, write_numbers

SMALL = Sizes(2, 120, 2, 40, 30, candidates=2)
FEW = sensitivities.Sizes(1, 500, 60, 2, 60, 2, 40, within=30, requested=(2.0,))


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


def test_every_measure_of_the_files_that_are_there(folder):
    text = StringIO()
    console = Console(file=text, width=100)
    results = quality.evaluate(folder, ["gaussian"], 0, SMALL, console, True, FEW)
    assert {"skab.npz", "hasc.npz", "elec2.npz"} <= set(results.missing)
    assert len(results.families) % 11 == 0
    assert [row.requested for row in results.sensitivity] == [2.0] * 11
    corpora = {(row.corpus, row.method): row.f1.mean for row in results.changes}
    assert corpora["TCPD", "gaussian, confirmed online"] > 0.85
    assert corpora["TCPD", "gaussian less seasons, confirmed online"] > 0.85
    assert ("bees", "gaussian less seasons") not in corpora  # of several outputs
    assert corpora["bees", "multivariate"] == 1.0
    assert corpora["bees", "evenly spaced"] == 1.0  # one mark in the middle
    assert corpora["bees", "no change"] == 0.0
    forecasts = {(row.corpus, row.method): row.score for row in results.forecasts}
    assert set(forecasts) == {
        (corpus, method)
        for corpus in ("TCPD", "NAB")
        for method in ("gaussian", "gaussian less seasons", "last value", "rolling mean")
    }
    assert forecasts["TCPD", "gaussian"].log_score.count == 2  # the third is too short
    assert forecasts["NAB", "gaussian"].relative_error.mean < 0.9
    assert 0.8 < forecasts["NAB", "gaussian"].coverage < 0.97
    anomalies = {row.method: row.score for row in results.nab}
    assert anomalies["no change"].in_sample == 0.0
    assert anomalies["gaussian, -log_score"].mean > 60.0  # it falls in at the window's start
    show(results, console)
    assert "Simulated families" in text.getvalue()
    assert "not measured, as it is not there: skab.npz" in text.getvalue()
    written = as_json(results)
    json.dumps(written, allow_nan=False)
    assert written["models"] == ["gaussian", "gaussian less seasons"]
    assert "pit" not in written["forecasts"][0]["score"]
    assert "### Changes: bees" in markdown(tables(results))


def test_the_page_is_by_itself(folder, tmp_path):
    from training.report.quality import write

    results = quality.evaluate(
        folder, ["gaussian"], 0, SMALL, Console(file=StringIO()), sensitivity_sizes=FEW
    )
    files = write(tmp_path / "page", results)
    text = files[0].read_text("utf-8")
    assert "Anomalies: NAB" in text
    assert 'src="http' not in text
    assert {"false_alarms.png", "nab.png", "calibration_nab.png"} <= {file.name for file in files}
    assert all(file.stat().st_size > 0 for file in files)
    write_numbers(tmp_path / "new" / "numbers.json", results)
    numbers = json.loads((tmp_path / "new" / "numbers.json").read_text())
    assert len(numbers["nab"]) == len(results.nab)


def test_anomalies_alone(folder):
    result = CliRunner().invoke(app, ["nab", "--data", str(folder), "--model", "gaussian"])
    assert result.exit_code == 0, result.stderr
    for row in ("gaussian, anomaly, alarms", "gaussian, anomaly ", "windowed Gaussian"):
        assert row in result.stdout
    (folder / "nab.npz").unlink()
    result = CliRunner().invoke(app, ["nab", "--data", str(folder)])
    assert result.exit_code == 2
    assert "expected nab.npz" in result.stderr


def test_a_folder_without_data_is_refused(tmp_path):
    result = CliRunner().invoke(app, ["all", "--data", str(tmp_path)])
    assert result.exit_code == 2
    assert "expected at least one of tcpd.json, nab.npz" in result.stderr
    result = CliRunner(env={"MOCA_TEST_DATA": ""}).invoke(app, ["all"])
    assert result.exit_code == 2
    assert "--data (or MOCA_TEST_DATA) is needed" in result.stderr


@pytest.mark.parametrize(
    ("name", "content"),
    [("tcpd.json", b"{"), ("nab.npz", b"no archive"), ("tcpd.json", b'{"one": {}}')],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    result = CliRunner().invoke(app, ["all", "--data", str(tmp_path)])
    assert result.exit_code == 2
    assert name in result.stderr
    assert "cannot be read as that corpus" in result.stderr


def test_a_model_of_other_labels_is_refused(tmp_path):
    result = CliRunner().invoke(app, ["all", "--data", str(tmp_path), "--model", "poisson"])
    assert result.exit_code == 2
    assert "--model: expected one of gaussian" in result.stderr
