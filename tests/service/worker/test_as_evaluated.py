"""What `moca evaluate` says of a series is what a stream of the service says."""

import math
import random

import pytest

from model_core.defaults import Defaults
from model_core.upm.builtin import Options, build
from service.schema import rendering
from service.wire import Configure
from training.evaluation.online import Settings, follow

LEVELS = [0.0, 3.0, -2.0, 5.0]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("history", [2000, 60])
@pytest.mark.parametrize("rule", [{}, {"confirm_probability": 0.8}, {"confirm_after": 10}])
@pytest.mark.parametrize(("model", "steps"), [("averaged", 120), ("gaussian", 120), ("poisson", 9)])
def test_segmentation_and_events(bench, model, steps, history, rule):
    rng = random.Random(5)
    y = [rng.gauss(LEVELS[t // 30], 1.0) for t in range(steps)]
    if model == "poisson":
        y = [float(round(abs(10 * value))) for value in y]
    bench.ask(Configure("a", {"model": model, "history": history, **rule}), status=201)
    answers = bench.observe("a", y)
    segments = rendering.segmentation(bench.head("a"), bench.records("a"))
    served = [segment.start for segment in segments][1:]
    confirmed = sorted(e.start for e in bench.events("a") if e.state == "confirmed")
    if "confirm_after" in rule:
        rule = {"confirm_probability": None, **rule}
    settings = Settings(Defaults(history=history, **rule))
    (found,) = follow(build(model, Options()), [[[value] for value in y]], settings)
    assert (list(found.served), found.confirmed()) == (served, confirmed)
    assert bool(served) == (steps > 20)
    assert found.answers is not None
    anomalies = [math.nan if each["anomaly"] is None else each["anomaly"] for each in answers]
    assert found.answers.anomaly == pytest.approx(anomalies, nan_ok=True)
    moved = [(t, each.id, each.state, each.start) for t, each in found.events if t >= 20]
    told = [(each["seq"], each["event"]) for each in answers if each["event"]]
    last = {t: (id_, state, start) for t, id_, state, start in moved}
    assert {t: (e["id"], e["state"], e["start"]) for t, e in told if t >= 20} == last
    if steps > 20:
        assert confirmed
