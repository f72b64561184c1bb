"""Every model on an accelerator says what it says on the CPU."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from model_core import codec
from model_core import filter as moca
from model_core import segments as seg
from model_core.filter import Inputs, Prior
from tests.guarded import guarded
from tests.model_core.cases import CASES, inputs, run, series, tensor

STEPS = 40
no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(params=[pytest.param("cuda", marks=no_gpu), "guard"], autouse=True)
def device(request):
    """A GPU, and what refuses what a GPU refuses."""
    with guarded() if request.param == "guard" else nullcontext():
        yield request.param


def moved(value: Any, device: str) -> Any:
    """A model, or a part of one, with its tensors on the device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        parts = [moved(each, device) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if dataclasses.is_dataclass(value):
        changed = {f.name: moved(getattr(value, f.name), device) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **changed)
    return value


ALIKE = (  # as others here
    "gaussian-3",
    "multivariate-2",
    "poisson",
    "bernoulli",
    "exponential",
    "alpaca-1",
    "alpaca-2",
    "alpaca-unknown-2",
    "alpaca-lags-0",
    "linear",
    "autoregressive-all",
    "averaged-2",
)
EACH = [pytest.param(c, marks=[pytest.mark.slow] * (c.name in ALIKE), id=c.name) for c in CASES]


@pytest.fixture(params=EACH)
def case(request):
    return request.param


@pytest.fixture
def batch(case):
    told = {"outlier_rate": 0.02, "labelled": [True] * 9 + [False], "elapsed": [1.0, 0.5, 2.0]}
    return [series(case, seed, STEPS, (0.05, 0.2, 0.01), **told) for seed in range(5)]


def stepped(model, prior: Prior, batch, device: str, max_hypotheses: int = 12):
    """States and infos of the filter on the device."""
    state = moca.init(prior, max_hypotheses)
    for t in range(STEPS):
        now = Inputs(*(None if each is None else each.to(device) for each in inputs(batch, t)))
        state, info = moca.step(model, state, prior, now)
        yield state, info


def test_steps_and_answers(case, batch, device):
    model, prior = moved(case.model, device), moved(case.prior(5), device)
    levels = tensor([0.05, 0.5, 0.95])
    there = list(stepped(model, prior, batch, device))
    for here, (state, info) in zip(run(case, batch, 12), there, strict=True):
        assert state.belief.log_prob.device.type == device
        scores = here.info.log_score, info.log_score.cpu()
        torch.testing.assert_close(*scores, atol=1e-9, rtol=1e-9, equal_nan=True)
        change = here.info.changepoint_probability, info.changepoint_probability.cpu()
        torch.testing.assert_close(*change, atol=1e-9, rtol=0)
        torch.testing.assert_close(
            here.info.predictive.mean(), info.predictive.mean().cpu(), atol=1e-8, rtol=1e-8
        )
    if case.model.label != "class":
        far = info.predictive.quantile(levels.to(device)).cpu()
        torch.testing.assert_close(here.info.predictive.quantile(levels), far, atol=1e-6, rtol=1e-6)
    assert info.predictive.sample(7, torch.Generator(device).manual_seed(0)).shape[:2] == (5, 7)


def test_a_state_from_the_device_is_read_on_the_cpu_and_back(case, batch, device):
    model, prior = moved(case.model, device), moved(case.prior(5), device)
    *_, (state, _) = stepped(model, prior, batch, device)
    one = moca.rebuild(state, [each[:1] for each in moca.leaves(state)])
    blob, first = codec.encode(model, one), case.prior(1)
    here = codec.decode(case.model, first, 12, blob)
    there = codec.decode(model, moved(first, device), 12, blob)
    assert codec.encode(case.model, here) == codec.encode(model, there) == blob


def test_the_segment_matrix(case, batch, device):
    x = tensor([each.x for each in batch])
    y = tensor([each.y for each in batch])
    data = seg.Sequences(x if x.shape[-1] else None, y)
    whole = seg.segment_matrix(case.model, case.prior(5), data, 8)
    there = seg.segment_matrix(
        moved(case.model, device), moved(case.prior(5), device), moved(data, device), 8
    )
    changes = seg.Changes(tensor([[0.1]]).expand(5, -1))
    here, far = seg.forward(whole, changes), seg.forward(there, moved(changes, device))
    torch.testing.assert_close(here.log_score, far.log_score.cpu(), atol=1e-8, rtol=1e-8)
