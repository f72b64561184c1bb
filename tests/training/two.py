"""One of several processes that train together: writes the losses and where the parameters end."""

import json
import sys
from pathlib import Path

import torch

from tests.training.tiny import gaps, tiny, train
from training.meta_training.processes import world

SETTINGS = {
    "optimiser": {"iterations": 20, "batch": 6, "length": 12, "clip": 1.0},
    "validation": {"every": 5, "patience": 50},
}


def main(folder):
    """Train in every process; the first writes `said.json`."""
    torch.set_num_threads(1)
    with world("cpu") as ours:
        trained = train(tiny(**SETTINGS), folder / "run", wrap=gaps, world=ours)
    if ours.leads:
        state = {name: value.flatten().tolist() for name, value in trained.states[-1].items()}
        outcome = {"size": ours.size, "losses": trained.losses, "state": state}
        (folder / "said.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
