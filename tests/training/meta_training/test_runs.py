"""Folders of runs: what is written is read again, and what cannot be read is named."""

import pytest
import torch

from tests.training.tiny import tiny
from training.errors import BadRun
from training.meta_training.runs import Progress, Run, finished


def test_a_checkpoint_is_read_as_it_was_written(tmp_path):
    run = Run(tmp_path / "a")
    run.begin(tiny())
    assert not run.begun
    progress = Progress(
        iteration=7,
        elapsed_s=1.5,
        history=[{"iteration": 5, "nll": 0.25}],
        best_metric=0.25,
        best_iteration=5,
        best={"w": torch.ones(2, dtype=torch.float64) / 3},
        skipped=1,
        generator=torch.Generator().manual_seed(3).get_state(),
    )
    run.save(progress, {"learner": {"w": torch.zeros(2)}})
    assert run.begun
    assert not run.done
    found, parts = run.load()
    for name, value in vars(progress).items():
        if name == "best":
            assert torch.equal(found.best["w"], value["w"])
        elif name == "generator":
            assert torch.equal(found.generator, value)
        else:
            assert getattr(found, name) == value
    assert parts.keys() == {"learner"}
    assert {each.name for each in run.folder.iterdir()} == {"config.json", "checkpoint.pt"}


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


def test_settings_are_those_that_were_asked(tmp_path):
    config = tiny(objective={"mode": "sw7"}, seed=3, name="x")
    run = Run(tmp_path / "a")
    run.begin(config)
    assert run.config() == config
    run.check(config)
    with pytest.raises(BadRun, match="other settings of optimiser, seed"):
        run.check(tiny(objective={"mode": "sw7"}, seed=4, name="x", optimiser={"clip": 1.0}))


def test_a_folder_is_held_by_one_at_a_time(tmp_path):
    first, second = Run(tmp_path / "a"), Run(tmp_path / "a")
    with first.locked():
        with pytest.raises(BadRun, match="another process trains in this folder"), second.locked():
            pass
        with Run(tmp_path / "b").locked():
            pass
    with second.locked():
        pass


def test_only_what_is_done_is_found(tmp_path):
    for name in ("b", "a", "c"):
        run = Run(tmp_path / "grid" / name)
        run.begin(tiny())
        if name != "c":
            run.finish({"best_metric": 0.5})
    assert [run.folder.name for run in finished(tmp_path)] == ["a", "b"]
    assert Run(tmp_path / "grid" / "a").result() == {"best_metric": 0.5}
    with pytest.raises(BadRun, match="result.json"):
        Run(tmp_path / "grid" / "c").result()


@pytest.mark.parametrize("text", ["", "{", '{"experiment": "sinusoid", "sed": 1}'])
def test_a_configuration_that_cannot_be_read_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(BadRun, match="config.json"):
        Run(tmp_path).config()
