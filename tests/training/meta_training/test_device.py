"""The training loop on an accelerator: as on a CPU, without the host's waiting at each iteration.

No GPU is needed: `guard` refuses what a GPU refuses, and records what the host would wait for.
"""

import shutil

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tests.guarded import guarded, waits
from tests.training.tiny import endless, gaps, splits, tiny
from tests.training.tiny import train as here
from training.data.windows import Batch
from training.learners import learner
from training.meta_training.loop import Job, train
from training.meta_training.processes import World
from training.meta_training.runs import Run

SETTINGS = {
    "optimiser": {"iterations": 24, "batch": 3, "length": 6, "dtype": "float64"},
    "validation": {"every": 12, "windows": 2},
}


def settings(**others):
    return tiny(**{**SETTINGS, **others})


def there(config, folder, *, resume=False, wrap=lambda source: source, stop=None):
    """Train on the guarded device: the progress, losses by iteration, and waits before each."""
    sources = splits(config, wrap)
    losses, before = {}, []
    with guarded() as device, waits() as recorded:

        def report(progress, measured):
            if "loss" in measured:
                losses[progress.iteration] = measured["loss"]
            before.append(len(recorded))
            if progress.iteration == stop:
                raise KeyboardInterrupt

        run = Run(folder)
        job = Job(config, sources, learner(config, sources), run, str(device))
        progress = train(job, World(), report, resume=resume)
    return progress, losses, before


def test_the_losses_of_a_cpu_and_no_wait_between_looks(tmp_path):
    # Not an LSTM: it chooses its way by whether all labels are there, which it looks at.
    model = {"noise": "unknown", "lags": 2, "learn_hazard": True}
    config = settings(
        model=model,
        objective={"supervision": 0.5},
        optimiser={**SETTINGS["optimiser"], "iterations": 12},
        validation={"every": 6, "windows": 2},
    )
    expected = here(config, tmp_path / "cpu", wrap=gaps)
    progress, losses, waited = there(config, tmp_path / "guard", wrap=gaps)
    looks = [6, 10, 12]
    assert list(losses) == looks
    for iteration, loss in losses.items():
        assert loss == pytest.approx(expected.losses[iteration - 1], rel=1e-9)
    assert progress.best_metric == pytest.approx(expected.progress.best_metric, rel=1e-9)
    for iteration in range(2, 13):
        new = waited[iteration - 1] - waited[iteration - 2]
        assert (new > 0) == (iteration in looks), iteration
    assert waited[9] - waited[8] == 1  # loss and skipped steps together


@pytest.mark.slow
def test_a_run_on_a_device_goes_on_there_or_on_a_cpu(tmp_path):
    """With the batches that it had not learned from; steps are skipped and counted there."""
    config, draws = settings(), {2, 20}
    with pytest.raises(KeyboardInterrupt):
        there(config, tmp_path / "cut", stop=17)
    shutil.copytree(tmp_path / "cut", tmp_path / "moved")
    whole = here(config, tmp_path / "cpu").losses
    resumed = here(config, tmp_path / "moved", resume=True).losses
    assert resumed == pytest.approx(whole[12:], rel=1e-9)  # from the checkpoint on
    progress, resumed, _ = there(config, tmp_path / "cut", resume=True)
    assert progress.iteration == 24
    assert min(resumed) > 12
    for iteration, loss in resumed.items():
        assert loss == pytest.approx(whole[iteration - 1], rel=1e-9)
    progress, _, _ = there(config, tmp_path / "endless", wrap=lambda s: endless(s, draws))
    assert progress.skipped == 2


class Copies(TorchFunctionMode):
    """Notes what would be copied to a GPU, and does not."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is Tensor.pin_memory or (func is Tensor.to and args[1] == "cuda"):
            self.seen.append((func.__name__, args[0].dtype, kwargs.get("non_blocking")))
            return args[0]
        return func(*args, **kwargs)


def test_a_batch_goes_to_a_gpu_rounded_and_from_pinned_memory():
    """Or the host waits: for the rounding, or for the copy."""
    x, switch = torch.zeros(2, 3, 1), torch.ones(2, 3, dtype=torch.bool)
    with Copies() as copies:
        Batch(x, x, switch, x[..., 0]).to("cuda", torch.float64)
    once = [("pin_memory", torch.float64, None), ("to", torch.float64, True)]
    switches = [("pin_memory", torch.bool, None), ("to", torch.bool, True)]
    assert copies.seen == [*once, *once, *switches, *once]
