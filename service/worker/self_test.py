"""A step of nobody's stream, run before the first lease: first calls load code, or compile it."""

from __future__ import annotations

import os

from model_core.errors import MissingTorch
from model_core.lazy import torch
from model_core.stream.columns import effective_rates
from model_core.stream.events import NOTHING_WATCHED
from model_core.stream.slab import Slab
from model_core.stream_settings import DEFAULTS
from model_core.upm.builtin import BUILTIN, Options
from service.problems import NotInstalled, StartupError, UnknownModel
from service.settings import Settings
from service.store.connection import patiently
from service.store.health import check_server, fix_partitions
from service.store.shards import StoreClient
from service.wire import LEVELS, Record
from service.worker.streams import step_inputs
from service.worker.streams.loaded_models import LoadedModels
from service.worker.streams.registry import compile_step


def rehearse(client: StoreClient, settings: Settings) -> None:
    """Load and run everything once, so that no lease waits for it; raises StartupError."""
    patiently(lambda: check_server(client))
    patiently(lambda: fix_partitions(client, settings.partitions))
    os.environ["OMP_NUM_THREADS"] = "1"  # of torch, where it is loaded: several wait for each other
    check_device(settings.device)
    dummy_step(settings)


def check_device(name: str) -> None:
    """Raise StartupError for a device that this machine, or this build of torch, does not have."""
    if name == "cpu":
        return
    try:
        device = torch.device(name)
        there = device.type != "cuda" or (device.index or 0) < torch.cuda.device_count()
        if there and device.type != "cuda":
            torch.ones(1, dtype=torch.float64, device=device)
    except (AssertionError, MissingTorch, NotImplementedError, RuntimeError, TypeError) as error:
        raise StartupError(f"cannot use --device {name!r}: {str(error).splitlines()[0]}") from error
    if not there:
        raise StartupError(
            f"--device {name!r} does not exist: torch {torch.__version__} finds "
            f"{torch.cuda.device_count()} CUDA devices on this machine"
        )


def dummy_step(settings: Settings) -> None:
    """Step a stream of the default model once on the worker's device, so that its kernel is ready.

    Where the default model cannot be loaded, which the API says, the built-in Gaussian.
    """
    catalogue = LoadedModels(settings.models_dir, settings.device)
    try:
        name = catalogue.resolve(settings.default_model)
        options = BUILTIN[name].example if name in BUILTIN else Options()
        model = catalogue.get(name, options)
    except (NotInstalled, UnknownModel):
        model = catalogue.get("gaussian")
    slab = Slab(model, DEFAULTS.max_hypotheses, LEVELS, settings.device)
    compile_step(slab, settings.default_model)
    ones = [[1.0] * model.scaled]
    (row,) = slab.begin(ones, ones)
    hazard, outlier_rate = effective_rates(model, DEFAULTS)
    record = Record(0, 0.0, None, None, 1.0, None, hazard, outlier_rate)
    seen = step_inputs.columns_of(model, [record])
    slab.step([row], seen, [NOTHING_WATCHED])
