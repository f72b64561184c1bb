"""What processes of the service run, kernels too: imported once, by the one that they fork from."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

# Each process imports the main module as well, which may need it.
import hypothesis.stateful  # noqa: F401

import service.api.app
import service.api.server
import service.commands.main
import service.worker.worker  # noqa: F401
from model_core import Detector

for model in ("gaussian", "averaged"):
    Detector(model).update_many([float(i % 3) for i in range(25)])
