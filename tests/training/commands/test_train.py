"""`moca train`: grids, files of settings, own data; what is wrong is refused in one line."""

import csv
import re
import tomllib
from datetime import UTC, datetime, timedelta
from importlib import resources
from itertools import product

import pytest
import torch

from service.commands import main
from tests.training.moca import moca, small
from training import catalogue
from training.data.windows import Series
from training.errors import BadConfig
from training.experiments import own
from training.experiments.regimes import regime_series
from training.jobs import LAGS, Training
from training.meta_training.runs import Run
from training.paper import finished

LENGTH = 240  # observations: the 15 % for validation hold a window of 15 and the 20 before it
SINGLE = ["--set", 'optimiser.dtype="float32"']
SINUSOID = [
    ("--preset papr", "'papr'"),
    ("--ablation nope", "'nope'"),
    ("--ablation length --mode oracle", "--ablation length"),
    ("--device nowhere", "'nowhere'"),
    ("--hazard 2", "model.hazard"),
    ("--set foo", "--set foo"),
    ("--set model.kind=lstm", "quote a string"),
    ("--set model.foo=1", "model.foo: "),
    ("--set model.kind='pcoc'", "labels that are numbers"),
    ("--set model.image=[3,8,8]", "inputs are of 1 numbers"),
    ("--set validation.metric='accuracy'", "validation.metric"),
    ("--set data.hazard=2", "[0, 1], got 2"),
    ("--set name='../a'", "name: "),
    ("--config there-is-none.toml", "there-is-none.toml"),
    ("--lags 2", "for --data"),
    ("--data a.csv", "one of the two"),
]
OTHERS = [
    ("", "nothing to train"),
    ("sinusoi", "expected one of sinusoid, "),
    ("players", "--datasets is needed"),
    ("rainbow --datasets there-is-none", "rainbow_mnist_train.npz does not exist"),
    ("regimes --set model.kind='fleet' --set model.noise='unknown'", "for --data"),
]


def refusal(*arguments):
    """What a command says that it refuses: one line, without a traceback."""
    result = moca("train", *arguments, *small())
    assert result.exit_code == 2, arguments
    assert result.stdout == ""
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("moca: ")
    return line


def test_what_is_wrong_is_said_in_a_line(tmp_path):
    runs = ("--runs", tmp_path / "runs")
    cases = [(f"sinusoid {text}", message) for text, message in SINUSOID] + OTHERS
    for text, message in cases:
        assert message in refusal(*text.split(), *runs), text
    file = tmp_path / "own.toml"
    for content in (b"\xff\xfe\x00", b"a = = 1", b"[optimiser]\nrat = 1"):
        file.write_bytes(content)
        line = refusal("sinusoid", "--config", file, *runs)
        assert "own.toml" in line or "optimiser.rat" in line
    assert not (tmp_path / "runs").exists()
    assert str(file) in refusal("sinusoid", "--runs", file)  # no folder


def test_a_file_wins_over_the_preset_and_an_option_over_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("MOCA_SEED", "4 5")  # an option of one call has no variable
    file = tmp_path / "a.toml"
    file.write_text("[optimiser]\nlearning_rate = 0.1\nclip = 3.0\n[model]\nnoise = 'unknown'\n")
    settings = small(optimiser__clip=2.0)
    result = moca("train", "sinusoid", "--config", file, "--runs", tmp_path, *settings)
    assert result.exit_code == 0, result.stderr
    (run,) = finished(tmp_path)
    assert run.folder == tmp_path / "sinusoid" / "quick" / "run"
    config = run.config
    assert (config.optimiser.learning_rate, config.optimiser.clip) == (0.1, 2.0)
    assert config.model.noise == "unknown"
    assert config.optimiser.schedule == "cosine"  # as in the preset


def test_a_grid_is_a_run_for_each_cell(tmp_path):
    asked = ["--hazard", 0.1, "--hazard", 0.2, "--mode", "moca", "--mode", "sw3"]
    result = moca("train", "sinusoid", "--runs", tmp_path, *asked, *small())
    assert result.exit_code == 0, result.stderr
    runs = {run.folder.name: run.config for run in finished(tmp_path)}
    assert runs.keys() == {f"hazard-{h}_{m}" for h in (0.1, 0.2) for m in ("moca", "sw3")}
    one = runs["hazard-0.2_sw3"]
    assert (one.data["hazard"], one.model.hazard, one.objective.mode) == (0.2, 0.2, "sw3")
    for name in runs:
        lines = [line for line in result.stdout.splitlines() if line.startswith(f"{name}")]
        assert len(lines) == 3, "two validations and the result"
        assert re.search(r": nll -?\d+\.\d{4} at iteration [36] of 6, \d+ s$", lines[-1])


def test_every_preset_and_variation_is_a_configuration():
    for experiment in catalogue.EXPERIMENTS:
        text = (resources.files("training") / "presets" / f"{experiment}.toml").read_text()
        names = {"quick", *tomllib.loads(text)} - {"all", "ablation"}
        configs = {name: catalogue.preset(experiment, name) for name in names}
        assert {config.experiment for config in configs.values()} == {experiment}
        assert experiment == "regimes" or configs["quick"].optimiser != configs["paper"].optimiser
        asked = tomllib.loads(text).get("ablation", {})
        for name in asked:
            cells = Training(experiment, "quick", None).cells(
                {}, catalogue.ablation(name, experiment)
            )
            settings = dict(cells)
            assert len(settings) == len(list(product(*cells_of(asked[name])))), name
            keys = [catalogue.preset(experiment, "quick", cell) for cell in settings.values()]
            assert len({config.model_dump_json() for config in keys}) == len(settings) > 1
            assert "run" not in settings


def cells_of(asked):
    """Axes of an ablation."""
    return [asked[axis] for axis in ("hazards", "values", "methods") if axis in asked]


def write(file, header, rows):
    with file.open("w", newline="") as handle:
        csv.writer(handle).writerows([header, *rows])
    return file


@pytest.fixture
def series():
    """Labels of three streams (3, LENGTH)."""
    return regime_series(torch.Generator().manual_seed(1), 3, LENGTH, 0.05).y.squeeze(-1)


@pytest.fixture
def file(tmp_path, series):
    rows = [
        [f"s{k}", t, y] for k, labels in enumerate(series) for t, y in enumerate(labels.tolist())
    ]
    return write(tmp_path / "pumps.csv", ["stream", "time", "y"], rows)


def trained(tmp_path, *arguments, **settings):
    runs = tmp_path / "runs"
    return moca("train", "--runs", runs, "--length", 15, *arguments, *small(**settings))


def test_a_file_becomes_a_run_in_units_of_each_stream(tmp_path, file, series, monkeypatch):
    monkeypatch.chdir(file.parent)
    result = trained(tmp_path, "--data", file.name)
    assert result.exit_code == 0, result.stderr
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # it finds its data from any folder
    run = Run(tmp_path / "runs" / "data" / "pumps" / "run")
    config = run.config
    assert (config.experiment, config.model.kind, config.model.lags) == ("data", "fleet", LAGS)
    assert config.optimiser.length == 15
    assert config.data["digest"] == own.digest(file)
    best = run.load()[0].best
    assert (best["y_offset"].tolist(), best["y_scale"].tolist()) == ([0.0], [1.0])
    splits = own.splits(config)
    assert [len(part.y) for part in splits.held_out] == [LENGTH - round(0.85 * LENGTH)] * 3
    held = round(0.7 * LENGTH)
    window = splits.validation(torch.Generator(), 1, 15).y[0, :, 0]
    before, after = series[0, held : held + 20], series[0, held + 20 : held + 35]
    torch.testing.assert_close(window, (after - before.quantile(0.5)) / before.std())
    torch.testing.assert_close(splits.held_out[1].y[-1, 0], series[1, -1])
    assert run.result["device"] == "cpu"
    assert "done before" in trained(tmp_path, "--data", file).stdout
    file.write_text(file.read_text() + f"s2,{LENGTH},1.5\n")  # other data under the same name
    for result, why in (
        (trained(tmp_path, "--data", file), "begun with other settings of data"),
        (moca("evaluate", "data", run.folder), "is not sha256:"),
    ):
        assert result.exit_code == 2
        assert why in result.stderr


def test_inputs_and_labels_are_scaled_by_the_data_unless_a_fleet_takes_its_units(tmp_path, series):
    y, x = series[0].double(), 3 + 4 * series[1].double()
    table = list(zip(y.tolist(), x.tolist(), strict=True))
    file = write(tmp_path / "pumps.csv", ["y", "x"], table)
    first = slice(0, round(0.7 * LENGTH))
    for kind in ("fleet", "alpaca"):
        result = trained(tmp_path, "--data", file, "--model", kind, "--name", kind)
        assert result.exit_code == 0, result.stderr
        best = Run(tmp_path / "runs" / "data" / kind / "run").load()[0].best
        assert best["x_offset"].item() == pytest.approx(x[first].mean().item(), rel=1e-5)
        assert best["x_scale"].item() == pytest.approx(x[first].std(correction=0).item(), rel=1e-5)
        units = (0.0, 1.0) if kind == "fleet" else (y[first].mean(), y[first].std(correction=0))
        assert best["y_offset"].item() == pytest.approx(float(units[0]), rel=1e-5)
        assert best["y_scale"].item() == pytest.approx(float(units[1]), rel=1e-5)
    missing = torch.tensor([[1.0, 0.1], [torch.nan, torch.nan], [3.0, 0.1]], dtype=torch.float64)
    scaling = own.scaling_of([Series(None, missing, name="a")], labels=True)
    assert scaling.y_offset.tolist() == pytest.approx([2.0, 0.1])
    assert scaling.y_scale.tolist() == [1.0, 1.0]  # a column that never changes
    scaling = own.scaling_of([Series(None, missing, name="a")], labels=False)
    assert scaling.y_offset.tolist() == [0, 0]


def test_a_package_that_is_missing_is_named_as_pip_has_it(monkeypatch, capsys):
    def lacking():
        raise ModuleNotFoundError(name="PIL")

    monkeypatch.setattr(main, "app", lacking)
    with pytest.raises(SystemExit, match="2"):
        main.main()
    message = capsys.readouterr().err
    assert "`pip install pillow`" in message
    assert "moca-service" not in message


def test_options_name_columns_lengths_and_folders(tmp_path, series):
    rows = [[t, *series[:, t].tolist(), t % 2] for t in range(LENGTH)]
    file = write(tmp_path / "wide.csv", ["when", "a", "b", "c", "on"], rows)
    result = trained(
        tmp_path, "--data", file, "--y", "a,b", "--x", "c,on", "--time", "when",
        "--name", "mine", "--model", "lstm", "--hazard", 0.3, "--seed", 1, "--seed", 2,
        optimiser__length=10,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    runs = sorted(path.name for path in (tmp_path / "runs" / "data" / "mine").iterdir())
    assert runs == ["seed-1", "seed-2"]
    config = Run(tmp_path / "runs" / "data" / "mine" / "seed-2").config
    assert (config.model.kind, config.model.lags, config.seed) == ("lstm", 0, 2)
    assert config.model.hazard == 0.3
    assert config.optimiser.length == 15  # the option, not the setting
    splits = own.splits(config)
    assert (splits.x_dim, splits.y_dim) == (2, 2)
    assert splits.scaling.x_scale[1] == pytest.approx(0.5)


@pytest.fixture
def plant(tmp_path, series):
    """A plant's file: hours apart at odd intervals, an output of one stream gone, text, a series
    of 40 observations, and a sensor that no stream has."""
    generator = torch.Generator().manual_seed(2)
    table = []
    for name, y in (("a", series[0]), ("b", series[1]), ("short", series[2, :40])):
        hours = (0.2 + 2 * torch.rand(len(y), generator=generator)).cumsum(0).tolist()
        for t, (hour, value) in enumerate(zip(hours, y.tolist(), strict=True)):
            when = (datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=hour)).isoformat()
            state, other = "on" if t % 3 else "off", "" if name == "b" or t % 5 == 1 else -value
            table.append([name, when, value, other, "", state])
    header = ["stream", "time", "flow", "pressure", "gone", "state"]
    return write(tmp_path / "plant.csv", header, table)


def test_a_file_of_a_plant_is_trained_on_or_refused_with_the_way_out(tmp_path, plant):
    for options, why in (
        ("--y flow,pressure,gone", "column 'gone' is empty in every row"),
        ("--y flow,pressure --x state", "column 'state': 'off' is not a number; --y and --x"),
        ("--y flow,pressure --interval 0", "interval: "),
    ):
        result = trained(tmp_path, "--data", plant, *options.split())
        assert result.exit_code == 2
        assert why in result.stderr
    result = trained(tmp_path, "--data", plant, "--y", "flow,pressure", "--interval", 3600)
    assert result.exit_code == 0, result.stderr
    assert "1 of 3 streams for training, 'short'" in result.stderr
    run = Run(tmp_path / "runs" / "data" / "plant" / "run")
    assert run.result["skipped"] == 0
    splits = own.splits(run.config)
    batch = splits.train(torch.Generator(), 200, 15)
    lacks = batch.y.isnan()
    assert (lacks[..., 1] & ~lacks[..., 0]).any()
    assert pytest.approx(batch.elapsed[~lacks[..., 0]].mean().item(), abs=0.3) == 1.0
    assert batch.elapsed.std() > 0.3


def rows(count=LENGTH, **columns):
    table = {"y": [float(k % 7) for k in range(count)], **columns}
    return list(table), [list(cells) for cells in zip(*table.values(), strict=True)]


ALPACA, PCOC = ["--model", "alpaca"], ["--model", "pcoc"]


def unusable():
    """Tables, options and what has to be named."""
    inputs = range(LENGTH)
    near, huge = [1e9 + k for k in inputs], [k * 1e300 for k in inputs]
    plain = rows()
    yield plain, ["--y", "y", "--x", "y"], ["'y' is given twice"]
    yield plain, PCOC, ["input columns"]
    yield plain, ["--hold-out", "pump"], ["--hold-out"]
    yield plain, ["--mode", "oracle"], ["switches"]
    yield plain, ["--hazard", "0.1", "--hazard", "0.2"], ["one value"]
    yield plain, ["sinusoid"], ["one of the two"]
    yield plain, ["--set", "model.priors=4"], ["priors is 4", "--model alpaca"]
    yield rows(y=[0, 10**6] * (LENGTH // 2), x=inputs), PCOC, ["a class 1000000"]
    yield rows(x=inputs), [*PCOC, "--lags", "3"], ["takes no lags"]
    yield rows(2), ALPACA, ["no window for test by time: stream 'pumps': 0 obs"]
    yield rows(28), [], ["no window for training by time: stream 'pumps': 20 observations"]
    yield rows(y=near), [*ALPACA, *SINGLE], ["labels: mean", "float64"]
    yield rows(x=near), SINGLE, ["inputs: mean", "float64"]
    yield rows(y=huge), [], ["standard deviations [inf]"]


def test_data_that_cannot_be_used_are_refused_with_their_place(tmp_path):
    for table, options, messages in unusable():
        file = write(tmp_path / "pumps.csv", *table)
        result = trained(tmp_path, "--data", file, *options)
        assert result.exit_code == 2, (options, result.stdout)
        assert all(message in result.stderr for message in messages), (options, result.stderr)


def test_a_fleet_learns_labels_of_any_location_and_scale(tmp_path, series):
    losses = []
    for name, offset, scale in (("near", 0.0, 1.0), ("far", 1e9, 1.0), ("large", 0.0, 1e39)):
        table = [[offset + scale * y] for y in series.flatten().double().tolist()]
        file = write(tmp_path / f"{name}.csv", ["y"], table)
        result = trained(tmp_path, "--data", file, *SINGLE)
        assert result.exit_code == 0, result.stderr
        losses.append(Run(tmp_path / "runs" / "data" / name / "run").result["best_metric"])
    assert losses[1:] == pytest.approx(losses[:1] * 2, abs=1e-4)


def test_a_folder_is_one_data_set_that_may_be_moved(tmp_path, monkeypatch):
    folder = tmp_path / "many"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.csv").write_text("y\n" + "\n".join(str(k % 5) for k in range(LENGTH)))
    before = own.digest(folder)
    assert before != own.digest(folder / "a.csv")
    assert trained(tmp_path, "--data", folder).exit_code == 0
    run = tmp_path / "runs" / "data" / "many" / "run"
    elsewhere = folder.rename(tmp_path / "elsewhere")
    assert len(own.splits(own.finished(run, elsewhere).config).held_out) == 2
    (elsewhere / "b.csv").rename(elsewhere / "c.csv")
    assert own.digest(elsewhere) != before
    config = Run(run).config.model_copy(update={"experiment": "sinusoid"})
    monkeypatch.setattr(Run, "config", config)
    with pytest.raises(BadConfig, match="has its own"):
        own.finished(run, elsewhere)
