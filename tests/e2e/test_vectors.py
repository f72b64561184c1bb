"""The reference vectors, posted through REST one observation at a time with pruning off."""

import os
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from model_core import artifact
from tests.model_core.test_vectors_pcoc import write_artifact

FOLDER = os.environ.get("MOCA_TEST_VECTORS")
ASKED = 9  # steps between questions
FILES = sorted(Path(FOLDER).glob("*.npz")) if FOLDER else []


@pytest.mark.skipif(not FILES, reason="MOCA_TEST_VECTORS names no folder of vectors")
def test_vectors_through_rest(serve, processes):
    kinds = {"alpaca": (_publish, _check_alpaca), "pcoc": (write_artifact, _check_pcoc)}
    for file in FILES:
        with np.load(file, allow_pickle=False) as vector:
            publish, _ = kinds[str(vector["kind"])]
            publish(processes.folder / "models" / file.stem / "1", vector)
    with httpx.Client(base_url=serve(), timeout=60) as client:
        for file in FILES:
            with np.load(file, allow_pickle=False) as vector:
                _, check = kinds[str(vector["kind"])]
                y = vector["y"] if "y" in vector else vector["y_label"]
                check(_answers(client, file.stem, vector, y), vector)
                _check_belief(client, file.stem, vector)


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


def _answers(client: httpx.Client, name: str, v, y: np.ndarray) -> list[dict]:
    """Post observations one by one, with room for every hypothesis; asks before some of them."""
    x = v["x"]
    settings = {"model": name, "max_hypotheses": max(2, len(x))}
    assert client.put(f"/v1/streams/{name}", json=settings).status_code == 201
    answers = []
    for t, each in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        if t % ASKED == 0:
            log_b = v["log_b_x"] if "log_b_x" in v else v["log_b_prior"]
            _check_belief_of_input(client, name, each[0], log_b, t)
        body = dict(zip("xy", each, strict=True))
        answers.append(client.post(f"/v1/streams/{name}/observations", json=body).json())
        assert answers[-1]["run_length"]["pruned_mass"] == 0.0
    return answers


def _check_belief_of_input(client: httpx.Client, name: str, x: list[float], log_b, t: int) -> None:
    """The mixture's weights are the belief after the input alone."""
    body = {"x": [x], "components": True}
    answer = client.post(f"/v1/streams/{name}/predictions", json=body).json()
    found = {c["run_length"]: c["weight"] for c in answer["predictions"][0]["components"]}
    expected = np.exp(log_b[t, : t + 1])
    weights = [found.pop(r, 0.0) for r in range(t + 1)]
    np.testing.assert_allclose(weights, expected, rtol=0, atol=1e-6)
    assert not found


def _check_alpaca(answers: list[dict], v) -> None:
    scores = np.array([answer["log_score"] for answer in answers])
    means = np.array([answer["predictive"]["mean"] for answer in answers])
    np.testing.assert_allclose(-scores, v["nll"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(means, v["mix_mean"], rtol=1e-8, atol=1e-6)


def _check_pcoc(answers: list[dict], v) -> None:
    scores = np.array([answer["log_score"] for answer in answers])
    said = np.array([answer["predictive"]["probabilities"] for answer in answers])
    np.testing.assert_allclose(-scores, v["nll"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.log(said), v["log_pred"], rtol=0, atol=1e-6)


def _check_belief(client: httpx.Client, name: str, v) -> None:
    """The belief after the last label, before growth."""
    found = client.get(f"/v1/streams/{name}/run-length").json()["belief"]
    got = np.zeros(len(v["x"]))
    for each in found:
        got[each["run_length"]] = each["probability"]
    np.testing.assert_allclose(got, np.exp(v["log_b_xy"][-1]), rtol=0, atol=1e-6)
