"""Labels some of whose outputs are missing: what is learned, kept, answered and refused."""

import math
import random
import statistics

import pytest

from service import wire
from service.observability import metrics
from service.observability.metrics import PIT
from service.wire import (
    Configure,
    EventFeedback,
    Move,
    Predict,
    WhatIf,
)
from service.worker.streams.answers import gathered
from tests.service.worker.filtering.test_delayed_labels import late, pend

KNOWN = {"location": [0.0, 0.0, 0.0], "scale": [1.0, 1.0, 5.0], "hazard": 0.03}


def holes(count, seed=1, chance=0.3):
    """Labels of three outputs with a shift half-way; any output may be missing, but not all."""
    rng = random.Random(seed)
    made = []
    for i in range(count):
        level = 6.0 * (i >= count // 2)
        y = [rng.gauss(level, 1), rng.gauss(-level, 1), rng.gauss(10, 5)]
        gone = [rng.random() < chance for _ in y]
        gone[i % 3] = False
        made.append([None if no else value for value, no in zip(y, gone, strict=True)])
    return made


def known(labels, output):
    return [y[output] for y in labels if y[output] is not None]


def made(bench, stream="a", model="joint", **settings):
    bench.ask(Configure(stream, {"model": model, **settings}), status=201)


def test_a_label_to_come_waits_on_where_one_with_a_hole_is_refused(bench):
    """Other refusals: streams/test_refusals.py."""
    made(bench, "a", "gaussian")
    bench.observe("a", [[1.0, 2.0]])
    pend(bench, "a")
    late(bench, "a", 1, [1.0, None], status=422)
    assert bench.head("a").pending[0].pending
    assert late(bench, "a", 1, [1.0, 2.0])["seq"] == 1


def test_the_warm_up_is_of_the_labels_that_each_output_has(bench):
    made(bench, model="averaged")
    labels = holes(45)
    answers = bench.observe("a", labels)
    until = next(n for n in range(45) if min(len(known(labels[:n], i)) for i in range(3)) == 20)
    assert [each["warming_up"] for each in answers] == [n < until for n in range(45)]
    head = bench.head("a")
    for i in range(3):
        assert head.location[i] == pytest.approx(statistics.median(known(labels[:until], i)))
        assert head.scale[i] == pytest.approx(statistics.stdev(known(labels[:until], i)))
    # Two of each make a predictive, of one regime until then.
    first = next(each["seq"] for each in answers if each["predictive"] is not None)
    assert min(len(known(labels[:first], i)) for i in range(3)) == 2
    assert all(math.isfinite(each["log_score"]) for each in answers[first:])


@pytest.mark.parametrize("model", ["joint", "averaged"])
def test_what_is_learned_counted_and_kept(bench, close, model):
    """A label without an output is the marginal of the others, and no failure of any kind."""

    def counted():
        gathered.enter()
        (found,) = PIT.collect()
        faults = metrics.NUMERICAL_FAULTS, metrics.OBSERVATIONS.labels("refused")
        samples = [s for s in found.samples if s.name.endswith("_count")]
        labelled = sum(s.value for s in samples if s.labels["model"].startswith(model))
        return [labelled, *(each._value.get() for each in faults)]

    made(bench, "a", model, **KNOWN)
    labels, before = holes(30), counted()
    answers = bench.observe("a", labels)
    assert [record.y for record in bench.records("a")] == labels
    (event,) = [each for each in bench.events("a") if each.state == "confirmed"]
    assert abs(event.start - 15) <= 1
    assert event.size[0] > 1 > -1 > event.size[1]
    assert all(0 <= each["anomaly"] <= 1 for each in answers)
    assert bench.head("a").last_label == [known(labels, i)[-1] for i in range(3)]
    assert not bench.quarantine("a")
    outputs = sum(len(known(labels, i)) for i in range(3))
    assert counted() == [before[0] + outputs, *before[1:]]
    bench.put("b", bench.export("a"))
    (full,) = bench.observe("a", [[0.3, 0.1, 11.0]])
    (part,) = bench.observe("b", [[0.3, None, 11.0]])
    # The other output is corrected by its own errors alone. Only a kernel merges hypotheses.
    close(part["predictive"], full["predictive"], tolerance=1e-3)
    assert part["log_score"] != full["log_score"]
    one, other = (bench.ask(Predict(s))["predictions"][0]["predictive"] for s in "ab")
    assert one["mean"] != other["mean"]


def test_moves_reruns_and_hindsight(bench):
    made(bench, **KNOWN)
    labels = holes(24)
    bench.observe("a", labels)
    before = bench.stored("a")
    problem = bench.ask(Move("a", "gaussian"), status=422)
    assert problem["type"].endswith("/dimension-mismatch")
    assert bench.stored("a") == before
    answer = bench.ask(WhatIf("a", {"hazard": 0.02}, series=True))
    assert answer["compared"] == 24
    assert all(math.isfinite(each) for each in answer["log_score"])
    bench.ask(EventFeedback("a", True, start=12))
    assert bench.head("a").last_label == [known(labels, i)[-1] for i in range(3)]
    bench.ask(wire.SegmentHistory("a"), status=204)
    assert bench.hindsight("a").starts == [0, 12]
    bench.ask(Move("a", "averaged"))
    assert [record.y for record in bench.records("a")] == labels
