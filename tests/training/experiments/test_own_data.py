"""`moca train --data`: a file of one's own becomes a run, or is refused with what is wrong."""

import csv
import json

import pytest
import torch

from tests.training.moca import moca, small
from training.data import own
from training.data.regime_series import RegimeSeries
from training.data.windows import Series
from training.errors import BadConfig, BadData
from training.evaluation.trained import Trained, load
from training.experiments.jobs import LAGS
from training.meta_training.runs import Run

LENGTH = 240  # observations: the 15 % for validation hold a window of 15 and the 20 before it
SINGLE = ["--set", 'optimiser.dtype="float32"']


def write(file, header, rows):
    with file.open("w", newline="") as handle:
        csv.writer(handle).writerows([header, *rows])
    return file


@pytest.fixture
def series():
    """Labels of three streams (3, LENGTH)."""
    return RegimeSeries(0.05).draw(torch.Generator().manual_seed(1), 3, LENGTH).y.squeeze(-1)


@pytest.fixture
def file(tmp_path, series):
    rows = [[f"s{k}", t, y] for k, each in enumerate(series) for t, y in enumerate(each.tolist())]
    return write(tmp_path / "pumps.csv", ["stream", "time", "y"], rows)


def trained(tmp_path, *arguments, **settings):
    runs = tmp_path / "runs"
    return moca("train", "--runs", runs, "--length", 15, *arguments, *small(**settings))


def test_a_file_becomes_a_run_in_units_of_each_stream(tmp_path, file, series):
    said = trained(tmp_path, "--data", file)
    assert said.exit_code == 0, said.stderr
    run = Run(tmp_path / "runs" / "data" / "pumps" / "run")
    config = run.config()
    assert (config.experiment, config.model.kind, config.model.lags) == ("data", "fleet", LAGS)
    assert config.optimiser.length == 15
    assert config.data["digest"] == own.digest(file)
    best = run.load()[0].best
    assert (best["y_offset"].tolist(), best["y_scale"].tolist()) == ([0.0], [1.0])
    opened = own.opened(config)
    assert [len(each.y) for each in opened.test] == [LENGTH - round(0.85 * LENGTH)] * 3
    held = round(0.7 * LENGTH)
    window = opened.splits.validation.draw(torch.Generator(), 1, 15).y[0, :, 0]
    before, after = series[0, held : held + 20], series[0, held + 20 : held + 35]
    torch.testing.assert_close(window, (after - before.quantile(0.5)) / before.std())
    torch.testing.assert_close(opened.test[1].y[-1, 0], series[1, -1])
    assert run.result()["device"] == "cpu"
    assert "done before" in trained(tmp_path, "--data", file).stdout


def test_inputs_are_scaled_by_the_data_and_lags_stay(tmp_path, series):
    table = [[y, 3 + 4 * x] for y, x in zip(series[0].tolist(), series[1].tolist(), strict=True)]
    file = write(tmp_path / "pumps.csv", ["y", "x"], table)
    assert trained(tmp_path, "--data", file).exit_code == 0
    run = Run(tmp_path / "runs" / "data" / "pumps" / "run")
    assert run.config().model.lags == LAGS
    x = 3 + 4 * series[1, : round(0.7 * LENGTH)].double()
    found = run.load()[0].best
    assert found["x_offset"].item() == pytest.approx(x.mean().item(), rel=1e-5)
    assert found["x_scale"].item() == pytest.approx(x.std(correction=0).item(), rel=1e-5)
    assert found["encoder.linear.weight"].shape == (1, 1 + LAGS)


def test_alpaca_scales_labels_by_the_data(tmp_path, file, series):
    said = trained(tmp_path, "--data", file, "--model", "alpaca")
    assert said.exit_code == 0, said.stderr
    best = Run(tmp_path / "runs" / "data" / "pumps" / "run").load()[0].best
    first = series[:, : round(0.7 * LENGTH)].double().flatten()
    assert best["y_offset"].item() == pytest.approx(first.mean().item(), rel=1e-5)
    assert best["y_scale"].item() == pytest.approx(first.std(correction=0).item(), rel=1e-5)


def test_other_data_under_the_same_name_is_told_apart(tmp_path, file):
    assert trained(tmp_path, "--data", file).exit_code == 0
    file.write_text(file.read_text() + f"s2,{LENGTH},1.5\n")
    again = trained(tmp_path, "--data", file)
    assert again.exit_code == 2
    assert "begun with other settings of data" in again.stderr
    run = tmp_path / "runs" / "data" / "pumps" / "run"
    evaluated = moca("evaluate", "data", run)
    assert evaluated.exit_code == 2
    assert "is not sha256:" in evaluated.stderr


def test_options_name_columns_lengths_and_folders(tmp_path, series):
    rows = [[t, *series[:, t].tolist(), t % 2] for t in range(LENGTH)]
    file = write(tmp_path / "wide.csv", ["when", "a", "b", "c", "on"], rows)
    said = trained(
        tmp_path, "--data", file, "--y", "a,b", "--x", "c,on", "--time", "when",
        "--name", "mine", "--model", "lstm", "--hazard", 0.3, "--seed", 1, "--seed", 2,
        optimiser__length=10,
    )  # fmt: skip
    assert said.exit_code == 0, said.stderr
    runs = sorted(path.name for path in (tmp_path / "runs" / "data" / "mine").iterdir())
    assert runs == ["seed-1", "seed-2"]
    config = Run(tmp_path / "runs" / "data" / "mine" / "seed-2").config()
    assert (config.model.kind, config.model.lags, config.seed) == ("lstm", 0, 2)
    assert config.model.hazard == 0.3
    assert config.optimiser.length == 15  # the option, not the setting
    opened = own.opened(config)
    assert (opened.splits.x_dim, opened.splits.y_dim) == (2, 2)
    assert opened.scaling.x_scale[1] == pytest.approx(0.5)


def test_a_run_goes_on_where_it_was(tmp_path, file):
    whole = tmp_path / "whole"
    moca("train", "--runs", whole, "--data", file, "--length", 15, *small())
    stopped = Run(whole / "data" / "pumps" / "run")
    (stopped.folder / "result.json").unlink()
    progress, parts = stopped.load()
    assert progress.iteration == 6
    said = moca("train", "--runs", whole, "--data", file, "--length", 15, "--resume", *small())
    assert said.exit_code == 0, said.stderr
    assert stopped.done
    torch.testing.assert_close(stopped.load()[1]["learner"], parts["learner"])


def test_what_is_too_short_is_padded_or_left_out_and_named(tmp_path, file):
    short = "".join(f"short,{t},{t % 3}\n" for t in range(40))
    file.write_text(file.read_text() + short + "least,0,1.0\nleast,1,2.0\n")
    said = trained(tmp_path, "--data", file)
    assert said.exit_code == 0, said.stderr
    why = "more than the 20 that give a stream its units are needed\n"
    assert f"left out: stream 'least': 1 observations for training, {why}" in said.stderr
    assert f"left out: stream 'short': 6 observations for validation, {why}" in said.stderr
    padded = "shorter than a window of {}, padded with missing labels: {} of 5 streams for {}, {}\n"
    assert padded.format(35, 1, "training", "'short'") in said.stderr
    said = trained(tmp_path, "--data", file, "--model", "alpaca", "--name", "plain")
    assert said.exit_code == 0, said.stderr
    assert padded.format(15, 1, "training", "'least'") in said.stderr
    assert padded.format(15, 2, "validation", "'short', 'least'") in said.stderr


@pytest.fixture
def plant(tmp_path, series):
    """A plant's file: hours apart at odd intervals, an output of one stream gone, text, a series
    of 40 observations, and a sensor that no stream has."""
    generator = torch.Generator().manual_seed(2)
    table = []
    for name, y in (("a", series[0]), ("b", series[1]), ("short", series[2, :40])):
        hours = (0.2 + 2 * torch.rand(len(y), generator=generator)).cumsum(0).tolist()
        for t, (hour, value) in enumerate(zip(hours, y.tolist(), strict=True)):
            day, rest = divmod(hour, 24)
            when = f"2024-{1 + int(day) // 28:02d}-{1 + int(day) % 28:02d}T{int(rest):02d}:"
            when += f"{int(rest % 1 * 60):02d}:{int(rest * 60 % 1 * 60):02d}Z"
            state, other = "on" if t % 3 else "off", "" if name == "b" or t % 5 == 1 else -value
            table.append([name, when, value, other, "", state])
    header = ["stream", "time", "flow", "pressure", "gone", "state"]
    return write(tmp_path / "plant.csv", header, table)


def test_a_file_of_a_plant_is_trained_on_or_refused_with_the_way_out(tmp_path, plant):
    """An empty sensor, odd intervals, a column of text, a short series."""
    said = trained(tmp_path, "--data", plant, "--y", "flow,pressure,gone")
    assert said.exit_code == 2
    assert "column 'gone' is empty in every row; leave it out: --y flow,pressure" in said.stderr
    labels = ["--y", "flow,pressure"]
    said = trained(tmp_path, "--data", plant, *labels, "--x", "state")
    assert said.exit_code == 2
    assert "column 'state': 'off' is not a number; for an input, give a column of" in said.stderr
    said = trained(tmp_path, "--data", plant, *labels, "--interval", 0)
    assert said.exit_code == 2
    assert "interval: Input should be greater than 0" in said.stderr
    said = trained(tmp_path, "--data", plant, *labels, "--interval", 3600)
    assert said.exit_code == 0, said.stderr
    assert "1 of 3 streams for training, 'short'" in said.stderr
    run = Run(tmp_path / "runs" / "data" / "plant" / "run")
    assert run.result()["skipped"] == 0
    opened = own.opened(run.config())
    batch = opened.splits.train.draw(torch.Generator(), 200, 15)
    lacks = batch.y.isnan()
    assert (lacks[..., 1] & ~lacks[..., 0]).any()
    assert pytest.approx(batch.elapsed[~lacks[..., 0]].mean().item(), abs=0.3) == 1.0
    assert batch.elapsed.std() > 0.3
    said = moca("publish", run.folder, "--name", "plant", "--models-dir", tmp_path / "models",
                "--no-page", "--anyway")  # fmt: skip
    assert said.exit_code == 0, said.stderr


def test_a_row_that_lacks_a_label_teaches_the_others(tmp_path, series):
    """Two sensors that never report together."""
    table = [[y, ""] if t % 2 else ["", -y] for t, y in enumerate(series.flatten().tolist())]
    said = trained(tmp_path, "--data", write(tmp_path / "two.csv", ["y1", "y2"], table))
    assert said.exit_code == 0, said.stderr
    run = Run(tmp_path / "runs" / "data" / "two" / "run")
    before, after = (run.load()[0].history[at]["nll"] for at in (0, -1))
    assert after < before


def rows(count=LENGTH, **columns):
    made = {"y": [float(k % 7) for k in range(count)], **columns}
    return list(made), [list(each) for each in zip(*made.values(), strict=True)]


ONE_CLASS = rows(y=[1] * LENGTH, x=range(LENGTH))
BLANK = rows(x=[0.0] * 20 + [""] + [1.0] * (LENGTH - 21))
TEXT = rows(y=["a"] * LENGTH)
MANY = rows(y=[0, 10**6] * (LENGTH // 2), x=range(LENGTH))
INFINITE = rows(y=[1.5] * 50 + ["inf"] + [2.0] * (LENGTH - 51))
NEAR_INPUTS = [1e9 + k for k in range(LENGTH)]
NEAR, LARGE, HUGE = (
    rows(y=each)
    for each in (
        NEAR_INPUTS, [k * 1e39 for k in range(LENGTH)], [k * 1e300 for k in range(LENGTH)]
    )
)  # fmt: skip
ALPACA, PCOC = ["--model", "alpaca"], ["--model", "pcoc"]


@pytest.mark.parametrize(
    ("table", "options", "said"),
    [
        (rows(), ["--y", "pressure"], ["pumps.csv has no column 'pressure'", "'y'"]),
        (rows(), ["--x", "depth"], ["pumps.csv has no column 'depth'"]),
        (rows(), ["--time", "clock"], ["pumps.csv has no column 'clock'"]),
        (ONE_CLASS, PCOC, ["pumps.csv: every label is class 1"]),
        (rows(y=[0.5] * LENGTH, x=range(LENGTH)), PCOC, ["row 1", "'y'", "not a class"]),
        (rows(), PCOC, ["needs input columns"]),
        (rows(x=range(LENGTH)), [*PCOC, "--lags", "3"], ["takes no lags"]),
        (INFINITE, [], ["pumps.csv: row 51 (line 52), column 'y': 'inf' is not finite"]),
        (BLANK, [], ["row 21", "column 'x'", "empty"]),
        (TEXT, [], ["pumps.csv: row 1 (line 2), column 'y': 'a' is not a number"]),
        (rows(2), ALPACA, ["pumps.csv: no window for test by time: stream 'pumps': 0 obs"]),
        (rows(28), [], ["no window for training by time: stream 'pumps': 20 observations"]),
        (rows(30), [], ["for validation, more than the 20 that give a stream its units"]),
        (rows(), ["--y", "y", "--x", "y"], ["column 'y' is given twice"]),
        (rows(), ["--y", "y,y"], ["column 'y' is given twice"]),
        (MANY, PCOC, ["a class 1000000; 999 is"]),
        (NEAR, [*ALPACA, *SINGLE], ["labels: mean", "float32", "float64"]),
        (LARGE, [*ALPACA, *SINGLE], ["labels: mean", "float32", "float64"]),
        (HUGE, [*ALPACA, *SINGLE], ["labels: mean", "float32"]),
        (HUGE, [], ["labels have the standard deviations [inf]", "divide them first"]),
        (rows(x=NEAR_INPUTS), SINGLE, ["inputs: mean", "float32", "float64"]),
        (rows(), ["--set", "model.priors=4"], ["priors is 4", "expected 1", "--model alpaca"]),
        (rows(), ["--set", 'model.noise="known"'], ["noise is 'known'", "always unknown"]),
        (rows(), ["--set", "model.identity=true"], ["identity and image are not for a fleet"]),
        (rows(), ["--set", "model.image=[1, 2, 3]"], ["identity and image are not for a fleet"]),
        (rows(), ["--name", "a/b"], ["--name: expected part of a folder's name, got 'a/b'"]),
        (rows(), ["--name", ".."], ["--name: expected part of a folder's name, got '..'"]),
        (rows(), ["--device", "meta"], ["device 'meta' cannot be used"]),
        (rows(), ["--lags", "0"], ["nothing to predict from"]),
        (rows(), ["--model", "forest"], ["model.kind"]),
        (rows(), ["--hold-out", "moon"], ["'moon' is not one of 'time', 'stream'"]),
        (rows(), ["--hold-out", "stream"], ["no window for validation by stream"]),
        (rows(), ["--by", "stream"], ["got 'stream'", "use --hold-out stream"]),
        (rows(), ["--by", "pump"], ["no column 'pump'"]),
        (rows(), ["--stream", "pump"], ["--stream was renamed: expected --by pump"]),
        (rows(), ["--mode", "oracle"], ["switches", "are unknown"]),
        (rows(), ["--hazard", "0.1", "--hazard", "0.2"], ["one value"]),
        (rows(), ["sinusoid"], ["one of the two"]),
        (rows(), ["--ablation", "noise"], ["--ablation needs an experiment"]),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place(tmp_path, table, options, said):
    file = write(tmp_path / "pumps.csv", *table)
    found = trained(tmp_path, "--data", file, *options)
    assert found.exit_code == 2, found.stdout
    assert all(each in found.stderr for each in said), found.stderr


def test_a_fleet_is_for_own_data():
    settings = ["--set", 'model.kind="fleet"', "--set", 'model.noise="unknown"']
    found = moca("train", "regimes", *settings)
    assert found.exit_code == 2
    assert "'fleet', which is for --data: expected alpaca" in found.stderr


def test_options_of_own_data_are_not_of_experiments():
    found = moca("train", "sinusoid", "--length", 20)
    assert found.exit_code == 2
    assert "are for --data" in found.stderr
    assert "an experiment, or use --data" in moca("train").stderr


def test_a_file_that_is_not_there(tmp_path):
    said = trained(tmp_path, "--data", tmp_path / "none.csv")
    assert said.exit_code == 2
    assert "none.csv cannot be read: No such file" in said.stderr


def test_scaling_looks_past_missing_labels_and_keeps_what_never_changes():
    y = torch.tensor([[1.0, 4.0], [torch.nan, torch.nan], [3.0, 4.0]], dtype=torch.float64)
    found = own.scaling([Series(None, y, None, "a")], classes=False)
    assert (found.y_offset.tolist(), found.y_scale.tolist()) == ([2.0, 4.0], [1.0, 1.0])
    assert found.x_offset.shape == found.x_scale.shape == (0,)
    assert own.scaling([Series(None, y, None, "a")], classes=True).y_offset.tolist() == [0, 0]


def test_a_column_that_never_changes_is_not_scaled_by_rounding():
    y = torch.full((1050, 1), 0.1, dtype=torch.float64)
    assert own.scaling([Series(None, y, None, "a")], classes=False).y_scale.item() == 1.0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_fleet_learns_labels_of_any_location_and_scale(tmp_path, series, dtype):
    found = []
    for name, offset, scale in (("near", 0.0, 1.0), ("far", 1e9, 1.0), ("large", 0.0, 1e39)):
        table = [[offset + scale * y] for y in series.flatten().double().tolist()]
        file = write(tmp_path / f"{name}.csv", ["y"], table)
        said = trained(tmp_path, "--data", file, **{"optimiser.dtype": f'"{dtype}"'})
        assert said.exit_code == 0, said.stderr
        found.append(Run(tmp_path / "runs" / "data" / name / "run").result()["best_metric"])
    assert found[1:] == pytest.approx(found[:1] * 2, abs=1e-4)


def test_labels_far_from_zero_are_learned_in_double_precision(tmp_path, series):
    found = []
    for name, offset in (("near", 0.0), ("far", 1e9)):
        table = [[offset + y] for y in series.flatten().double().tolist()]
        file = write(tmp_path / f"{name}.csv", ["y"], table)
        double = {"optimiser.dtype": '"float64"'}
        said = trained(tmp_path, "--data", file, *ALPACA, **double)
        assert said.exit_code == 0, said.stderr
        run = Run(tmp_path / "runs" / "data" / name / "run")
        each = Trained(run, run.config(), run.result())
        with torch.no_grad():
            learner = load(each, own.opened(each.config).splits)
        found.append((run.result()["best_metric"], learner.y_offset.item() - offset))
    assert found[1] == pytest.approx(found[0], abs=1e-5)


def test_an_accuracy_is_told_as_it_is(tmp_path):
    file = write(tmp_path / "on.csv", *rows(y=[k // 9 % 2 for k in range(LENGTH)], x=range(LENGTH)))
    chosen = {"validation.metric": '"accuracy"'}
    said = trained(tmp_path, "--data", file, "--model", "pcoc", **chosen)
    best = Run(tmp_path / "runs" / "data" / "on" / "run").result()["best_metric"]
    assert best < 0
    assert f"run: accuracy {-best:.4f} at iteration" in said.stdout


def test_a_table_that_cannot_be_written_is_named(tmp_path):
    file = write(tmp_path / "pumps.csv", *rows(500))
    assert trained(tmp_path, "--data", file).exit_code == 0
    said = moca("evaluate", "data", tmp_path / "runs" / "data" / "pumps" / "run", "--out", file)
    assert said.exit_code == 2
    assert str(file) in said.stderr


def test_a_folder_is_one_data_set(tmp_path, file):
    folder = tmp_path / "many"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.csv").write_text("y\n" + "\n".join(str(k % 5) for k in range(LENGTH)))
    before = own.digest(folder)
    assert before != own.digest(folder / "a.csv")
    assert trained(tmp_path, "--data", folder).exit_code == 0
    (folder / "b.csv").rename(folder / "c.csv")
    assert own.digest(folder) != before
    with pytest.raises(BadData, match="holds none of"):
        own.digest(tmp_path / "runs")


def test_data_that_were_moved(tmp_path, file):
    trained(tmp_path, "--data", file)
    config = Run(tmp_path / "runs" / "data" / "pumps" / "run").config()
    elsewhere = file.rename(tmp_path / "elsewhere.csv")
    assert len(own.opened(own.moved(config, elsewhere)).test) == 3
    with pytest.raises(BadConfig, match="has its own"):
        own.moved(config.model_copy(update={"experiment": "sinusoid"}), elsewhere)
    assert json.loads(config.model_dump_json())["data"]["path"] == str(file)
