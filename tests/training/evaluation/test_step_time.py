"""Time per step: the work grows with the hypotheses, unless they are pruned."""

from __future__ import annotations

import torch
from rich.console import Console

from model_core import filter as moca
from model_core.upm.builtin import Options, build
from training.evaluation import step_time


def test_a_full_state_makes_a_step_of_all_its_hypotheses():
    model = build("gaussian", Options())
    nothing = torch.zeros(1, model.scaled, dtype=torch.float64)
    prior = moca.make_prior(model, nothing, nothing + 1)
    state = step_time._full(prior, 40, 40)
    assert torch.isfinite(state.belief.log_prob).sum() == 40
    state, info = moca.step(model, state, prior, step_time._inputs(model, 0, "cpu"))
    assert info.ok.all()
    assert state.seq.item() == 41
    assert torch.isfinite(state.belief.log_prob).sum() == 40


def test_the_table_has_every_step(monkeypatch):
    monkeypatch.setattr(step_time, "STEPS", (5, 60))
    console = Console(record=True, width=80)
    chart = step_time.report(build("gaussian", Options()), "cpu", console)
    text = console.export_text()
    assert "nothing pruned" in text
    assert "50 hypotheses" in text
    assert len(chart.rows[0]) == 1
