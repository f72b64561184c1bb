"""The training loop: it learns, a seed decides it, and it ends, keeps and shows what it should."""

import io
import itertools
import math
import re

import pytest
import torch
from rich.console import Console

from tests.training.test_learners import drawn, learner_of
from tests.training.tiny import endless, same, splits, tiny, train, untold
from training.config import Config, checked, merged
from training.data.windows import Splits
from training.errors import BadConfig, BadRun
from training.jobs import shown
from training.learners import learner
from training.meta_training import loop
from training.meta_training.loop import Job
from training.meta_training.objective import Validation, log_scores
from training.meta_training.runs import Progress, Run
from training.paper import finished


def test_it_learns_and_a_seed_decides_everything(tmp_path):
    optimiser = {"iterations": 40, "batch": 6, "learning_rate": 0.04}
    config = tiny(model={"noise": "unknown"}, optimiser=optimiser, validation={"every": 20})
    one, two = (train(config, tmp_path / name) for name in "ab")
    first, last = (sum(one.losses[at]) / 10 for at in (slice(0, 10), slice(-10, None)))
    assert last < first - 0.1, (first, last)
    history = one.progress.history
    assert history[-1]["nll"] < history[0]["nll"]
    assert one.progress.best_metric == min(record["nll"] for record in history)
    assert one.losses == two.losses
    assert same(one.states[-1], two.states[-1])
    other = tiny(seed=1, optimiser={"iterations": 1, "batch": 6}, model={"noise": "unknown"})
    assert train(other, tmp_path / "c").losses[0] != one.losses[0]


def measuring(monkeypatch, values):
    """Validation that finds these values, one after another, the last for ever."""
    left = list(values)

    def measure(self, learner):
        return {"nll": left.pop(0) if len(left) > 1 else left[0]}

    monkeypatch.setattr(Validation, "measure", measure)


def test_the_best_parameters_are_kept_and_patience_ends_it(tmp_path, monkeypatch):
    measuring(monkeypatch, [3.0, 2.0, 2.0, 2.4, 1.0])
    config = tiny(optimiser={"iterations": 30}, validation={"patience": 2})
    run = train(config, tmp_path / "a")
    progress, result = run.progress, run.run.result
    assert (progress.iteration, progress.best_iteration, progress.best_metric) == (12, 6, 2.0)
    assert [record["nll"] for record in progress.history] == [3.0, 2.0, 2.0, 2.4]
    assert (result["iterations"], result["best_iteration"], result["best_metric"]) == (12, 6, 2.0)
    kept = run.run.load()[0].best
    assert same(kept, run.states[5])
    assert not same(kept, run.states[8])


def test_of_accuracies_the_highest_is_best(tmp_path, monkeypatch):
    accuracies = iter([0.5, 0.8, 0.7, 0.6])

    def measure(self, learner):
        return {"nll": 1.0, "accuracy": next(accuracies)}

    # A sinusoid has no classes: its learner is built as by another configuration.
    monkeypatch.setattr(Validation, "measure", measure)
    done = train(tiny(validation={"metric": "accuracy"}), tmp_path / "a", built=tiny())
    assert done.progress.best_iteration == 6


def test_what_is_not_finite_is_never_the_best(tmp_path, monkeypatch):
    measuring(monkeypatch, [math.nan, 5.0, -math.inf, math.nan])
    run = train(tiny(), tmp_path / "a")
    assert (run.progress.best_iteration, run.progress.best_metric) == (6, 5.0)
    measuring(monkeypatch, [math.nan])
    with pytest.raises(BadConfig, match="no validation"):
        train(tiny(), tmp_path / "b")


def test_gradients_that_are_not_finite_are_skipped_up_to_a_limit(tmp_path, monkeypatch):
    run = train(tiny(), tmp_path / "a", wrap=lambda source: endless(source, {2, 7}))
    assert (run.progress.skipped, run.progress.iteration) == (2, 12)
    moved = [not same(a, b) for a, b in zip(run.states, run.states[1:], strict=False)]
    assert [i + 1 for i, has_moved in enumerate(moved) if not has_moved] == [2, 7]
    assert all(torch.isfinite(value).all() for value in run.states[-1].values())
    assert run.run.result["skipped"] == 2
    monkeypatch.setattr(loop, "MAX_SKIPPED", 9)
    config = tiny(optimiser={"iterations": 50, "batch": 1, "length": 2})
    with pytest.raises(BadConfig, match="10 gradients were not finite"):
        train(config, tmp_path / "b", wrap=lambda source: endless(source, range(50)))


class Stop(Exception):
    """What ends a run in its midst."""


def interrupted(config, folder, after, monkeypatch):
    """A run that dies in the iteration after some."""
    step, done = loop._step, itertools.count()

    def dying(*arguments):
        if next(done) == after:
            raise Stop
        return step(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_step", dying)
        with pytest.raises(Stop):
            train(config, folder)


RESUMED = {
    "known switches": ({"noise": "unknown", "learn_hazard": True}, {"supervision": 0.5}),
    "an LSTM": ({"kind": "lstm", "hidden": 5, "decoder": [6]}, {}),
    "one regime": ({}, {"mode": "coe"}),
}


@pytest.mark.parametrize("case", RESUMED)
def test_a_run_that_died_goes_on_bit_for_bit(tmp_path, monkeypatch, case):
    model, objective = RESUMED[case]
    config = tiny(model=model, objective=objective, optimiser={"iterations": 11, "warmup": 4})
    whole = train(config, tmp_path / "whole")
    assert [record["iteration"] for record in whole.progress.history] == [
        3,
        6,
        9,
        11,
    ]  # the last, too
    interrupted(config, tmp_path / "cut", 7, monkeypatch)
    resumed = train(config, tmp_path / "cut", resume=True)
    assert resumed.losses == whole.losses[6:]  # from the checkpoint on
    assert same(resumed.states[-1], whole.states[-1])
    assert same(resumed.progress.best, whole.progress.best)
    assert timeless(resumed.progress) == timeless(whole.progress)


def timeless(progress):
    """Its numbers but for times."""
    history = [{k: v for k, v in record.items() if k != "elapsed_s"} for record in progress.history]
    return progress.iteration, progress.best_metric, progress.best_iteration, history


def test_a_run_goes_on_when_asked_and_with_its_own_settings_only(tmp_path, monkeypatch):
    other = tiny(optimiser={"learning_rate": 0.1})
    interrupted(tiny(), tmp_path / "a", 7, monkeypatch)
    with pytest.raises(BadRun, match="other settings of optimiser;"):
        train(other, tmp_path / "a", resume=True)
    interrupted(other, tmp_path / "a", 1, monkeypatch)  # not asked to go on: it starts anew
    # Nor is the old checkpoint there for a later run to go on from.
    assert len(train(other, tmp_path / "a", resume=True).losses) == 12
    interrupted(tiny(), tmp_path / "b", 7, monkeypatch)
    for content in (b"", b"PK rubbish", b"rubbish"):
        (tmp_path / "b" / "checkpoint.pt").write_bytes(content)
        with pytest.raises(BadRun, match="checkpoint"):
            train(tiny(), tmp_path / "b", resume=True)


def rates(count, elapsed_s=0.0, **optimiser):
    config = tiny(optimiser={"learning_rate": 0.8, "iterations": count, **optimiser})
    return [loop.rate(config, Progress(iteration=i, elapsed_s=elapsed_s)) for i in range(count)]


def test_rates_by_iteration():
    step = rates(7, schedule="step", decay_every=3, decay=0.5)
    assert step == pytest.approx([0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.2])
    expected = [0.8 * (0.01 + 0.99 * (1 + math.cos(math.pi * i / 9)) / 2) for i in range(9)]
    assert rates(9, schedule="cosine") == pytest.approx(expected)
    warm = rates(6, schedule="constant", warmup=4)
    assert warm == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


def test_minutes_end_a_run_and_bend_its_rate():
    half = rates(2, elapsed_s=30.0, schedule="cosine", minutes=1.0)
    assert half[0] == pytest.approx(0.8 * 0.505)
    config = tiny(optimiser={"minutes": 1.0})
    assert not loop._ended(config, Progress(iteration=1, elapsed_s=59.9))
    assert loop._ended(config, Progress(iteration=1, elapsed_s=60.0))


def test_supervision_of_data_that_nobody_knows_is_refused(tmp_path):
    with pytest.raises(BadConfig, match="supervision needs the true switches"):
        train(tiny(objective={"supervision": 0.5}), tmp_path / "a", wrap=untold)


def test_a_save_that_fails_leaves_the_checkpoint_as_it_was(tmp_path, monkeypatch):
    run = Run(tmp_path / "a")
    run.begin(tiny())
    run.save(Progress(iteration=1), {})

    def dying(content, file):
        file.write_bytes(b"half of it")
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", dying)
    with pytest.raises(OSError, match="no space"):
        run.save(Progress(iteration=2), {})
    assert run.load()[0].iteration == 1


def test_a_folder_is_held_by_one_at_a_time(tmp_path):
    first, second = Run(tmp_path / "a"), Run(tmp_path / "a")
    with first.locked():
        with pytest.raises(BadRun, match="another process trains in this folder"), second.locked():
            pass
        with Run(tmp_path / "b").locked():
            pass
    with second.locked():
        pass


def test_only_what_is_done_is_found_and_what_cannot_be_read_is_named(tmp_path):
    for name in ("b", "a", "c"):
        run = Run(tmp_path / "grid" / name)
        run.begin(tiny())
        if name != "c":
            run.finish({"best_metric": 0.5})
    assert [run.folder.name for run in finished(tmp_path)] == ["a", "b"]
    assert Run(tmp_path / "grid" / "a").result == {"best_metric": 0.5}
    with pytest.raises(BadRun, match="result.json"):
        _ = Run(tmp_path / "grid" / "c").result
    for text in ("", "{", '{"experiment": "sinusoid", "sed": 1}'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(BadRun, match="config.json"):
            _ = Run(tmp_path).config


def validated(settings, learned=None):
    sources = splits(settings)
    return Validation(settings, sources, "cpu"), learned or learner(settings, sources).double()


@torch.no_grad()
def test_validation_is_of_the_same_windows_and_the_mean_of_what_is_minimised():
    one, _ = validated(tiny())
    other, _ = validated(tiny(seed=5, model={"kind": "lstm"}, optimiser={"batch": 2}))
    assert torch.equal(one.batch.y, other.batch.y)
    assert one.batch.y.shape == (4, 12, 1)
    longer, _ = validated(tiny(validation={"length": 30, "windows": 2}))
    assert longer.batch.y.shape == (2, 30, 1)
    for mode in ("moca", "oracle", "sw3"):
        settings = tiny(objective={"mode": mode})
        validation, learned = validated(settings)
        batch = validation.batch.to("cpu", torch.float64)
        expected = -log_scores(learned, batch, settings.objective, None).mean()
        assert validation.measure(learned) == {"nll": pytest.approx(expected.item(), abs=1e-12)}
        assert learned.training
    supervised, learned = validated(tiny(objective={"supervision": 1.0}))
    assert torch.equal(supervised.supervision == 1, supervised.batch.switch)
    assert supervised.measure(learned)["nll"] < one.measure(learned)["nll"]


def test_norms_do_not_move():
    """Of the encoder's evaluation: what a window is predicted as is independent of the others."""

    def source(generator, count, length):
        return drawn("pcoc-conv", count, length)

    sources = Splits(source, source, source, x_dim=126, y_dim=1, classes=3)
    learned = learner_of("pcoc-conv")
    learned.encoder(drawn("pcoc-conv").x)  # moments that are not the first
    before = {name: value.clone() for name, value in learned.state_dict().items()}
    Validation(tiny(validation={"windows": 1}), sources, "cpu").measure(learned)
    assert same(learned.state_dict(), before)


def test_settings_are_merged_by_name():
    base = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    settings = merged(base, {"a": {"c": {"f": 4}}}, {"a": {"b": 5}, "e": 6, "g": {"h": 7}})
    assert settings == {"a": {"b": 5, "c": {"d": 2, "f": 4}}, "e": 6, "g": {"h": 7}}
    assert base == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    for pair in (({"a": 3}, {"a": {"b": 1}}), ({"a": {"b": 1}}, {"a": 3})):
        with pytest.raises(BadConfig, match="a: "):
            merged(*pair)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"optimiser": {"minuts": 1}},
            "optimiser.minuts: no such setting; did you mean 'minutes'?",
        ),
        (
            {"model": {"kind": "flet"}},
            "model.kind: expected 'alpaca', 'fleet', 'pcoc' or 'lstm', got 'fl",
        ),
        ({"model": {"hazard": 1}}, "model.hazard: expected a number below 1, got 1"),
        ({"zzz": 1}, "zzz: no such setting; it has experiment"),
    ],
)
def test_a_setting_that_is_wrong_is_named_with_what_was_expected(settings, message):
    with pytest.raises(BadConfig, match=f"^{re.escape(message)}"):
        checked(Config, {"experiment": "sinusoid", **settings})


TITLE = "hazard-0.05_moca_rate-0.005_seed-3_a-name-that-is-rather-long"


def lines(folder, terminal, progress, measured, **optimiser):
    """What is shown at the end, each line as wide as it is."""
    forced = dict.fromkeys(("force_terminal", "force_interactive"), terminal)
    console = Console(file=io.StringIO(), width=100, color_system=None, **forced)
    job = Job(tiny(optimiser=optimiser), None, None, Run(folder / TITLE))
    with shown(job, console) as report:
        report(progress, measured)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())
    return [line for line in re.split(r"[\r\n]+", plain) if line.strip()]


def test_progress_is_one_line_in_a_terminal_and_a_line_for_each_validation_elsewhere(tmp_path):
    progress = Progress(iteration=123_456, elapsed_s=1000.0)
    validated = {"loss": -12.3456, "validation/nll": -11.2345}
    last = lines(tmp_path, True, progress, validated, iterations=1_000_000)[-1]
    assert len(last.rstrip()) <= 100
    for part in ("loss -12.346", "nll -11.23", "123456", "123.5/s"):
        assert part in last
    progress = Progress(iteration=50, elapsed_s=10.0)
    assert lines(tmp_path, False, progress, {"loss": 1.0}) == []
    (shown_lines,) = lines(tmp_path, False, progress, {"loss": 1.0, "validation/nll": 2.0})
    assert shown_lines == f"{TITLE} 50: loss 1.000 nll 2.000 5.0/s"
