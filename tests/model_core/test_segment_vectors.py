"""Every array of the ALPaCA reference vectors, from one segment matrix per file."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

from model_core import artifact
from model_core import filter as moca
from model_core import segments as seg
from model_core.filter import Prior
from model_core.segments import Changes, Forward, Segments, Sequences
from model_core.upm.alpaca import Alpaca
from model_core.upm.base import tree_map
from tests.model_core.cases import tensor
from tests.model_core.test_vectors import FILES, write_artifact


class Vector(NamedTuple):
    arrays: dict[str, np.ndarray]
    model: Alpaca
    prior: Prior
    data: Sequences
    whole: Segments
    changes: Changes
    plain: Forward


@pytest.fixture(scope="module", params=FILES or [None], ids=lambda p: p.stem if p else "none")
def vector(vectors, request, tmp_path_factory) -> Vector:
    if request.param is None:
        pytest.fail(f"there are no alpaca_*.npz in {vectors}")
    with np.load(request.param) as file:
        arrays = {name: file[name] for name in file.files}
    folder = tmp_path_factory.mktemp(request.param.stem) / "vector" / "1"
    write_artifact(folder, arrays)
    model = artifact.load(folder)
    zero = torch.zeros(1, model.y_dim, dtype=torch.float64)
    prior = moca.make_prior(model, zero, zero + 1)
    data = Sequences(tensor(arrays["x"][None]), tensor(arrays["y"][None]))
    whole = seg.segment_matrix(model, prior, data)
    changes = Changes(tensor([[arrays["hazard"]]]))
    return Vector(arrays, model, prior, data, whole, changes, seg.forward(whole, changes))


def check(got, expected: np.ndarray, atol: float = 1e-8, rtol: float = 1e-9) -> None:
    """A hypothesis that cannot be is -inf here and nan in the files."""
    got = got[0].numpy()
    got = np.where(np.isneginf(got), np.nan, got)
    np.testing.assert_allclose(got, expected, atol=atol, rtol=rtol)


def test_label_likelihoods(vector):
    check(seg.by_run_length(vector.whole.label), vector.arrays["logp_y"])


def test_scores_and_beliefs(vector):
    found, arrays = vector.plain, vector.arrays
    check(-found.log_score, arrays["nll"])
    pairs = (found.log_prior, "log_b_prior"), (found.log_posterior, "log_b_xy")
    for belief, name in pairs:
        check(belief, arrays[name], atol=1e-6, rtol=1e-8)
    assert torch.equal(found.log_prior, found.log_given_input)


def moments(vector: Vector, chunk: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance (T, T, y) of every hypothesis by [t, r], nan where r > t."""
    steps, outputs = vector.arrays["y"].shape
    phi = vector.model.encode(vector.data.x[0], tensor([]))[None]
    stats = tree_map(lambda t: t.expand(-1, steps, *t.shape[2:]), vector.prior.stats)
    found = []
    for first in range(0, steps, chunk):
        rows = slice(first, min(first + chunk, steps))
        t = torch.arange(steps)[rows]
        weight = (torch.arange(steps)[:, None] <= t).double()[None]
        each, stats = vector.model.forecasts(stats, phi[:, rows], vector.data.y[:, rows], weight)
        found.append(torch.stack((each.mean(), each.variance()))[:, 0])
    by_start = torch.cat(found, 2).permute(0, 3, 1, 2)  # moment, output, start, step
    by_length = seg.by_run_length(by_start.reshape(-1, steps, steps))
    by_length = by_length.reshape(2, outputs, steps, steps).permute(0, 2, 3, 1).numpy()
    return tuple(np.where(np.isneginf(by_length), np.nan, by_length))


def test_moments(vector):
    mean, variance = moments(vector)
    arrays = vector.arrays
    if "pred_mean" in arrays:  # the largest file has none
        np.testing.assert_allclose(mean, arrays["pred_mean"], atol=1e-8, rtol=1e-9)
        np.testing.assert_allclose(variance, arrays["pred_var"], atol=1e-8, rtol=1e-9)
    weight = vector.plain.log_given_input[0].exp().numpy()
    mean, variance = np.nan_to_num(mean), np.nan_to_num(variance)
    mixed = np.einsum("tr,trd->td", weight, mean)
    np.testing.assert_allclose(mixed, arrays["mix_mean"], atol=1e-8, rtol=1e-9)
    off = mean - mixed[:, None]
    cov = np.einsum("tr,tri,trj->tij", weight, off, off)
    cov += np.einsum("tr,tri,ij->tij", weight, variance, np.eye(len(mixed[0])))
    np.testing.assert_allclose(cov, arrays["mix_cov"], atol=1e-8, rtol=1e-9)


def test_baselines(vector):
    arrays = vector.arrays
    steps = len(arrays["y"])
    starts = {
        "nll_toe": seg.window(steps, 0),
        "nll_window5": seg.window(steps, 5),
        "nll_window10": seg.window(steps, 10),
        "nll_oracle": seg.oracle(torch.tensor(arrays["switch"])[None]),
    }
    for name, start in starts.items():
        check(-seg.select(vector.whole, start), arrays[name])


def test_partial_segmentation(vector):
    """Revealed switches: as an override of the belief, hard or soft; hard also as a hazard of 1."""
    arrays = vector.arrays
    mask, steps = arrays["sup_mask"], len(arrays["y"])
    override = np.full((steps, steps), np.nan)
    override[mask] = -np.inf
    override[mask, 0] = 0.0
    found = seg.forward(vector.whole, vector.changes, tensor(override[None]))
    check(-found.log_score, arrays["nll_sup_hard"])
    told = tensor(np.where(mask, 1.0, np.nan)[None])
    found = seg.forward(vector.whole, vector.changes._replace(changepoint=told))
    check(-found.log_score, arrays["nll_sup_hard"])
    for t in np.flatnonzero(mask):
        override[t, : t + 1] = np.log(1e-5)
        override[t, 0] = np.log1p(-1e-5 * t)
    found = seg.forward(vector.whole, vector.changes, tensor(override[None]))
    check(-found.log_score, arrays["nll_sup_soft"])


@pytest.mark.parametrize("chunk", [1, 7])
def test_the_size_of_blocks_does_not_matter(vector, chunk):
    """To rounding; features of random weights hardly differ, and entries reach 1e5 nats."""
    steps = min(len(vector.arrays["y"]), 120)
    data = Sequences(vector.data.x[:, :steps], vector.data.y[:, :steps])
    other = seg.segment_matrix(vector.model, vector.prior, data, chunk).label
    expected = vector.whole.label[:, :steps, :steps]
    torch.testing.assert_close(other, expected, atol=1e-9, rtol=1e-9)
