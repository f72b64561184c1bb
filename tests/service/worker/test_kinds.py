"""What every model promises through the worker: answers, reads, and a state that is never lost."""

import json
import math
import random

import msgspec
import pytest

from model_core.upm.builtin import BUILTIN, NEWEST
from service import wire
from service.schema import rendering
from service.wire import Delete, Observation, Observe, Predict, RunLength
from tests.service.worker.kinds import KINDS, configure, publish, series
from tests.service.worker.streams.test_reload import check_answers, check_bounds, lose_everything

WARMUP = 20


@pytest.fixture
def make_bench(make_bench, tmp_path):
    publish(tmp_path / "models")
    return make_bench


ALIKE = (
    "poisson-1",
    "gaussian-3",
    "averaged-2",
    "averaged-partial",
    "fleet-partial",
    "averaged-earlier",
    "multivariate-1",
    "autoregressive-0",
)  # as others here
PARTS = ("autoregressive", "linear", "joint")  # of others here, except where all is lost
RELOADED = ("gaussian", "averaged", "poisson", "bernoulli")  # in test_reload, at more length


@pytest.fixture(
    params=[pytest.param(k, marks=[pytest.mark.slow] * (k in (*ALIKE, *PARTS))) for k in KINDS],
    ids=str,
)
def kind(request):
    return KINDS[request.param]


def check_predictive(said, kind):
    if kind.probabilities:
        assert said.keys() == {"probabilities"}
        assert len(said["probabilities"]) == kind.probabilities
        assert sum(said["probabilities"]) == pytest.approx(1)
        assert min(said["probabilities"]) >= 0
        return
    assert all(map(math.isfinite, said["mean"]))
    assert len(said["mean"]) == kind.y_dim
    levels = [said["quantiles"][level] for level in ("0.05", "0.5", "0.95")]
    for low, middle, high in zip(*levels, strict=True):
        assert low <= middle <= high
        assert low < high or kind.counts
    if said["variance"] is not None:
        for i, row in enumerate(said["variance"]):
            assert row[i] > 0
            assert row == pytest.approx([other[i] for other in said["variance"]])


def test_answers(make_bench, kind):
    bench, observations = make_bench(), series(kind, 90)
    configure(bench, "a", kind)
    answers = bench.observe("a", observations)
    labelled = [0] * kind.y_dim  # labels of each output
    for seen, answer in zip(observations, answers, strict=True):
        named = kind.model if "@" in kind.model else f"{kind.model}@1"
        assert answer["model"] == NEWEST.get(kind.model, named)
        assert answer["warming_up"] == (kind.warms_up and min(labelled) < WARMUP)
        known = [each == each for each in wire.numbers(seen.y)] or [False] * kind.y_dim
        assert (answer["log_score"] is None) == (seen.y is None or answer["predictive"] is None)
        if answer["predictive"] is not None:
            check_predictive(answer["predictive"], kind)
        else:
            assert min(labelled) < 4, "two labels that differ are enough"
        labelled = [count + each for count, each in zip(labelled, known, strict=True)]
        if answer["warming_up"]:
            assert answer["run_length"] is answer["changed_probability"] is None
            continue
        assert 0 <= answer["changed_probability"] <= 1
        assert (answer["changepoint_probability"] is None) == (answer["seq"] == 0)
        assert answer["run_length"]["map"] <= answer["seq"]
        assert 1 <= answer["run_length"]["hypotheses"] <= 20
    check_answers(answers, bench.records("a"), bench, "a")
    head = bench.head("a")
    assert (head.x_dim, head.y_dim) == (kind.x_dim, kind.y_dim)


@pytest.mark.one_in(2)
def test_changes_are_found(make_bench, kind):
    """A label has a direction and a size where it is a quantity, and none where it is a class."""
    bench = make_bench()
    configure(bench, "a", kind, hazard=0.02)
    bench.observe("a", series(kind, 240, plain=True))
    events = bench.events("a")
    head, records = bench.head("a"), bench.records("a")
    found = rendering.segmentation(head, records)
    assert [each.start for each in found] == [0, *(each.end for each in found[:-1])]
    assert found[-1].end == 240
    for event in events:
        if event.state == "confirmed" and not kind.classes:
            assert event.direction in ("up", "down")
            assert event.size is None or isinstance(event.size, float if kind.y_dim == 1 else list)
        if kind.classes:
            assert event.direction is event.size is None
    if kind.model not in ("pump", "leaf", "walk"):  # their weights are random
        assert any(event.state == "confirmed" for event in events)
        assert any(abs(each.start - 80) < 15 for each in found)


@pytest.mark.one_in(2)
def test_predictions_are_what_the_next_answer_says(make_bench, close, kind):
    bench, observations = make_bench(), series(kind, 60, plain=True)
    configure(bench, "a", kind)
    for upto in (0, 10, 50):  # nothing seen, warming up, filtering
        bench.observe("a", observations[bench.head("a").seq : upto])
        before, coming = bench.stored("a"), observations[upto]
        points = [[0.3] * kind.x_dim, coming.x] if kind.x_dim else None
        asked = Predict("a", x=points, samples=4, seed=7, components=True)
        found = bench.ask(asked)
        close(bench.ask(asked), found)
        belief = bench.ask(RunLength("a"))["belief"]
        assert bench.stored("a") == before
        assert found["seq"] == upto
        (answer,) = bench.observe("a", [coming])
        *others, last = found["predictions"]
        close(last["predictive"], answer["predictive"], tolerance=1e-6)
        assert last["x"] == coming.x
        if answer["predictive"] is None:
            continue
        check_described(last, kind)
        assert [check_described(other, kind) for other in others] == [None] * (kind.x_dim > 0)
        other = bench.ask(Predict("a", x=points, samples=4, seed=8))["predictions"][-1]["samples"]
        assert kind.probabilities or kind.counts or other != last["samples"]
        assert not belief or sum(each["probability"] for each in belief) == pytest.approx(1)


def check_described(found, kind):
    check_predictive(found["predictive"], kind)
    assert sum(each["weight"] for each in found["components"]) == pytest.approx(1)
    name, size = ("mean", kind.y_dim)
    if kind.classes:
        name, size = "probabilities", kind.classes
    assert all(len(each[name]) == size for each in found["components"])
    for name in ("mean", "probabilities"):
        if kind.model != "bernoulli" and found["predictive"].get(name):
            averages = [
                sum(each["weight"] * each[name][i] for each in found["components"])
                for i in range(size)
            ]
            assert averages == pytest.approx(found["predictive"][name])
    assert [len(draw) for draw in found["samples"]] == [kind.y_dim] * 4
    if kind.probabilities:
        assert all(draw[0] in range(kind.probabilities) for draw in found["samples"])


@pytest.mark.parametrize("reference", BUILTIN)
def test_there_is_a_kind_of_every_built_in_model(reference):
    known = {NEWEST.get(kind.model, kind.model) for kind in KINDS.values()}
    assert reference in known, "add a kind of it to kinds.py"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [name for name in KINDS if name not in (*ALIKE, *RELOADED)])
def test_lost_at_random_points(make_bench, close, name):
    kind = KINDS[name]
    bench, plain = make_bench(checkpoint_every=16), make_bench(db=1)
    rng, observations = random.Random(kind.model), series(kind, 130)
    for each in (bench, plain):
        configure(each, "a", kind, history=100)
    answers, at = [], 0
    while at < len(observations):
        size = rng.choice([1, 2, 7, 32])
        answers += bench.observe("a", observations[at : at + size])
        at += size
        if rng.random() < 0.5:
            rng.choice([bench.stop, bench.crash, lambda: lose_everything(bench)])()
    check_answers(answers, bench.records("a"), bench, "a")
    check_bounds(bench, "a")
    close(answers, plain.observe("a", observations))
    x = [[0.1] * kind.x_dim] if kind.x_dim else None
    for each in (RunLength("a"), Predict("a", x=x, samples=3, seed=1, components=True)):
        close(bench.ask(each), plain.ask(each))
    close(*([msgspec.to_builtins(e) for e in b.events("a")] for b in (bench, plain)))


@pytest.mark.one_in(3)
def test_resized_evicted_and_reborn(make_bench, close, kind):
    bench, plain = make_bench(resident_bytes=1, checkpoint_every=16), make_bench(db=1)
    observations = series(kind, 70)
    for each in (bench, plain):
        configure(each, "a", kind)
    for upto, size in ((8, 20), (30, 5), (45, 30), (70, 9)):
        found = []
        for each in (bench, plain):
            at = each.head("a").seq
            found.append(each.observe("a", observations[at:upto], part=11))
            configure(each, "a", kind, status=200, max_hypotheses=size)
        bench.turn()
        assert not bench.worker.engine.streams
        close(*found)
    found = bench.ask(RunLength("a"))
    close(found, plain.ask(RunLength("a")))
    assert len(found["belief"]) == 9
    bench.send(Delete("a"))
    assert bench.ask(RunLength("a"), status=404)["status"] == 404
    made = configure(bench, "a", kind)
    assert (made["seq"], bench.head("a").generation) == (0, 2)
    configure(plain, "b", kind)
    for each in (again := bench.observe("a", observations)):
        each["stream"] = "b"
    close(again, plain.observe("b", observations))


ABSURD = [1e100, -1e100, 1e12, 5e-324, 1e50, -3e9]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("outlier_rate", [0.0, 0.01])
def test_absurd_numbers_do_no_lasting_harm(make_bench, kind, outlier_rate):
    """A sensor's fault is taken in like any label; what comes after it is as likely as before."""
    bench, rng = make_bench(), random.Random(5)
    configure(bench, "a", kind, outlier_rate=outlier_rate)
    observations = series(kind, 90, plain=True)
    for seen in observations[30:60]:
        if kind.x_dim and rng.random() < 0.2:
            seen.x = [rng.choice([*ABSURD, each]) for each in seen.x]
        if not kind.probabilities and not kind.counts and rng.random() < 0.3:
            y = seen.y if isinstance(seen.y, list) else [seen.y]
            seen.y = [each if each is None else rng.choice([*ABSURD, each]) for each in y]
            seen.y = list(map(abs, seen.y)) if kind.model == "exponential" else seen.y
    answers = bench.observe("a", observations)
    assert all(math.isfinite(answer["log_score"]) for answer in answers[22:])
    for answer in answers[22:]:
        for values in (answer["predictive"].get("quantiles") or {}).values():
            assert None not in values


@pytest.mark.one_in(3)
def test_the_same_key_again(make_bench, kind):
    bench, observations = make_bench(), series(kind, 30)
    configure(bench, "a", kind)
    keyed = Observe("a", observations, key="k", digest="d")
    (first,) = bench.send(keyed)
    bench.crash()
    (again,) = bench.send(keyed)
    first, again = (list(map(json.loads, each.body)) for each in (first, again))
    assert all(answer["duplicate"] for answer in again)
    assert [{**answer, "duplicate": False} for answer in again] == first
    assert bench.head("a").seq == 30


@pytest.mark.one_in(3)
def test_missing_labels_from_the_first_on(make_bench, close, kind):
    """Inputs and time count all the same; a stream that began so is as any other when reloaded."""
    bench, plain = make_bench(), make_bench(db=1)
    late = series(kind, 60, plain=True)
    early = [Observation(x=each.x) for each in late[:10]]
    for each in (bench, plain):
        configure(each, "a", kind)
    answers = bench.observe("a", early)
    assert all(answer["log_score"] is None for answer in answers)
    bench.crash()
    answers += bench.observe("a", late[:33])
    bench.crash()
    answers += bench.observe("a", [Observation(x=each.x) for each in late[33:40]] + late[40:])
    expected = plain.observe("a", early + late[:33])
    expected += plain.observe("a", [Observation(x=each.x) for each in late[33:40]] + late[40:])
    close(answers, expected)
    (record, *_) = bench.records("a")
    assert record.y is None
    assert wire.encode(record)
