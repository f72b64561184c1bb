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
from model_core import segments as seg
from model_core.filter import FilterState, Inputs
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

    def segments(self, chunk: int) -> seg.Segments:
        """Every start at once, in blocks."""
        y = tensor(self.arrays["y_label"])[None, :, None]
        data = seg.Sequences(tensor(self.arrays["x"])[None], y)
        return seg.segment_matrix(self.model, self.prior(), data, chunk)

    def forward(self, override: np.ndarray | None = None) -> seg.Forward:
        told = None if override is None else tensor(override)[None]
        changes = seg.Changes(tensor([[self.arrays["hazard"]]]))
        return seg.forward(self.segments(20), changes, told)


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


def test_told_beliefs(vector):
    """Switches revealed after the input: run length 0 for certain, or all but certain."""
    arrays, t = vector.arrays, np.flatnonzero(vector.arrays["sup_mask"])
    override = np.full((vector.steps, vector.steps), NAN)
    override[t] = np.where(np.arange(vector.steps) == 0, 0.0, -np.inf)
    check(-vector.forward(override).log_score, arrays["nll_sup_hard"])
    for each in t:
        override[each, : each + 1] = np.log(SOFT)
        override[each, 0] = np.log1p(-SOFT * each)
    check(-vector.forward(override).log_score, arrays["nll_sup_soft"])


def test_the_whole_sequence_at_once(vector):
    found, arrays = vector.forward(), vector.arrays
    check(-found.log_score, arrays["nll"])
    beliefs = {"prior": "log_prior", "x": "log_given_input", "xy": "log_posterior"}
    for name, field in beliefs.items():
        check(getattr(found, field), arrays[f"log_b_{name}"], atol=1e-6, rtol=1e-8)


@pytest.mark.parametrize("chunk", [1000, 20, 7])
def test_the_likelihood_of_every_segment_in_blocks(vector, chunk):
    """The baselines are selections from one matrix by start and position."""
    whole, arrays, steps = vector.segments(chunk), vector.arrays, vector.steps
    joint = arrays["logp_zy"]
    total = np.log(np.exp(joint - joint.max(-1, keepdims=True)).sum(-1)) + joint.max(-1)
    told = joint[np.arange(steps), :, arrays["y_label"]] - total
    check(seg.by_run_length(whole.input), total)
    check(seg.by_run_length(whole.label), told)
    starts = {f"nll_window{n}": seg.window(steps, n) for n in (5, 10)}
    starts["nll_toe"] = seg.window(steps, 0)
    starts["nll_oracle"] = seg.oracle(torch.tensor(arrays["switch"])[None])
    for name, start in starts.items():
        check(-seg.select(whole, start), arrays[name])


def check(found: torch.Tensor, expected: np.ndarray, atol=1e-8, rtol=1e-9) -> None:
    """A hypothesis that cannot be is -inf here and nan in the files."""
    got = found[0].numpy()
    got = np.where(np.isneginf(got), np.nan, got)
    np.testing.assert_allclose(got, expected, atol=atol, rtol=rtol)
