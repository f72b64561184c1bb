"""The model of docs/own-model.md: against the formulas, and from the artifact it shows."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy import stats

from model_core import artifact, codec
from model_core.artifact import files
from model_core.errors import BadArtifact
from tests.model_core.cases import Case, by_start, run, series
from tests.model_core.enumeration import enumerate_segmentations
from tests.model_core.reference import SPREAD, Window
from tests.model_core.test_brute_force import SCENARIOS

DOCS = Path(__file__).parents[2] / "docs"
STEPS = 7


class Gp(NamedTuple):
    """Gaussian process regression on the last observations, with a matrix inverted for each."""

    memory: int
    length: float
    amplitude: float
    level: float
    noise: float

    def kernel(self, a, b):
        squared = ((a[:, None] - b[None]) ** 2).sum(-1)
        return self.level + self.amplitude * np.exp(-squared / (2 * self.length**2))

    def _normal(self, x, past):
        kept = np.flatnonzero(past.weight > 0)[-self.memory :]
        known, y, weight = past.x[kept], past.y[kept, 0], past.weight[kept]
        inverse = np.linalg.inv(self.kernel(known, known) + np.diag(self.noise / weight))
        cross = self.kernel(x[None], known)[0]
        variance = self.level + self.amplitude + self.noise - cross @ inverse @ cross
        return cross @ inverse @ y, np.sqrt(variance)

    def log_density(self, x, y, past):
        return stats.norm.logpdf(y, *self._normal(x, past)).sum()

    def log_outlier(self, x, y):
        mean, scale = self._normal(x, Window(x[None][:0], y[None][:0], np.zeros(0)))
        return stats.norm.logpdf(y, mean, scale * np.sqrt(SPREAD)).sum()


def documented() -> dict:
    """The `model.json` that the page shows."""
    (text,) = re.findall(r"```json\n(.*?)```", (DOCS / "own-model.md").read_text(), re.DOTALL)
    return json.loads(text)


@pytest.fixture(scope="module")
def kind():
    """The example's kind is known while its tests run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_BUILDERS", dict(files._BUILDERS))
        path = DOCS / "examples" / "remembering_gp.py"
        spec = importlib.util.spec_from_file_location("remembering_gp", path)
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
        yield documented()["kind"]


@pytest.fixture
def load(kind, tmp_path):
    """The example from a folder, with some fields changed, as a case beside its reference."""

    def loaded(**changes) -> Case:
        folder, fields = tmp_path / "sensor" / "1", {**documented(), **changes}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.json").write_text(json.dumps(fields))
        truth = Gp(*(fields[name] for name in Gp._fields))
        model = artifact.load(folder)
        return Case("own", model, np.zeros(1), np.ones(1), truth, draw(model.x_dim))

    return loaded


def draw(x_dim: int):
    def regimes(rng, steps):
        x = rng.normal(size=(steps, x_dim))
        level = np.where(np.arange(steps) < steps // 2, 1, -1)[:, None]
        return x, level * np.sin(2 * x[:, :1]) + 0.2 * rng.normal(size=(steps, 1))

    return regimes


def test_the_page_shows_a_model_that_loads(load, kind):
    model, fields = load().model, documented()
    assert (model.kind, model.x_dim, model.y_dim) == (kind, 1, 1)
    assert (model.hazard, model.outlier_rate) == (fields["hazard"], fields["outlier_rate"])


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("x_dim", [1, 3])
@pytest.mark.parametrize("memory", [3, 20])
def test_it_is_gaussian_process_regression(load, scenario, x_dim, memory):
    """With a memory shorter and longer than the series, over every segmentation."""
    case = load(x_dim=x_dim, memory=memory)
    batch = [series(case, seed, STEPS, 0.2, **SCENARIOS[scenario]) for seed in range(2)]
    truth = [enumerate_segmentations(case.reference, each) for each in batch]
    for t, step in enumerate(run(case, batch, 10)):
        for row in range(2):
            if batch[row].labelled[t]:
                score = step.info.log_score[row].item()
                assert score == pytest.approx(truth[row][t].log_score, abs=1e-9)
            belief = by_start(step.state, step.state.belief.log_prob.exp(), row)
            for start, probability in truth[row][t].belief.items():
                assert belief.get(start, 0.0) == pytest.approx(probability, abs=1e-9)


def test_it_finds_the_change_and_its_states_are_stored(load):
    case = load()
    steps = run(case, [series(case, 3, 60, hazard=0.02, outlier_rate=0.01)], 20)
    state = steps[-1].state
    belief = by_start(state, state.belief.log_prob.exp())
    assert abs(max(belief, key=belief.get) - 30) <= 3
    blob = codec.encode(case.model, state)
    decoded = codec.decode(case.model, case.prior(), 20, blob)
    assert codec.encode(case.model, decoded) == blob
    alone = run(case, [series(case, 3, 60, hazard=0.02, outlier_rate=0.01)] * 2, 20)[-1]
    torch.testing.assert_close(alone.info.log_score[0], steps[-1].info.log_score[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise": 0}, "noise is 0, expected a number between 0"),
        ({"memory": 0}, "memory is 0, expected at least 1"),
        ({"length": None}, "length is None"),
        ({"hazard": 2}, "hazard is 2"),
    ],
)
def test_what_does_not_fit_is_named(load, change, words):
    with pytest.raises(BadArtifact, match=words):
        load(**change)


def test_the_example_is_under_sixty_lines():
    lines = (DOCS / "examples" / "remembering_gp.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) < 60
