"""History against the labels posted: random lists, commands and crashes, with seasons found."""

import numpy as np
import pytest

from model_core import season
from service.wire import Configure, EventFeedback, Move, Observation, Observe, SetBelief
from service.worker.filtering import seasons

STEPS = 10
MISSING = 0.02  # share of labels that are missing


def series(rng, n):
    """Labels with a season from some time on, and steps."""
    t = np.arange(n)
    y = rng.normal(size=n) + 3 * np.sin(2 * np.pi * t / 16) * (t > rng.integers(400))
    y += np.repeat(rng.normal(size=n // 100 + 1) * rng.choice([0, 5]), 100)[:n]
    return [None if rng.random() < MISSING else round(float(each), 3) for each in y]


def other_command(rng, bench, stream):
    """A command that observes nothing."""
    settings = [
        {"hazard": 0.02},
        {"outlier_rate": 0.05},
        {"history": 700},
        {"seasonal": True},
        {"seasonal": False},
        {"seasonal": None},
    ]
    commands = [
        Configure(stream, settings[rng.integers(len(settings))]),
        Move(stream, str(rng.choice(["gaussian", "averaged"]))),
        SetBelief(stream, changepoint=0.7),
    ]
    for event in bench.events(stream)[-1:]:
        commands.append(EventFeedback(stream, bool(rng.integers(2)), event=event.id))
    return commands[rng.integers(len(commands))]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", range(8))
def test_history_is_what_was_posted(bench, monkeypatch, seed):
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(season, "SEASONS_FROM", 150)
    monkeypatch.setattr(seasons, "SEASONS_FROM", 150)
    monkeypatch.setattr(season, "REPLAYED", 20)
    stream = f"s{seed}"
    bench.ask(Configure(stream, {"model": "gaussian", "history": 5000}), status=201)
    y = series(rng, STEPS * 500)
    posted = 0
    for _ in range(STEPS):
        commands = []
        for _ in range(rng.integers(1, 4)):
            count = int(rng.choice([1, 5, 40, 170, 330]))
            part = [Observation(each) for each in y[posted : posted + count]]
            commands.append(Observe(stream, part))
            posted += count
            if rng.random() < 0.5:
                commands.append(other_command(rng, bench, stream))
        bench.send(*commands)
        match rng.integers(4):
            case 0:
                bench.stop()
            case 1:
                bench.crash()
        kept = bench.records(stream)
        assert [(each.seq, each.y) for each in kept] == [
            (seq, y[seq]) for seq in range(posted - len(kept), posted)
        ]
