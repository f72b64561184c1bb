"""Trained kinds through REST: answers are those of the filter run on the same artifact."""

import httpx
import pytest
import torch

from model_core import artifact
from model_core import filter as moca
from tests.service.worker.kinds import KINDS, publish, series
from training.data.base import Batch
from training.evaluation.online import observed

HYPOTHESES, LENGTH = 20, 120


@pytest.fixture(scope="module")
def models(shared):
    processes, _ = shared
    publish(processes.folder / "models")
    return processes.folder / "models"


@pytest.mark.parametrize("name", ["lstm", "pcoc", "alpaca"])
def test_answers_are_those_of_the_filter(emptied, models, name):
    kind = KINDS[name]
    seen = series(kind, LENGTH, plain=True)
    expected = _filtered(artifact.load(models / kind.model / "1"), seen)
    with httpx.Client(base_url=emptied, timeout=60) as client:
        settings = {"model": kind.model, "max_hypotheses": HYPOTHESES, "outlier_rate": 0.0}
        assert client.put("/v1/streams/s", json=settings).status_code == 201
        body = [{"x": each.x, "y": each.y} for each in seen]
        answers = client.post("/v1/streams/s/observations", json=body).json()
        belief = client.get("/v1/streams/s/run-length").json()["belief"]
    assert [each["log_score"] for each in answers] == pytest.approx(expected[0], abs=1e-9)
    found = {each["run_length"]: each["probability"] for each in belief}
    assert found == pytest.approx(expected[1], abs=1e-9)


def _filtered(model, seen) -> tuple[list[float], dict[int, float]]:
    """Log score of each observation, and the last belief by run length."""
    zeros = torch.zeros(1, model.scaled, dtype=torch.float64)
    prior = moca.make_prior(model, zeros, zeros + 1)
    x = torch.tensor([[each.x for each in seen]], dtype=torch.float64)
    labels = [each.y if isinstance(each.y, list) else [each.y] for each in seen]
    batch = Batch(x, torch.tensor([labels], dtype=torch.float64))
    state, scores = moca.init(prior, HYPOTHESES), []
    for t in range(len(seen)):
        inputs = observed(model, batch, t)._replace(outlier_rate=torch.zeros(1).double())
        state, info = moca.step(model, state, prior, inputs)
        scores.append(float(info.log_score))
    there = state.belief.log_prob[0].isfinite()
    probability = state.belief.log_prob[0][there].exp().tolist()
    return scores, dict(zip(state.belief.run_length[0][there].tolist(), probability, strict=True))
