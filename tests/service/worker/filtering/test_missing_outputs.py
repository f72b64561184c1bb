"""Labels some of whose outputs are missing: what is learned, kept, answered and refused."""

import json
import math
import random
import statistics

import pytest
import torch
from msgspec.structs import replace

from model_core.components import StudentT
from model_core.predictive import Mixture
from service import wire
from service.observability import metrics
from service.observability.model_metrics import PIT
from service.wire import (
    Configure,
    EventFeedback,
    Head,
    Move,
    Observation,
    Observe,
    Predict,
    RunLength,
    WhatIf,
    snapshot,
)
from service.worker.commands import rerun
from service.worker.filtering import events
from service.worker.streams.answers import Place
from service.worker.streams.slab import Slab
from tests.service.worker.commands.test_snapshot import export, put
from tests.service.worker.filtering.test_anomaly_events import anomalies
from tests.service.worker.filtering.test_delayed_labels import late, pend, same
from tests.service.worker.kinds import KINDS, series

MODELS = ("joint", "averaged")
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


@pytest.mark.parametrize("model", ["gaussian", "multivariate", "averaged@1"])
def test_other_models_refuse_them_and_nothing_is_applied(bench, model):
    bench.ask(Configure("a", {"model": model}), status=201)
    full = [[1.0, 2.0], [1.5, 2.5]]
    bench.observe("a", full)
    before = bench.stored("a")
    (outcome,) = bench.send(Observe("a", [Observation(y=[1.0, 2.0]), Observation(y=[1.0, None])]))
    assert (outcome.status, len(outcome.body)) == (422, 1)
    problem = json.loads(outcome.body[0])
    assert problem["type"].endswith("/dimension-mismatch")
    assert problem["field"] == "y"
    assert problem["detail"].startswith("observations[1].y: expected 2 numbers, got 1")
    assert "post null for the whole label" in problem["detail"]
    assert "averaged@2, joint@1" in problem["detail"]
    assert bench.stored("a") == before
    assert bench.observe("a", [None])[0]["seq"] == 2


def test_the_first_label_decides_how_many_there_are(bench):
    """Also if it has missing outputs."""
    bench.ask(Configure("a", {"model": "joint"}), status=201)
    bench.observe("a", [[None, 1.0, None]])
    assert bench.head("a").y_dim == 3
    problem = bench.ask(Observe("a", [Observation(y=[1.0, None])]), status=422)
    assert problem["detail"] == "y: expected 3 numbers, got 2"
    # What the API makes of it is a missing label; nothing else may come to the filter either.
    problem = bench.ask(Observe("a", [Observation(y=[None, None, None])]), status=422)
    assert "expected at least one number, got none" in problem["detail"]
    assert bench.head("a").seq == 1


@pytest.mark.parametrize("model", MODELS)
def test_the_warm_up_is_of_the_labels_that_each_output_has(bench, model):
    bench.ask(Configure("a", {"model": model}), status=201)
    labels = holes(60)
    answers = bench.observe("a", labels)
    until = next(n for n in range(60) if min(len(known(labels[:n], i)) for i in range(3)) == 20)
    assert 20 < until < 40
    assert [each["warming_up"] for each in answers] == [n < until for n in range(60)]
    head = bench.head("a")
    for i in range(3):
        values = known(labels[:until], i)
        assert head.location[i] == pytest.approx(statistics.median(values))
        assert head.scale[i] == pytest.approx(statistics.stdev(values))
    # Two of each make a predictive, of one regime until then.
    first = next(each["seq"] for each in answers if each["predictive"] is not None)
    assert min(len(known(labels[:first], i)) for i in range(3)) == 2
    assert all(math.isfinite(each["log_score"]) for each in answers[first:])


def test_an_output_that_never_had_a_label_does_not_stop_the_stream(bench):
    bench.ask(Configure("a", {"model": "joint"}), status=201)
    rng = random.Random(3)
    labels = [[rng.gauss(5, 2), None] for _ in range(210)]
    answers = bench.observe("a", labels)
    assert [each["warming_up"] for each in answers] == [n < 200 for n in range(210)]
    head = bench.head("a")
    assert (head.location[1], head.scale[1]) == (0.0, 1.0)
    assert head.last_label == [labels[-1][0], None]
    bench.observe("a", [[5.0, 0.5], [5.0, 0.7]])
    (answer,) = bench.observe("a", [[None, 0.6]])
    assert math.isfinite(answer["log_score"])
    assert bench.head("a").last_label == [5.0, 0.6]


@pytest.mark.parametrize("model", MODELS)
def test_a_shift_is_found_and_the_history_has_what_was_posted(bench, model):
    bench.ask(Configure("a", {"model": model, **KNOWN}), status=201)
    labels = holes(80)
    answers = bench.observe("a", labels)
    assert [record.y for record in bench.records("a")] == labels
    (event,) = [each for each in bench.events("a") if each.state == "confirmed"]
    assert abs(event.start - 40) <= 1
    assert event.size[0] > 1 > -1 > event.size[1]
    assert all(0 <= each["anomaly"] <= 1 for each in answers)
    last = [known(labels, i)[-1] for i in range(3)]
    assert bench.head("a").last_label == last


@pytest.mark.parametrize("model", MODELS)
def test_a_label_without_an_output_is_the_marginal_of_the_others(bench, model):
    """Of `averaged`, whose outputs are independent, the log scores add up."""
    bench.ask(Configure("a", {"model": model, **KNOWN}), status=201)
    bench.observe("a", holes(40, chance=0.0))
    put(bench, "b", export(bench, "a"))
    (full,) = bench.observe("a", [[0.3, 0.1, 11.0]])
    (part,) = bench.observe("b", [[0.3, None, 11.0]])
    assert part["predictive"] == full["predictive"]
    assert part["log_score"] != full["log_score"]
    (found,) = bench.ask(Predict("a", x=None, samples=0))["predictions"]
    (other,) = bench.ask(Predict("b", x=None, samples=0))["predictions"]
    assert found["predictive"]["mean"] != other["predictive"]["mean"]


def test_it_is_no_failure(bench):
    """Neither a numerical fault, nor set aside, nor counted as refused."""
    before = faults()
    bench.ask(Configure("a", {"model": "joint", **KNOWN}), status=201)
    bench.observe("a", holes(60))
    assert faults() == before
    assert not bench.quarantine("a")


def faults():
    refused = metrics.OBSERVATIONS.labels("refused")._value.get()
    return metrics.NUMERICAL_FAULTS._value.get(), refused


def test_calibration_counts_the_outputs_that_are_there(bench):
    def counted():
        (found,) = PIT.collect()
        return sum(
            s.value
            for s in found.samples
            if s.name.endswith("_count") and s.labels["model"] == "joint@1"
        )

    bench.ask(Configure("a", {"model": "joint", **KNOWN}), status=201)
    labels, before = holes(30), counted()
    bench.observe("a", labels)
    assert counted() - before == sum(len(known(labels, i)) for i in range(3))


def test_an_anomaly_has_no_size_where_the_output_is_missing(bench):
    bench.ask(Configure("a", {"model": "averaged", **KNOWN}), status=201)
    rng = random.Random(2)
    labels = [[rng.gauss(0, 1), None, rng.gauss(10, 5)] for _ in range(150)]
    labels[140] = [-40.0, None, 12.0]
    bench.observe("a", labels)
    event = anomalies(bench)[-1]
    assert (event.id, event.direction) == (140, "down")
    assert event.size[0] < -10
    assert event.size[1] is None
    assert abs(event.size[2]) < 3


def test_nothing_there_has_no_direction(bench):
    """A label whose distribution has no variance has no size at all, as before."""
    df = torch.tensor([[[1.5, 5.0, 5.0]]], dtype=torch.float64)
    one = torch.ones_like(df)
    place = Place(Mixture(torch.zeros(1, 1, dtype=torch.float64), StudentT(df, one, one)), 0)
    head = Head(1, wire.StreamSettings(anomaly_alarm=0.99), seq=3)

    def raised(y):
        record = wire.Record(3, y, None, None, 1.0, None, None, 0.0, anomaly=0.999)
        head.last_anomaly = None
        return events.alarm(head, record, place)

    assert raised([None, 3.0, None]).direction == "up"
    assert raised([None, 3.0, None]).size[::2] == [None, None]
    assert raised([2.0, 3.0, None]).size is raised([2.0, 3.0, None]).direction is None


def test_late_labels_may_lack_outputs(bench, close):
    for stream in ("a", "b"):
        bench.ask(Configure(stream, {"model": "joint", **KNOWN}), status=201)
    labels = holes(30)
    bench.observe("b", labels)
    bench.observe("a", labels[:20])
    for _ in range(20, 30):
        pend(bench, "a")
    for seq in (23, 20, 21, 22, *range(24, 30)):
        answer = late(bench, "a", seq, labels[seq])
        assert answer["seq"] == seq
    same(bench, close, "a", "b")


def test_a_late_label_is_refused_where_the_model_takes_none(bench):
    bench.ask(Configure("a", {"model": "gaussian", **KNOWN}), status=201)
    bench.observe("a", [[0.0, 0.0, 10.0]])
    pend(bench, "a")
    problem = late(bench, "a", 1, [1.0, None, 2.0], status=422)
    assert "takes no labels with missing outputs" in problem["detail"]
    assert bench.head("a").pending[0].pending, "it still waits"
    assert late(bench, "a", 1, [1.0, 0.0, 2.0])["seq"] == 1


def test_a_move_to_a_model_that_takes_none_is_refused(bench):
    bench.ask(Configure("a", {"model": "joint", **KNOWN}), status=201)
    labels = [[0.0, 1.0, 2.0], [0.5, None, 3.0], [0.5, 1.5, 3.0]]
    bench.observe("a", labels)
    before = bench.stored("a")
    problem = bench.ask(Move("a", "gaussian"), status=422)
    assert problem["detail"].startswith("observation 1: y: expected 3 numbers, got 2")
    assert bench.stored("a") == before
    bench.ask(Move("a", "averaged"))
    assert bench.head("a").settings.model == "averaged@2"
    assert [record.y for record in bench.records("a")] == labels


def test_reruns_take_them(bench, close):
    """Other settings, a person's word, and hindsight, which is of location and scale of all."""
    bench.ask(Configure("a", {"model": "joint"}), status=201)
    labels = holes(120)
    bench.observe("a", labels)
    answer = bench.ask(WhatIf("a", {"hazard": 0.02}, series=True))
    assert answer["compared"] > 80
    assert all(math.isfinite(each) for each in answer["log_score"] if each is not None)
    engine = bench.worker.engine
    stream = engine.streams[bench.partition("a"), "a"]
    with torch.inference_mode():
        steps = rerun.in_hindsight(engine, stream, bench.records("a"))
        found = ended(steps)
    for i in range(3):
        assert found.head.location[i] == pytest.approx(statistics.median(known(labels, i)))
    found.close()
    bench.ask(EventFeedback("a", True, start=60))
    assert bench.head("a").last_label == [known(labels, i)[-1] for i in range(3)]


def ended(steps):
    """What a rerun returns in the end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def test_a_snapshot_goes_on_exactly(bench, make_bench, close):
    labels, other = holes(90), make_bench(db=1)
    bench.ask(Configure("a", {"model": "joint"}), status=201)
    for upto in (12, 60):  # in the warm-up, and after it
        bench.observe("a", labels[bench.head("a").seq : upto])
        put(other, f"b{upto}", export(bench, "a"))
        expected = bench.ask(RunLength("a")) | {"stream": f"b{upto}"}
        close(other.ask(RunLength(f"b{upto}")), expected)
    expected = bench.observe("a", labels[60:])
    found = other.observe("b60", labels[60:])
    close([each | {"stream": "a"} for each in found], expected)


def test_a_snapshot_with_labels_that_no_one_could_post_is_refused(bench):
    bench.ask(Configure("a", {"model": "joint", **KNOWN}), status=201)
    bench.observe("a", holes(10))
    fine = snapshot.load(export(bench, "a"))
    for y, words in (
        ([math.nan, 1.0, 2.0], "expected numbers up to 1e+100"),
        ([None, None, None], "expected at least one number, got none"),
        ([None, 1.0], "expected 3 numbers, got 2"),
    ):
        wrong = [*fine.records[:-1], wire.Record(9, y, None, None, 1.0, None, 0.03, 0.0)]
        blob = snapshot.dump(replace(fine, records=wrong))
        assert words in put(bench, "b", blob, status=422)["detail"]


def test_kinds_with_missing_outputs_have_some():
    seen = [each.y for each in series(KINDS["joint-partial"], 50)]
    assert any(wire.partial(y) for y in seen)
    assert not any(y is not None and set(y) == {None} for y in seen)


def compiled(bench, model):
    """Have the bench step by its compiled kernel, of three outputs; returns the slab."""
    bench.worker.engine.compiles = True
    bench.ask(Configure("first", {"model": model, **KNOWN}), status=201)
    bench.observe("first", [[0.0, 0.0, 10.0]])
    (slab,) = bench.worker.engine._slabs.values()
    slab._compiled.compile()  # waits for it
    assert slab.in_series
    return slab


@pytest.mark.parametrize("model", MODELS)
def test_kernels_leave_such_labels_to_the_eager_step(make_bench, close, monkeypatch, model):
    """Alone and in lists, with the belief after each and without; answers are the same."""
    pytest.importorskip("numba")
    eager, by_one, in_lists = (make_bench(db=db, partitions=1) for db in range(3))
    for each in (by_one, in_lists):
        slab = compiled(each, model)
    eagerly, step = [], Slab._step_eagerly

    def counted(self, rows, records, *rest):
        eagerly.extend(wire.partial(record.y) for record in records)
        return step(self, rows, records, *rest)

    labels = [None if i % 11 == 5 else y for i, y in enumerate(holes(120, chance=0.1))]
    assert 10 < sum(map(wire.partial, labels)) < 60
    for each in (eager, by_one, in_lists):
        each.ask(Configure("a", {"model": model, **KNOWN}), status=201)
    expected = eager.observe("a", labels)
    monkeypatch.setattr(Slab, "_step_eagerly", counted)
    close(by_one.observe("a", labels, part=1), expected, tolerance=1e-6)
    assert eagerly == [True] * sum(map(wire.partial, labels)), "and no other"
    close(in_lists.observe("a", labels), expected, tolerance=1e-6)
    assert eagerly == [True] * 2 * sum(map(wire.partial, labels))
    believed = [each.observe("a", labels[:40], belief=True) for each in (by_one, in_lists)]
    close(*believed, tolerance=1e-9)
    assert all(answer["run_length"]["belief"] for answer in believed[0])
    records = in_lists.records("a")
    assert (
        list(slab.ready(records))
        == records[: next(i for i, y in enumerate(labels) if wire.partial(y))]
    )
    # Another process goes on from what was stored.
    in_lists.crash()
    more = holes(20, seed=5)
    close(in_lists.observe("a", more), by_one.observe("a", more), tolerance=1e-9)
