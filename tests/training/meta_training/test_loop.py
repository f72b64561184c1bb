"""The training loop: it learns, a seed decides it, and it ends and keeps what it should."""

import itertools
import math

import pytest
import torch

from tests.training.tiny import Endless, same, tiny, train
from training.errors import BadConfig, BadRun
from training.experiments import jobs
from training.meta_training import loop
from training.meta_training.runs import Progress
from training.meta_training.validation import Validation


def test_it_learns(tmp_path):
    config = tiny(optimiser={"iterations": 150, "batch": 8, "learning_rate": 0.02})
    found = train(config, tmp_path / "a")
    first, last = (sum(found.losses[at]) / 20 for at in (slice(0, 20), slice(-20, None)))
    assert last < first - 0.15, (first, last)
    history = found.progress.history
    assert history[-1]["nll"] < history[0]["nll"] - 0.1
    assert found.progress.best_metric == min(each["nll"] for each in history)


def test_a_seed_decides_everything(tmp_path):
    config = tiny(model={"noise": "unknown", "learn_hazard": True})
    one, two = (train(config, tmp_path / name) for name in "ab")
    assert one.losses == two.losses
    assert all(same(a, b) for a, b in zip(one.states, two.states, strict=True))
    other = train(config.model_copy(update={"seed": 1}), tmp_path / "c")
    assert other.losses[0] != one.losses[0]
    assert not same(other.states[-1], one.states[-1])


def measuring(monkeypatch, values):
    """Validation that finds these values, one after another, the last for ever."""
    left = list(values)

    def measure(self, learner):
        return {"nll": left.pop(0) if len(left) > 1 else left[0]}

    monkeypatch.setattr(Validation, "measure", measure)


def test_the_best_parameters_are_kept_and_patience_ends_it(tmp_path, monkeypatch):
    measuring(monkeypatch, [3.0, 2.0, 2.5, 2.4, 1.0])
    config = tiny(optimiser={"iterations": 30}, validation={"patience": 2})
    found = train(config, tmp_path / "a")
    progress, result = found.progress, found.run.result()
    assert (progress.iteration, progress.best_iteration, progress.best_metric) == (12, 6, 2.0)
    assert [each["nll"] for each in progress.history] == [3.0, 2.0, 2.5, 2.4]
    assert (result["iterations"], result["best_iteration"], result["best_metric"]) == (12, 6, 2.0)
    kept = found.run.load()[0].best
    assert same(kept, found.states[5])
    assert not same(kept, found.states[8])


def test_of_accuracies_the_highest_is_best(tmp_path, monkeypatch):
    found = iter([0.5, 0.8, 0.7, 0.6])
    monkeypatch.setattr(jobs, "_check", lambda config, splits: None)  # a sinusoid has no splits
    monkeypatch.setattr(
        Validation, "measure", lambda self, learner: {"nll": 1.0, "accuracy": next(found)}
    )
    done = train(tiny(validation={"metric": "accuracy"}), tmp_path / "a", built=tiny())
    assert done.progress.best_iteration == 6


def test_what_is_not_finite_is_never_the_best(tmp_path, monkeypatch):
    measuring(monkeypatch, [math.nan, 5.0, -math.inf, math.nan])
    found = train(tiny(), tmp_path / "a")
    assert (found.progress.best_iteration, found.progress.best_metric) == (6, 5.0)
    measuring(monkeypatch, [math.nan])
    with pytest.raises(BadConfig, match="no validation"):
        train(tiny(), tmp_path / "b")


def test_the_last_iteration_is_validated_too(tmp_path):
    found = train(tiny(optimiser={"iterations": 5}), tmp_path / "a")
    assert [each["iteration"] for each in found.progress.history] == [3, 5]


def test_a_gradient_that_is_not_finite_is_skipped(tmp_path):
    found = train(tiny(), tmp_path / "a", wrap=lambda source: Endless(source, {2, 7}))
    assert (found.progress.skipped, found.progress.iteration) == (2, 12)
    moved = [not same(a, b) for a, b in zip(found.states, found.states[1:], strict=False)]
    assert [i + 1 for i, each in enumerate(moved) if not each] == [2, 7]
    assert all(torch.isfinite(each).all() for each in found.states[-1].values())
    assert found.run.result()["skipped"] == 2


def test_it_gives_up_where_no_gradient_is_finite(tmp_path):
    config = tiny(optimiser={"iterations": 500, "batch": 1, "length": 2})
    with pytest.raises(BadConfig, match="101 gradients were not finite"):
        train(config, tmp_path / "a", wrap=lambda source: Endless(source, range(500)))


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


@pytest.mark.parametrize(
    ("model", "objective"),
    [
        ({"noise": "unknown", "learn_hazard": True}, {"supervision": 0.5}),
        ({"kind": "lstm", "hidden": 5, "decoder": [6]}, {}),
    ],
)
def test_a_run_that_died_goes_on_bit_for_bit(tmp_path, monkeypatch, model, objective):
    config = tiny(model=model, objective=objective, optimiser={"iterations": 11, "warmup": 4})
    whole = train(config, tmp_path / "whole")
    interrupted(config, tmp_path / "cut", 7, monkeypatch)
    rest = train(config, tmp_path / "cut", resume=True)
    assert rest.losses == whole.losses[6:]  # from the checkpoint on
    assert same(rest.states[-1], whole.states[-1])
    assert same(rest.progress.best, whole.progress.best)
    assert timeless(rest.progress) == timeless(whole.progress)


def timeless(progress):
    """Its numbers but for times."""
    history = [{k: v for k, v in each.items() if k != "elapsed_s"} for each in progress.history]
    return progress.iteration, progress.best_metric, progress.best_iteration, history


def test_without_being_asked_to_go_on_it_starts_anew(tmp_path, monkeypatch):
    """Nor is the old checkpoint there for a later run to go on from."""
    config = tiny()
    interrupted(config, tmp_path / "a", 7, monkeypatch)
    interrupted(tiny(optimiser={"learning_rate": 0.1}), tmp_path / "a", 1, monkeypatch)
    other = train(tiny(optimiser={"learning_rate": 0.1}), tmp_path / "a", resume=True)
    assert len(other.losses) == 12


def test_a_run_goes_on_with_its_own_settings_only(tmp_path, monkeypatch):
    interrupted(tiny(), tmp_path / "a", 7, monkeypatch)
    with pytest.raises(BadRun, match="other settings of optimiser"):
        train(tiny(optimiser={"learning_rate": 0.1}), tmp_path / "a", resume=True)


@pytest.mark.parametrize("content", [b"", b"PK rubbish", b"rubbish"])
def test_what_is_no_checkpoint_is_named(tmp_path, monkeypatch, content):
    interrupted(tiny(), tmp_path / "a", 7, monkeypatch)
    (tmp_path / "a" / "checkpoint.pt").write_bytes(content)
    with pytest.raises(BadRun, match="checkpoint"):
        train(tiny(), tmp_path / "a", resume=True)


def rates(count, elapsed_s=0.0, **optimiser):
    config = tiny(optimiser={"learning_rate": 0.8, "iterations": count, **optimiser})
    return [loop.rate(config, Progress(iteration=i, elapsed_s=elapsed_s)) for i in range(count)]


def test_the_rate_falls_in_steps():
    found = rates(7, schedule="step", decay_every=3, decay=0.5)
    assert found == pytest.approx([0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.2])


def test_the_rate_falls_as_a_cosine():
    found = rates(9, schedule="cosine")
    expected = [0.8 * (0.01 + 0.99 * (1 + math.cos(math.pi * i / 9)) / 2) for i in range(9)]
    assert found == pytest.approx(expected)
    assert found[0] == 0.8
    assert rates(2000, schedule="cosine")[-1] == pytest.approx(0.008, rel=1e-3)


def test_the_rate_rises_first_where_there_is_a_warmup():
    assert rates(6, schedule="constant", warmup=4) == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


def test_minutes_end_a_run_and_bend_its_rate():
    half = rates(1000, elapsed_s=30.0, schedule="cosine", minutes=1.0)
    assert half[0] == pytest.approx(0.8 * 0.505)
    config = tiny(optimiser={"minutes": 1.0})
    assert not loop._ended(config, Progress(iteration=1, elapsed_s=59.0))
    assert loop._ended(config, Progress(iteration=1, elapsed_s=60.0))


def test_the_rate_that_is_told_is_the_one_that_is_used(tmp_path):
    """Adam's first step moves each parameter by the rate, whatever the gradient."""
    config = tiny(optimiser={"iterations": 1, "warmup": 10, "learning_rate": 0.1, "clip": None})
    first = train(config, tmp_path / "a").states[0]["prior_mean"]
    none = tiny(optimiser={"iterations": 1, "warmup": 10, "learning_rate": 1e-12, "clip": None})
    before = train(none, tmp_path / "b").states[0]["prior_mean"]
    moved = (first - before).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.01), rtol=1e-3, atol=0)


def test_supervision_of_data_that_nobody_knows_is_refused(tmp_path):
    class Unknown:
        def __init__(self, source):
            self.source = source

        def draw(self, generator, count, length):
            return self.source.draw(generator, count, length)._replace(switch=None)

    with pytest.raises(BadConfig, match="supervision needs switches"):
        train(tiny(objective={"supervision": 0.5}), tmp_path / "a", wrap=Unknown)
