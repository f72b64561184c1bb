"""Every PCOC reference vector, through an artifact folder: step by step, and as one block."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from model_core import artifact
from model_core import filter as moca
from model_core.filter import FilterState, Inputs
from model_core.upm.base import Block
from model_core.upm.pcoc import Pcoc
from tests.model_core.cases import tensor

FOLDER = os.environ.get("MOCA_TEST_VECTORS", "")
FILES = sorted(Path(FOLDER).glob("pcoc_*.npz")) if FOLDER else []
NAN = float("nan")
SOFT = 1e-5  # mass of each run length above 0 where a switch is told softly


def by_run_length(state: FilterState, value: torch.Tensor, steps: int) -> np.ndarray:
    """Values (1, S, ...) of the hypotheses that are there, nan elsewhere."""
    alive = torch.isfinite(state.belief.log_prob[0])
    found = np.full((steps, *value.shape[2:]), NAN)
    found[state.belief.run_length[0, alive].numpy()] = value[0, alive].numpy()
    return found


class Vector(NamedTuple):
    model: Pcoc
    arrays: dict[str, np.ndarray]

    @property
    def steps(self) -> int:
        return len(self.arrays["y_label"])

    def prior(self) -> moca.Prior:
        one = torch.ones(1, 1, dtype=torch.float64)
        return moca.make_prior(self.model, 0 * one, one)

    def inputs(self, t: int, changepoint: float = NAN) -> Inputs:
        x, y = tensor(self.arrays["x"][t : t + 1]), tensor([[self.arrays["y_label"][t]]])
        one, hazard = tensor([1.0]), tensor([[self.arrays["hazard"]]])
        return Inputs(x, y, one > 0, hazard, one, tensor([changepoint]), 0 * one)

    def run(self, changepoint: np.ndarray) -> np.ndarray:
        """Scores of the filter, told of some switches."""
        prior = self.prior()
        state, nll = moca.init(prior, self.steps), []
        for t in range(self.steps):
            state, info = moca.step(self.model, state, prior, self.inputs(t, changepoint[t]))
            nll.append(-info.log_score.item())
        return np.array(nll)

    def block(self, size: int) -> Block:
        """Every start at once, in blocks; log likelihoods (1, T, T) by start and position."""
        phi = self.model.encode(tensor(self.arrays["x"]), tensor([])).unsqueeze(0)
        y = tensor(self.arrays["y_label"])[None, :, None]
        weight = torch.ones(1, self.steps, self.steps, dtype=torch.float64).triu()
        like = self.prior().stats
        stats = type(like)(*(a.expand(1, self.steps, *a.shape[2:]) for a in like))
        labels, inputs = [], []
        for t in range(0, self.steps, size):
            rows = slice(t, t + size)
            each = self.model.block(stats, phi[:, rows], y[:, rows], weight[..., rows])
            labels.append(each.log_label)
            inputs.append(each.log_input)
            stats = each.stats
        return Block(torch.cat(labels, -1)[0], torch.cat(inputs, -1)[0], stats)


def write_artifact(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """A vector file as a model artifact."""
    classes, features = arrays["mu0"].shape
    tensors = {
        "prior_mean": tensor(arrays["mu0"]),
        "log_prior_precision": tensor(arrays["Lambda0_diag"]).log(),
        "log_noise_variance": tensor(arrays["Sigma_eps_diag"]).log(),
        "log_dirichlet": tensor(arrays["alpha0"]).log(),
    }
    encoder: dict[str, object] = {"type": str(arrays["encoder"])}
    if encoder["type"] == "mlp":
        layers = [(arrays[f"W{i}"], arrays[f"b{i}"]) for i in (1, 2)]
        encoder["layers"] = [layers[0][0].shape[1], *(len(bias) for _, bias in layers)]
        for i, (weight, bias) in enumerate(layers):
            tensors[f"encoder.{i}.weight"] = tensor(weight)
            tensors[f"encoder.{i}.bias"] = tensor(bias)
    dims = {"x_dim": arrays["x"].shape[1], "y_dim": classes, "feature_dim": features}
    description = {"kind": "pcoc", **dims, "encoder": encoder, "hazard": float(arrays["hazard"])}
    artifact.save(folder, description, tensors)


@pytest.fixture(scope="module", params=FILES or [None], ids=lambda p: p.stem if p else "none")
def vector(vectors, request, tmp_path_factory):
    if request.param is None:
        pytest.fail(f"there are no pcoc_*.npz in {vectors}")
    with np.load(request.param) as file:
        arrays = {name: file[name] for name in file.files}
    folder = tmp_path_factory.mktemp(request.param.stem) / "vector" / "1"
    write_artifact(folder, arrays)
    return Vector(artifact.load(folder), arrays)


@pytest.fixture(scope="module")
def found(vector) -> dict[str, np.ndarray]:
    """What the filter says, with room for every hypothesis, under the names of the file."""
    prior, model, steps = vector.prior(), vector.model, vector.steps
    state, rows = moca.init(prior, steps), []
    for t in range(steps):
        now = vector.inputs(t)
        grown, _ = moca.grow(state, prior, now)
        seen = moca.predict(model, grown, prior, now)
        joint = model.log_joint(grown.stats, seen.phi.unsqueeze(1))
        state, info = moca.step(model, state, prior, now)
        rows.append(
            {
                "log_b_prior": by_run_length(grown, grown.belief.log_prob, steps),
                "log_b_x": by_run_length(grown, seen.belief.log_prob, steps),
                "log_b_xy": by_run_length(state, state.belief.log_prob, steps),
                "logp_zy": by_run_length(grown, joint, steps),
                "log_pred": info.predictive.mean()[0].log().numpy(),
                "nll": -info.log_score[0].numpy(),
                "z": seen.phi[0].numpy(),
            }
        )
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("name", ["z", "nll", "logp_zy", "log_pred"])
def test_likelihoods(vector, found, name):
    np.testing.assert_allclose(found[name], vector.arrays[name], atol=1e-8, rtol=1e-9)


@pytest.mark.parametrize("name", ["log_b_prior", "log_b_x", "log_b_xy"])
def test_beliefs(vector, found, name):
    expected = vector.arrays[name]
    np.testing.assert_allclose(found[name], expected, atol=1e-6, rtol=1e-8)
    np.testing.assert_allclose(np.exp(found[name]), np.exp(expected), atol=1e-8, rtol=0)


SUPERVISED = {
    "nll_toe": lambda arrays: np.ones(len(arrays["switch"])),
    "nll_oracle": lambda arrays: arrays["switch"].astype(float),
    "nll_sup_hard": lambda arrays: np.where(arrays["sup_mask"], 1.0, np.nan),
}


@pytest.mark.parametrize("name", SUPERVISED)
def test_supervised_variants(vector, name):
    nll = vector.run(SUPERVISED[name](vector.arrays))
    np.testing.assert_allclose(nll, vector.arrays[name], atol=1e-8, rtol=1e-9)


def test_soft_supervision(vector):
    """The belief after the input is told: its run length 0 almost surely, the rest a little."""
    prior, mask = vector.prior(), vector.arrays["sup_mask"]
    state, nll = moca.init(prior, vector.steps), []
    for t in range(vector.steps):
        now = vector.inputs(t)
        if mask[t]:
            state, change = overridden(vector, state, now, t)
            now = vector.inputs(t, change)
        state, info = moca.step(vector.model, state, prior, now)
        nll.append(-info.log_score.item())
    np.testing.assert_allclose(nll, vector.arrays["nll_sup_soft"], atol=1e-8, rtol=1e-9)


def overridden(vector: Vector, state: FilterState, now: Inputs, t: int):
    """State, and chance of a switch, from which growth and the input lead to the told belief."""
    grown, growth = moca.grow(state, vector.prior(), now)
    phi = vector.model.encode(now.x, grown.context)
    told = torch.full_like(grown.belief.log_prob, SOFT)
    told[growth.born] = 1 - SOFT * t
    told[torch.isinf(grown.belief.log_prob)] = 0
    before = torch.log(told) - vector.model.input_log_prob(grown.stats, phi)
    before = before - before.logsumexp(-1, keepdim=True)
    change = before[growth.born].exp().item()
    rest = before.masked_fill(growth.born, -torch.inf)
    rest = rest - rest.logsumexp(-1, keepdim=True)
    return state._replace(belief=state.belief._replace(log_prob=rest)), change


@pytest.mark.parametrize("size", [1000, 20, 7])
def test_the_likelihood_of_every_segment_in_blocks(vector, size):
    """The baselines are selections from one matrix by start and position."""
    block, arrays, t = vector.block(size), vector.arrays, np.arange(vector.steps)
    label, inputs = block.log_label.numpy(), block.log_input.numpy()
    now, run_length = np.nonzero(t[:, None] >= t)
    joint, start = arrays["logp_zy"][now, run_length], now - run_length
    total = np.logaddexp.reduce(joint, axis=-1)
    told = joint[np.arange(len(now)), arrays["y_label"][now]] - total
    np.testing.assert_allclose(inputs[start, now], total, atol=1e-8, rtol=1e-9)
    np.testing.assert_allclose(label[start, now], told, atol=1e-8, rtol=1e-9)
    latest = np.maximum.accumulate(np.where(arrays["switch"], t, 0))
    starts = {"toe": t, "oracle": latest} | {f"window{n}": np.maximum(t - n, 0) for n in (5, 10)}
    for name, chosen in starts.items():
        expected = arrays[f"nll_{name}"]
        np.testing.assert_allclose(-label[chosen, t], expected, atol=1e-8, rtol=1e-9)
