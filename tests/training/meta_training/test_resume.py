"""A process that is killed in the midst of training; another goes on from its checkpoint."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.training.moca import moca, small
from tests.training.tiny import same
from training.meta_training.runs import Run

ROOT = Path(__file__).parents[3]
LONG = {"optimiser.iterations": 160, "optimiser.batch": 8, "optimiser.length": 40}


def asked(runs, **settings):
    """Arguments of a run of a second or two, with a checkpoint early in it."""
    chosen = {**LONG, "validation.every": 8, **settings}
    return ["train", "sinusoid", "--runs", str(runs), *map(str, small(**chosen))]


def killed(arguments, run):
    """Start it, and kill it when it has saved a second time."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "service.commands.main", *arguments],
        cwd=ROOT,
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        first, checkpoint = None, run.folder / "checkpoint.pt"
        until = time.monotonic() + 120
        while time.monotonic() < until and process.poll() is None:
            found = checkpoint.stat().st_mtime_ns if checkpoint.exists() else None
            first = first or found
            if found != first:
                break
            time.sleep(0.002)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -9, "it ended before it was killed"
    assert not run.done


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same run, never interrupted."""
    runs = tmp_path_factory.mktemp("whole")
    assert moca(*asked(runs)).exit_code == 0
    return Run(runs / "sinusoid" / "quick" / "run")


def test_a_killed_run_ends_as_if_it_had_not_been(tmp_path, whole):
    run = Run(tmp_path / "sinusoid" / "quick" / "run")
    killed(asked(tmp_path), run)
    at = run.load()[0].iteration
    assert 8 <= at < 160
    refused = moca(*asked(tmp_path, **{"optimiser.learning_rate": 0.5}), "--resume")
    assert refused.exit_code == 2
    assert "other settings of optimiser" in refused.stderr
    said = moca(*asked(tmp_path), "--resume")
    assert said.exit_code == 0, said.stderr
    (ours, parts), (theirs, others) = run.load(), whole.load()
    assert same(parts["learner"], others["learner"])
    assert same(ours.best, theirs.best)
    moments = zip(
        parts["optimiser"]["state"].values(), others["optimiser"]["state"].values(), strict=True
    )
    assert all(same(a, b) for a, b in moments)
    assert timeless(run.result()) == timeless(whole.result())
    assert "done before" in moca(*asked(tmp_path)).stdout


def timeless(result):
    """A result but for its times."""
    history = [{**each, "elapsed_s": 0} for each in result["history"]]
    return {**result, "elapsed_s": 0, "history": history}


def test_what_is_done_is_not_done_again(whole):
    runs, saved = whole.folder.parents[2], whole.folder / "checkpoint.pt"
    before = saved.stat().st_mtime_ns, whole.result()
    for more in ([], ["--resume"]):
        again = moca(*asked(runs), *more)
        assert again.exit_code == 0
        assert "done before" in again.stdout
    other = moca(*asked(runs, **{"optimiser.batch": 4}))
    assert other.exit_code == 2
    assert "other settings of optimiser" in other.stderr
    assert (saved.stat().st_mtime_ns, whole.result()) == before
