"""A step of nobody's stream, run before the first lease: first calls load code and are slow."""

from __future__ import annotations

import torch

from model_core.stream_settings import DEFAULTS
from service.problems import StartupError
from service.settings import Settings
from service.store.connection import patiently
from service.store.health import check_server, fix_partitions
from service.store.shards import StoreClient
from service.wire import Record
from service.worker.streams import step_inputs
from service.worker.streams.answers import LEVELS, Place, summarise
from service.worker.streams.models import Catalogue
from service.worker.streams.slab import Slab


def rehearse(client: StoreClient, settings: Settings) -> None:
    """Load and run everything once, so that no lease waits for it; raises StartupError."""
    patiently(lambda: check_server(client))
    patiently(lambda: fix_partitions(client, settings.partitions))
    torch.set_num_threads(1)
    check_device(settings.device)
    dummy_step(settings)


def check_device(name: str) -> None:
    """Raise StartupError for a device that this machine, or this build of torch, does not have."""
    try:
        device = torch.device(name)
        there = device.type != "cuda" or (device.index or 0) < torch.cuda.device_count()
        if there and device.type != "cuda":
            torch.ones(1, dtype=torch.float64, device=device)
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        raise StartupError(f"cannot use --device {name!r}: {str(error).splitlines()[0]}") from error
    if not there:
        raise StartupError(
            f"--device {name!r} does not exist: torch {torch.__version__} finds "
            f"{torch.cuda.device_count()} CUDA devices on this machine"
        )


def dummy_step(settings: Settings) -> None:
    """Step the built-in Gaussian once on the worker's device."""
    model = Catalogue(settings.models_dir, settings.device).get("gaussian")
    slab = Slab(model, 50, settings.device)
    (row,) = slab.begin([[0.0]], [[1.0]])
    rates = step_inputs.effective_rates(model, DEFAULTS)
    record = Record(0, 0.0, None, None, 1.0, None, *rates)
    (place,) = slab.step([row], [record], [0]).places
    if isinstance(place, Place):
        summarise(place.mixture, LEVELS)
