"""Every model on an accelerator says what it says on the CPU."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache

import pytest
import torch

from model_core import codec, readout, transfer
from model_core import filter as moca
from model_core import segments as seg
from model_core.filter import Inputs
from model_core.transfer import moved
from tests.guarded import guarded, no_waiting
from tests.model_core.cases import BY_NAME, EVERY, inputs, run, series, tensor

STEPS = 24
ROOM = 12  # hypotheses: half of the steps prune
no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(params=[pytest.param("cuda", marks=no_gpu), "guard"], autouse=True)
def device(request):
    """A GPU, and what refuses what a GPU refuses."""
    with guarded() if request.param == "guard" else nullcontext():
        yield request.param


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
    "alpaca-mixture-1",
    "linear",
    "autoregressive-all",
    "averaged-2",
    "robust-averaged-2",
    "fleet-0",
)
EACH = [pytest.param(c, marks=[pytest.mark.slow] * (c.name in ALIKE), id=c.name) for c in EVERY]


@pytest.fixture(params=EACH)
def case(request):
    return request.param


@pytest.fixture
def batch(case):
    return batch_of(case)


def batch_of(case):
    told = {"outlier_rate": 0.02, "labelled": [True] * 9 + [False], "elapsed": [1.0, 0.5, 2.0]}
    return [series(case, seed, STEPS, (0.05, 0.2, 0.01), **told) for seed in range(5)]


@cache
def stepped(name: str, device: str):
    """States and infos of the filter of a case on the device."""
    case = BY_NAME[name]
    model, prior, batch = moved(case.model, device), moved(case.prior(5), device), batch_of(case)
    state, found = moca.init(prior, ROOM), []
    for t in range(STEPS):
        now = Inputs(*(None if each is None else each.to(device) for each in inputs(batch, t)))
        state, info = moca.step(model, state, prior, now)
        found.append((state, info))
    return found


def test_steps_and_answers(case, batch, device):
    levels, there = tensor([0.05, 0.5, 0.95]), stepped(case.name, device)
    for here, (state, info) in zip(run(case, batch, ROOM), there, strict=True):
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


def test_a_step_and_its_answer_have_the_host_wait_for_nothing(case, batch, device):
    model, prior = moved(case.model, device), moved(case.prior(5), device)
    state, levels = moca.init(prior, ROOM), tensor([0.05, 0.5, 0.95]).to(device)
    missing = []
    for t in range(20):
        now = Inputs(*(None if each is None else each.to(device) for each in inputs(batch, t)))
        watched = torch.zeros_like(state.seq), torch.zeros_like(now.elapsed)
        with no_waiting():
            state, info = moca.step(model, state, prior, now)
            table = readout.table(state, info, *watched, 5)
            numbers = [info.predictive.mean()]
            if case.model.label not in ("class", "binary"):
                mixture = info.predictive
                numbers += [mixture.covariance(), mixture.cdf(now.y)]
                numbers += [mixture.quantile(levels, 1e-4, waits=False)]
        found = readout.rows(table), transfer.to_host(numbers)
        assert all(each.ok for each in found[0])
        missing.append(found[1][-1].isnan())
    if len(numbers) > 1:
        expected = info.predictive.quantile(levels, 1e-4).cpu()
        # Plain steps do not cross the gaps between typical regimes; the host finds these.
        assert torch.stack(missing).double().mean() < (0.2 if model.typical else 0.1)
        expected[missing[-1]] = torch.nan
        torch.testing.assert_close(found[1][-1], expected, atol=1e-5, rtol=1e-5, equal_nan=True)


def test_a_label_that_is_refused_leaves_a_state_on_a_device_as_it_was(device):
    case = next(case for case in EVERY if case.name == "gaussian-3")
    prior = moved(case.prior(2), device)
    state = moca.init(prior, 4)
    now = inputs([series(case, seed, 3, (0.05,)) for seed in range(2)], 0)
    now.y[1] = torch.inf
    there = Inputs(*(None if each is None else each.to(device) for each in now))
    with no_waiting():
        new, info = moca.step(case.model, state, prior, there)
    assert info.ok.tolist() == [True, False]
    for one, other in zip(moca.leaves(new), moca.leaves(state), strict=True):
        assert one[1].tolist() == other[1].tolist()


def test_tensors_come_to_the_host_together(device):
    tensors = [
        torch.arange(6).reshape(3, 2), torch.empty(3, 0, dtype=torch.float64),
        torch.full((3, 2, 2), torch.nan, dtype=torch.float64), torch.tensor([-1, 2, 1 << 62]),
    ]  # fmt: skip
    found = transfer.to_host([each.to(device)[1:] for each in tensors])
    for one, each in zip(found, tensors, strict=True):
        assert one.device.type == "cpu"
        torch.testing.assert_close(one, each[1:], atol=0, rtol=0, equal_nan=True)


def test_a_state_from_the_device_is_read_on_the_cpu_and_back(case, device):
    model, (*_, (state, _)) = moved(case.model, device), stepped(case.name, device)
    one = moca.rebuild(state, [each[:1] for each in moca.leaves(state)])
    blob, first = codec.encode(model, one), case.prior(1)
    here = codec.decode(case.model, first, ROOM, blob)
    there = codec.decode(model, moved(first, device), ROOM, blob)
    assert codec.encode(case.model, here) == codec.encode(model, there) == blob


@pytest.mark.one_in(2)
def test_the_segment_matrix(case, batch, device):
    if case.model.believes:
        pytest.skip("what it remembers depends on a filter")
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
