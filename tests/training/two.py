"""One of several processes that train together: writes the losses and where the parameters end."""

import json
import sys
from pathlib import Path

import torch

from tests.training.tiny import Gaps, tiny, train
from training.meta_training.processes import world

SETTINGS = {
    "optimiser": {"iterations": 20, "batch": 6, "length": 12, "clip": 1.0},
    "validation": {"every": 5, "patience": 50},
}


def main(folder):
    """Train in every process; the first writes `said.json`."""
    torch.set_num_threads(1)
    with world("cpu") as ours:
        found = train(tiny(**SETTINGS), folder / "run", wrap=Gaps, world=ours)
    if ours.leads:
        state = {name: each.flatten().tolist() for name, each in found.states[-1].items()}
        said = {"size": ours.size, "losses": found.losses, "state": state}
        (folder / "said.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
