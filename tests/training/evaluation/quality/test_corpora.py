"""Corpora in the formats that data folders hold."""

import numpy as np
import pytest

from training.evaluation.quality import corpora


def test_runs_of_several_sensors_are_vectors_and_single_series(tmp_path):
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    changepoint = np.array([0, 0, 1, 0, 1, 0], np.uint8)
    np.savez(
        tmp_path / "skab.npz",
        valve__1__x=x,
        valve__1__changepoint=changepoint,
        free__x=x,  # has no labels
        columns=np.array(["flow", "heat"]),
    )
    content = corpora.load(tmp_path)
    (run,) = content.vectors["SKAB"]
    assert (run.name, run.changes) == ("valve__1", [2, 4])
    assert [each.name for each in content.scalars["SKAB"]] == ["valve__1 flow", "valve__1 heat"]
    assert content.scalars["SKAB"][1].y == pytest.approx(x[:, 1])
    assert "tcpd.json" in content.missing
    assert "skab.npz" not in content.missing


def test_the_market_is_cut_into_streams(tmp_path):
    rows = 2 * corpora.ELEC2_PIECE + 5
    x = np.column_stack([np.zeros(rows), np.arange(rows), -np.arange(rows)]).astype(np.float32)
    columns = np.array(["period", "nswdemand", "nswprice"])
    np.savez(tmp_path / "elec2.npz", x=x, columns=columns)
    pieces = corpora.load(tmp_path).scalars["elec2"]
    assert [each.name for each in pieces] == [
        "nswprice 0", "nswprice 4000", "nswdemand 0", "nswdemand 4000",
    ]  # fmt: skip
    assert pieces[1].y[0] == -4000.0
    assert {len(each.y) for each in pieces} == {corpora.ELEC2_PIECE}


def test_one_accelerometer_is_one_series(tmp_path):
    changepoint = np.zeros(9, np.uint8)
    changepoint[5] = 1
    np.savez(tmp_path / "hasc.npz", x=np.ones((9, 3), np.float32), changepoint=changepoint)
    content = corpora.load(tmp_path)
    assert content.vectors["HASC"][0].changes == [5]
    assert content.vectors["HASC"][0].y.shape == (9, 3)
    assert content.scalars == {}
    assert set(corpora.MARGINS) >= set(content.vectors)
