"""Every ALPaCA reference vector, through an artifact folder, one observation at a time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from model_core import artifact
from model_core import filter as moca
from model_core.upm.alpaca import Alpaca
from tests.model_core.cases import Step, tensor, walk
from tests.model_core.reference import Series

FOLDER = os.environ.get("MOCA_TEST_VECTORS", "")
FILES = sorted(Path(FOLDER).glob("alpaca_*.npz")) if FOLDER else []


class Outcome(NamedTuple):
    """What the filter said over a vector file; (T, T) arrays are [t, r], nan where r > t."""

    nll: np.ndarray
    log_belief: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    weight: np.ndarray


class Vector(NamedTuple):
    model: Alpaca
    arrays: dict[str, np.ndarray]

    def run(self, changepoint: float | np.ndarray = np.nan, first: int = 10**9) -> Outcome:
        """The filter, with room for every hypothesis, over the first so many steps."""
        y = self.arrays["y"][:first]
        one, changepoint = np.ones(len(y)), np.resize(changepoint, len(y))
        told = one > 0, one * self.arrays["hazard"], one, changepoint, 0 * one
        outputs = torch.zeros(1, self.model.y_dim, dtype=torch.float64)
        prior = moca.make_prior(self.model, outputs, outputs + 1)
        steps = walk(self.model, prior, [Series(self.arrays["x"], y, *told)], len(y))
        found = zip(*(_found(step, t, len(y)) for t, step in enumerate(steps)), strict=True)
        return Outcome(*map(np.stack, found))


def _found(step: Step, t: int, steps: int) -> tuple[np.ndarray, ...]:
    belief, mixture = step.state.belief, step.info.predictive
    alive = torch.isfinite(belief.log_prob[0])
    log_belief = np.full(steps, np.nan)
    log_belief[belief.run_length[0, alive].numpy()] = belief.log_prob[0, alive].numpy()
    weight = np.sort(mixture.log_weight[0].exp().numpy())[::-1]
    moments = mixture.mean()[0].numpy(), mixture.covariance()[0].numpy()
    return -step.info.log_score[0].numpy(), log_belief, *moments, weight


def write_artifact(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """A vector file as a model artifact."""
    layers = [(arrays[f"W{i}"], arrays[f"b{i}"]) for i in (1, 2, 3)]
    sizes = [layers[0][0].shape[1], *(len(bias) for _, bias in layers)]
    spec = {"type": "mlp", "layers": sizes, "activation": "relu", "output_activation": "tanh"}
    dims = {"x_dim": sizes[0], "y_dim": arrays["y"].shape[1], "feature_dim": sizes[-1]}
    tensors = {
        "prior_mean": tensor(arrays["K0"]),
        "prior_covariance_factor": tensor(arrays["L_asym"]),
        "log_noise_variance": tensor(arrays["sigma_eps"]).log(),
    }
    for i, (weight, bias) in enumerate(layers):
        tensors[f"encoder.{i}.weight"], tensors[f"encoder.{i}.bias"] = tensor(weight), tensor(bias)
    description = {"kind": "alpaca", **dims, "encoder": spec, "hazard": float(arrays["hazard"])}
    artifact.save(folder, description, tensors)


@pytest.fixture(scope="module", params=FILES or [None], ids=lambda p: p.stem if p else "none")
def vector(vectors, request, tmp_path_factory):
    if request.param is None:
        pytest.fail(f"there are no alpaca_*.npz in {vectors}")
    with np.load(request.param) as file:
        arrays = {name: file[name] for name in file.files}
    folder = tmp_path_factory.mktemp(request.param.stem) / "vector" / "1"
    write_artifact(folder, arrays)
    return Vector(artifact.load(folder), arrays)


@pytest.fixture(scope="module")
def plain(vector) -> Outcome:
    return vector.run()


def test_features(vector):
    phi = vector.model.encode(tensor(vector.arrays["x"]), tensor([])).numpy()
    np.testing.assert_allclose(phi, vector.arrays["phi"], atol=1e-12, rtol=0)


def test_negative_log_likelihood(vector, plain):
    np.testing.assert_allclose(plain.nll, vector.arrays["nll"], atol=1e-8, rtol=1e-9)


def test_beliefs(vector, plain):
    expected = vector.arrays["log_b_xy"]
    np.testing.assert_allclose(plain.log_belief, expected, atol=1e-6, rtol=1e-8)
    np.testing.assert_allclose(np.exp(plain.log_belief), np.exp(expected), atol=1e-8, rtol=0)


def test_mixture_moments(vector, plain):
    mean, covariance = vector.arrays["mix_mean"], vector.arrays["mix_cov"]
    np.testing.assert_allclose(plain.mean, mean, atol=1e-8, rtol=1e-9)
    np.testing.assert_allclose(plain.covariance, covariance, atol=1e-8, rtol=1e-9)


def test_weights_of_the_mixture_are_the_grown_belief(vector, plain):
    expected = np.nan_to_num(np.exp(vector.arrays["log_b_prior"]))
    expected = np.sort(expected, -1)[:, ::-1]
    np.testing.assert_allclose(plain.weight[:, : expected.shape[1]], expected, atol=1e-8, rtol=0)
    assert (np.count_nonzero(plain.weight, axis=-1) <= np.arange(1, len(expected) + 1)).all()


SUPERVISED = {
    "nll_toe": lambda arrays: 1.0,
    "nll_oracle": lambda arrays: arrays["switch"].astype(float),
    "nll_sup_hard": lambda arrays: np.where(arrays["sup_mask"], 1.0, np.nan),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("key", SUPERVISED)
def test_supervised_variants(vector, key):
    got = vector.run(SUPERVISED[key](vector.arrays), first=120).nll
    np.testing.assert_allclose(got, vector.arrays[key][:120], atol=1e-8, rtol=1e-9)
