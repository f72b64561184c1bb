"""Every model on an accelerator says what it says on the CPU, and has the host wait for nothing."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from model_core import codec, readout, transfer
from model_core import filter as moca
from model_core import segments as seg
from model_core.compiled import LABEL
from model_core.filter import Inputs
from model_core.stream.slab import Slab
from model_core.table import Layout
from model_core.transfer import moved
from tests.guarded import guarded, no_waiting
from tests.model_core.cases import inputs, leaves, run, series
from tests.model_core.registry import NAMES, PROVEN, case, tensor

STEPS, ROOM = 6, 3  # half of the steps prune
no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
QUICK = ("categorical", "alpaca-unknown-1", "pcoc-3", "fleet-2")
EACH = [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in NAMES]


@pytest.fixture(params=[pytest.param("cuda", marks=no_gpu), "guard"], autouse=True)
def device(request):
    """A GPU, and what refuses what a GPU refuses."""
    with guarded() if request.param == "guard" else nullcontext():
        yield request.param


def there(now: Inputs, device: str) -> Inputs:
    return Inputs(*(None if each is None else each.to(device) for each in now))


@pytest.mark.parametrize("name", EACH)
def test_steps_and_answers(name, device):
    told = {"outlier_rate": 0.02, "labelled": [True] * 5 + [False], "elapsed": [1.0, 0.5, 2.0]}
    one = case(name)
    batch = [series(one, seed, STEPS, (0.05, 0.2, 0.01), **told) for seed in range(3)]
    model, prior = moved(one.model, device), moved(one.prior(3), device)
    state, levels, missing = moca.init(prior, ROOM), tensor([0.05, 0.5, 0.95]), []
    levels_there = levels.to(device)
    layout = Layout(model, ROOM, device)
    for t, here in enumerate(run(one, batch, ROOM)):
        now = there(inputs(batch, t), device)
        with no_waiting():
            state, info = moca.step(model, state, prior, now)
            held, mixture = layout.packed(state, prior), info.predictive
            numbers = [info.log_score, info.changepoint_probability, mixture.mean()]
            if model.label not in ("class", "binary"):
                numbers += [mixture.covariance(), mixture.cdf(now.y)]
                numbers += [mixture.quantile(levels_there, 1e-4)]
        given = np.zeros((3, LABEL)), inputs(batch, t).hazard.numpy()
        (read,) = transfer.to_arrays([readout.columns(layout, *held, info)])
        table, _ = readout.table(layout, read, *given, 5)
        at_rest = readout.at_rest(layout, *transfer.to_arrays(held))
        assert (readout.table(layout, at_rest, *given, 5)[0][:, 6:] == table[:, 6:]).all()
        assert all(each.ok for each in readout.rows(table))
        found, expected = transfer.to_host(numbers), [*here.info[1:3], here.info.predictive.mean()]
        assert state.belief.log_prob.device.type == device
        for got, value in zip(found, expected, strict=False):
            torch.testing.assert_close(got, value, atol=1e-8, rtol=1e-8, equal_nan=True)
        if len(found) > 3:
            missing.append(found[-1].isnan())
            exact = here.info.predictive.quantile(levels, 1e-4)
            exact[missing[-1]] = torch.nan
            torch.testing.assert_close(found[-1], exact, atol=1e-5, rtol=1e-5, equal_nan=True)
    # Plain steps do not cross the gaps between typical regimes; the host finds these.
    assert not missing or torch.stack(missing).double().mean() < (0.2 if model.typical else 0.1)
    assert mixture.sample(7, torch.Generator(device).manual_seed(0)).shape[:2] == (3, 7)
    slab = Slab(model, ROOM, [0.5], device)
    lines, heads = slab.layout.packed(state, prior)
    unit = [[1.0] * model.scaled]
    (row,) = slab.begin(unit, unit)
    beside = slab.read([row])[2:]
    slab.write([row], [lines[:1], heads[:1], *beside])
    blob = codec.encode(slab.layout, slab.row(row))
    here = Slab(one.model, ROOM, [0.5])
    (other,) = here.begin(unit, unit)
    here.put(other, codec.decode(here.layout, here.row(other), blob))
    slab.put(row, codec.decode(slab.layout, slab.row(row), blob))
    assert codec.encode(here.layout, here.row(other)) == blob
    assert codec.encode(slab.layout, slab.row(row)) == blob


@pytest.mark.parametrize(
    "name", [p for p in EACH if p.values[0] in PROVEN and p.values[0] != "gaussian-1"]
)
def test_the_segment_matrix(name, device):
    one, batch = case(name), [series(case(name), seed, 12) for seed in range(3)]
    x, y = (tensor([getattr(each, part) for each in batch]) for part in ("x", "y"))
    data, changes = seg.Sequences(x if x.shape[-1] else None, y), seg.Changes(tensor([[0.1]] * 3))
    scores = []
    for at in ("cpu", device):
        numbers = (moved(each, at) for each in (one.model, one.prior(3), data))
        whole = seg.segment_matrix(*numbers, 8)
        scores.append(seg.forward(whole, moved(changes, at)).log_score.cpu())
    torch.testing.assert_close(*scores, atol=1e-8, rtol=1e-8)


def test_a_label_that_is_refused_leaves_a_state_on_a_device_as_it_was(device):
    one = case("gaussian-3")
    prior = moved(one.prior(2), device)
    state, now = moca.init(prior, 4), inputs([series(one, seed, 3) for seed in range(2)], 0)
    now.y[1] = torch.inf
    now = there(now, device)
    with no_waiting():
        new, info = moca.step(one.model, state, prior, now)
    assert info.ok.tolist() == [True, False]
    for first, other in zip(leaves(new), leaves(state), strict=True):
        assert first[1].tolist() == other[1].tolist()


def test_tensors_come_to_the_host_together(device):
    tensors = [
        torch.arange(6).reshape(3, 2), torch.empty(3, 0, dtype=torch.float64),
        torch.full((3, 2, 2), torch.nan, dtype=torch.float64), torch.tensor([-1, 2, 1 << 62]),
    ]  # fmt: skip
    found = transfer.to_host([each.to(device)[1:] for each in tensors])
    for one, each in zip(found, tensors, strict=True):
        assert one.device.type == "cpu"
        torch.testing.assert_close(one, each[1:], atol=0, rtol=0, equal_nan=True)
