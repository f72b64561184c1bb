"""The model of docs/own-model.md: against the formulas, and from the artifact it shows."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest

from model_core import artifact, codec
from model_core.errors import BadArtifact
from model_core.stream.slab import Slab
from tests.model_core.cases import belief_of, run, series
from tests.model_core.registry import Case, halves

DOCS = Path(__file__).parents[2] / "docs"


def documented() -> dict:
    """The `model.json` that the page shows."""
    (text,) = re.findall(r"```json\n(.*?)```", (DOCS / "own-model.md").read_text(), re.DOTALL)
    return json.loads(text)


@pytest.fixture
def load(tmp_path, monkeypatch):
    """The example from a folder, with some fields changed, beside its reference."""
    monkeypatch.setattr(artifact, "_BUILDERS", dict(artifact._BUILDERS))
    path = DOCS / "examples" / "remembering_gp.py"
    spec = importlib.util.spec_from_file_location("remembering_gp", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))

    def loaded(**changes) -> Case:
        folder, fields = tmp_path / "sensor" / "1", {**documented(), **changes}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.json").write_text(json.dumps(fields))
        model, zero = artifact.load(folder), np.zeros(1)

        def draw(rng, steps):
            x, noise = rng.normal(size=(steps, model.x_dim)), rng.normal(size=(steps, 1))
            return x, np.where(halves(steps), -1, 1) * np.sin(2 * x[:, :1]) + 0.2 * noise

        return Case("own", model, zero, zero + 1, None, draw)

    return loaded


def test_it_is_served_as_the_page_says(load):
    case, fields = load(), documented()
    names = "kind", "x_dim", "y_dim", "hazard", "outlier_rate"
    assert [getattr(case.model, name) for name in names] == [fields[name] for name in names]
    state = run(case, [series(case, 3, 60, hazard=0.02, outlier_rate=0.01)], 20)[-1].state
    assert abs(max(belief_of(state), key=belief_of(state).get) - 30) <= 3
    slab = Slab(case.model, 20, [0.5])
    rows = slab.begin([[0.0]] * 2, [[1.0]] * 2)
    lines, heads = (part.numpy() for part in slab.layout.packed(state, case.prior()))
    slab.put(rows[0], slab.row(rows[0])._replace(lines=lines[0], head=heads[0]))
    blob = codec.encode(slab.layout, slab.row(rows[0]))
    slab.put(rows[1], codec.decode(slab.layout, slab.row(rows[1]), blob))
    assert codec.encode(slab.layout, slab.row(rows[1])) == blob
    for change in ({"noise": 0}, {"memory": 0}, {"length": None}, {"hazard": 2}):
        with pytest.raises(BadArtifact, match=next(iter(change))):
            load(**change)
