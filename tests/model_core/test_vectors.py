"""The shared reference vectors, through artifact folders: step by step, and as one matrix."""

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
from model_core.segments import Changes, Sequences
from model_core.upm.base import UnderlyingModel
from tests.model_core.cases import of_labels, walk
from tests.model_core.registry import tensor

FOLDER = os.environ.get("MOCA_TEST_VECTORS", "")
QUICK = ("alpaca_rand_y1_T60_h0.1", "alpaca_rand_y2_T120_h0.05", "pcoc_identity_C5_D8_T80_h0.1")
FILES = [
    pytest.param(path, id=path.stem, marks=[] if path.stem in QUICK else pytest.mark.slow)
    for path in (sorted(Path(FOLDER).glob("*.npz")) if FOLDER else [])
]


def write_artifact(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """A vector file as a model artifact."""
    alpaca = str(arrays["kind"]) == "alpaca"
    sizes, tensors, encoder = [], {}, {"type": "mlp" if alpaca else str(arrays["encoder"])}
    for i in range(sum(name.startswith("W") for name in arrays)):
        weight, bias = tensor(arrays[f"W{i + 1}"]), tensor(arrays[f"b{i + 1}"])
        tensors[f"encoder.{i}.weight"], tensors[f"encoder.{i}.bias"] = weight, bias
        sizes = [*(sizes or [weight.shape[1]]), len(bias)]
    if alpaca:
        encoder |= {"layers": sizes, "activation": "relu", "output_activation": "tanh"}
        named = {"prior_mean": "K0", "prior_covariance_factor": "L_asym"}
        logs = {"log_noise_variance": "sigma_eps"}
    else:
        encoder |= {"layers": sizes} if sizes else {}
        named, logs = {"prior_mean": "mu0"}, {"log_prior_precision": "Lambda0_diag"}
        logs |= {"log_noise_variance": "Sigma_eps_diag", "log_dirichlet": "alpha0"}
    tensors |= {name: tensor(arrays[each]) for name, each in named.items()}
    tensors |= {name: tensor(arrays[each]).log() for name, each in logs.items()}
    description = {
        "kind": str(arrays["kind"]),
        "x_dim": arrays["x"].shape[1],
        "y_dim": arrays["y"].shape[1] if alpaca else len(arrays["mu0"]),
        "feature_dim": sizes[-1] if alpaca else arrays["mu0"].shape[1],
        "encoder": encoder,
        "hazard": float(arrays["hazard"]),
    }
    artifact.save(folder, description, tensors)


class Vector(NamedTuple):
    model: UnderlyingModel
    arrays: dict[str, np.ndarray]
    y: np.ndarray

    def prior(self) -> moca.Prior:
        one = torch.ones(1, self.model.scaled, dtype=torch.float64)
        return moca.make_prior(self.model, 0 * one, one)

    def steps(self):
        """The filter, with room for every hypothesis."""
        stream = of_labels(self.y, self.arrays["x"], float(self.arrays["hazard"]))
        return walk(self.model, self.prior(), [stream], len(self.y))


@pytest.fixture(scope="module", params=FILES or [None])
def vector(request, tmp_path_factory) -> Vector:
    if not FOLDER:
        pytest.skip("MOCA_TEST_VECTORS does not name the folder of the reference vectors")
    assert request.param is not None, f"there are no *.npz in {FOLDER}"
    with np.load(request.param) as file:
        arrays = {name: file[name] for name in file.files}
    folder = tmp_path_factory.mktemp(request.param.stem) / "vector" / "1"
    write_artifact(folder, arrays)
    y = arrays["y"] if "y" in arrays else arrays["y_label"][:, None].astype(float)
    return Vector(artifact.load(folder), arrays, y)


def check(found: torch.Tensor, expected: np.ndarray, atol=1e-8, rtol=1e-9) -> None:
    """A hypothesis that cannot be is -inf here and nan in the files."""
    got = found[0].numpy()
    got = np.where(np.isneginf(got), np.nan, got)
    np.testing.assert_allclose(got, expected, atol=atol, rtol=rtol)


def check_belief(found: torch.Tensor, expected: np.ndarray) -> None:
    check(found, expected, atol=1e-6, rtol=1e-8)
    np.testing.assert_allclose(found[0].exp(), np.nan_to_num(np.exp(expected)), atol=1e-8, rtol=0)


def test_the_filter_step_by_step(vector):
    arrays, steps = vector.arrays, list(vector.steps())
    alpaca = str(arrays["kind"]) == "alpaca"
    phi = vector.model.encode(tensor(arrays["x"]), tensor([]))
    check(phi[None], arrays["phi" if alpaca else "z"], atol=1e-12)
    check(-torch.stack([step.info.log_score for step in steps], 1), arrays["nll"])
    belief = torch.full((1, len(steps), len(steps)), -torch.inf, dtype=torch.float64)
    for t, (_, state, _) in enumerate(steps):
        alive = state.belief.log_prob[0].isfinite()
        belief[0, t, state.belief.run_length[0, alive]] = state.belief.log_prob[0, alive]
    check_belief(belief, arrays["log_b_xy"])
    mean = torch.stack([step.info.predictive.mean() for step in steps], 1)
    if alpaca:
        check(mean, arrays["mix_mean"])
        covariance = torch.stack([step.info.predictive.covariance() for step in steps], 1)
        check(covariance, arrays["mix_cov"])
    else:
        check(mean.log(), arrays["log_pred"])


def test_the_whole_sequence_at_once(vector):
    """Likelihoods, beliefs, baselines, and switches that are revealed: hard, soft, as a hazard."""
    arrays, steps = vector.arrays, len(vector.y)
    data = Sequences(tensor(arrays["x"])[None], tensor(vector.y)[None])
    whole = seg.segment_matrix(vector.model, vector.prior(), data)
    if whole.input is None:
        check(seg.by_run_length(whole.label), arrays["logp_y"])
    else:
        joint = arrays["logp_zy"]
        total = np.log(np.exp(joint - joint.max(-1, keepdims=True)).sum(-1)) + joint.max(-1)
        check(seg.by_run_length(whole.input), total)
        of_labels = joint[np.arange(steps), :, arrays["y_label"]] - total
        check(seg.by_run_length(whole.label), of_labels)
    changes = Changes(tensor([[arrays["hazard"]]]))
    plain = seg.forward(whole, changes)
    check(-plain.log_score, arrays["nll"])
    check_belief(plain.log_prior, arrays["log_b_prior"])
    check_belief(plain.log_posterior, arrays["log_b_xy"])
    given = "log_b_prior" if whole.input is None else "log_b_x"
    check_belief(plain.log_given_input, arrays[given])
    starts = {f"nll_window{n}": seg.window(steps, n) for n in (5, 10)}
    starts["nll_toe"] = seg.window(steps, 0)
    starts["nll_oracle"] = seg.oracle(torch.tensor(arrays["switch"])[None])
    for name, start in starts.items():
        check(-seg.select(whole, start), arrays[name])
    mask, override = arrays["sup_mask"], np.full((steps, steps), np.nan)
    override[mask] = np.where(np.arange(steps) == 0, 0.0, -np.inf)
    hard = seg.forward(whole, changes, tensor(override)[None])
    check(-hard.log_score, arrays["nll_sup_hard"])
    told = tensor(np.where(mask, 1.0, np.nan)[None])
    if whole.input is None:  # a switch that is known before its input
        known = seg.forward(whole, changes._replace(changepoint=told))
        check(-known.log_score, arrays["nll_sup_hard"])
    for t in np.flatnonzero(mask):
        override[t, : t + 1] = np.log(1e-5)
        override[t, 0] = np.log1p(-1e-5 * t)
    soft = seg.forward(whole, changes, tensor(override)[None])
    check(-soft.log_score, arrays["nll_sup_soft"])
