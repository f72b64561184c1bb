"""Processes that share a batch do what one does; one that is killed goes on where it was."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training import two
from training.errors import BadConfig
from training.meta_training.processes import World, world

ROOT = Path(__file__).parents[3]
LAUNCH = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def launched(*arguments):
    """Two processes on this machine's loopback, at a port that is free."""
    environ = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "COLUMNS": "250"}
    command = [sys.executable, *LAUNCH, *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=200
    )


@pytest.mark.slow
def test_two_processes_do_what_one_does(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    done = launched("-m", "tests.training.two", tmp_path / "two")
    assert done.returncode == 0, done.stderr
    two.main(tmp_path / "one")
    one, both = (json.loads((tmp_path / name / "said.json").read_text()) for name in ("one", "two"))
    assert (one["size"], both["size"]) == (1, 2)
    assert len(one["losses"]) == 20
    assert one["losses"][-1] != pytest.approx(one["losses"][0], abs=1e-3)
    assert both["losses"] == pytest.approx(one["losses"], abs=1e-6)
    assert one["state"].keys() == both["state"].keys()
    for name, values in one["state"].items():
        assert both["state"][name] == pytest.approx(values, abs=1e-6), name
    result = json.loads((tmp_path / "two" / "run" / "result.json").read_text())
    assert len(result["history"]) == 4  # only one of them validates
    shared = ("--runs", tmp_path / "runs", "--set", "optimiser.batch=5")
    done = launched("-m", "service.commands.main", "train", "sinusoid", *shared)
    assert done.returncode != 0
    assert "moca: optimiser.batch: expected a multiple of 2" in done.stderr
    assert not list((tmp_path / "runs").rglob("config.json"))


ENVIRONMENTS = [
    ({"WORLD_SIZE": "abc"}, "WORLD_SIZE: .*'abc'"),
    ({"WORLD_SIZE": "0"}, "WORLD_SIZE: .*'0'"),
    ({"WORLD_SIZE": "2"}, "RANK.*: use torchrun"),
    ({"WORLD_SIZE": "2", "RANK": "0"}, "MASTER_ADDR.*: use torchrun"),
]


def test_the_environment_of_torchrun_is_needed_by_several_processes_only(monkeypatch):
    for environment, message in ENVIRONMENTS:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(BadConfig, match=message), world("cpu"):
            pass
    monkeypatch.setenv("WORLD_SIZE", "")
    monkeypatch.setenv("RANK", "left over")
    with world("cpu") as joined:
        assert joined == World(0, 1)


def test_the_shares_are_the_batch():
    shares = [World(rank, 3).share(12) for rank in range(3)]
    assert [i for share in shares for i in range(12)[share]] == list(range(12))
    assert World().share(7) == slice(0, 7)
    with pytest.raises(BadConfig, match="multiple of 3, the number of processes, got 13"):
        World(1, 3).share(13)
