"""The reference vectors, posted through REST one observation at a time with pruning off."""

import os
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from model_core import artifact

FOLDER = os.environ.get("MOCA_TEST_VECTORS")
FILES = sorted(Path(FOLDER).glob("alpaca_*.npz")) if FOLDER else []


@pytest.mark.skipif(not FILES, reason="MOCA_TEST_VECTORS names no folder of vectors")
def test_alpaca_vectors_through_rest(serve, processes):
    for number, file in enumerate(FILES):
        with np.load(file, allow_pickle=False) as vector:
            _publish(processes.folder / "models" / f"vector{number}" / "1", vector)
    url = serve()
    for number, file in enumerate(FILES):
        with np.load(file, allow_pickle=False) as vector:
            _check(url, f"vector{number}", vector)


def _publish(folder: Path, v) -> None:
    sizes = [v["W1"].shape[1], *(v[f"W{i}"].shape[0] for i in (1, 2, 3))]
    encoder = {"type": "mlp", "layers": sizes, "activation": "relu", "output_activation": "tanh"}
    description = {
        "kind": "alpaca",
        "x_dim": v["x"].shape[1],
        "y_dim": v["y"].shape[1],
        "feature_dim": sizes[-1],
        "encoder": encoder,
        "hazard": float(v["hazard"]),
    }
    tensors = {
        "prior_mean": v["K0"],
        "prior_covariance_factor": v["L_asym"],
        "log_noise_variance": np.log(v["sigma_eps"]),
    }
    for i in range(3):
        tensors[f"encoder.{i}.weight"] = v[f"W{i + 1}"]
        tensors[f"encoder.{i}.bias"] = v[f"b{i + 1}"]
    as_tensors = {name: torch.tensor(each, dtype=torch.float64) for name, each in tensors.items()}
    artifact.save(folder, description, as_tensors)


def _check(url: str, name: str, v) -> None:
    with httpx.Client(base_url=url, timeout=60) as client:
        settings = {"model": name, "max_hypotheses": max(2, len(v["x"]))}
        assert client.put(f"/v1/streams/{name}", json=settings).status_code == 201
        scores, means = [], []
        for x, y in zip(v["x"].tolist(), v["y"].tolist(), strict=True):
            body = {"x": x, "y": y}
            answer = client.post(f"/v1/streams/{name}/observations", json=body).json()
            scores.append(answer["log_score"])
            means.append(answer["predictive"]["mean"])
            assert answer["run_length"]["pruned_mass"] == 0.0
        np.testing.assert_allclose(-np.array(scores), v["nll"], rtol=0, atol=1e-6)
        np.testing.assert_allclose(np.array(means), v["mix_mean"], rtol=1e-8, atol=1e-6)
        # The belief after the last label, before growth.
        belief = client.get(f"/v1/streams/{name}/run-length").json()["belief"]
        got = np.zeros(len(scores))
        for each in belief:
            got[each["run_length"]] = each["probability"]
        np.testing.assert_allclose(got, np.exp(v["log_b_xy"][-1]), rtol=0, atol=1e-6)
