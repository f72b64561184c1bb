"""A slab whose kernel is compiled, beside one that steps eagerly."""

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from model_core import kernel
from model_core.upm import untrained
from model_core.upm.builtin import Options, build
from service.schema.members import ABSENT
from service.wire import Configure, Observation, Record
from service.worker.streams.answers import Answer, Place, Summarised, fill
from service.worker.streams.slab import Slab
from tests.service.worker.conftest import close_to

STREAMS, STEPS = 40, 25
KINDS = {
    "gaussian": Options(y_dim=2),
    "averaged": Options(),
    "linear": Options(x_dim=2),
    "poisson": Options(),
    "categorical": Options(classes=3),
    "bernoulli": Options(),
}
LEARNED = {
    "alpaca": untrained.alpaca(6, outputs=2),
    "alpaca-known": untrained.alpaca(6, known_noise=True),
    "alpaca-lags": untrained.alpaca(6, lags=2),
    "alpaca-lags-alone": untrained.alpaca(6, inputs=0, lags=2),
    "pcoc": untrained.pcoc(2, features=6),
    "fleet": untrained.fleet(6, outputs=2),
    "fleet-lags": untrained.fleet(6, lags=2),
}


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def slab_of(name):
    model = LEARNED[name] if name in LEARNED else build(name, KINDS[name])
    slab = Slab(model, 10, "cpu", chunk_bytes=1)  # a row to a chunk but the first
    size = slab.model.scaled
    return slab, slab.begin([[2.0] * size] * STREAMS, [[1.5] * size] * STREAMS)


def beside(name):
    """Two slabs alike, the second with its kernel."""
    eager, compiled = slab_of(name), slab_of(name)
    compiled[0].compile()
    compiled[0]._compiled.compile()  # waits for it
    return eager, compiled


def label(model, rng):
    if rng.random() < 0.1:
        return None
    match model.label:
        case "count":
            return float(rng.poisson(20))
        case "binary" | "class":
            return float(rng.integers(0, 2))
    y = rng.normal(size=model.y_dim) * 3 + 2
    return y.tolist() if model.y_dim > 1 else float(y[0])


def records(model, rng, seq):
    return [
        Record(
            seq,
            label(model, rng),
            rng.normal(size=model.x_dim).tolist() if model.x_dim else None,
            None,
            float(rng.choice([0.0, 1.0, 1.0, 2.5])),
            float(rng.choice([0.3, 1.0])) if rng.random() < 0.1 else None,
            (0.05, 0.02) if row % 7 == 0 else 0.01,
            0.01 if row % 3 else 0.0,
        )
        for row in range(STREAMS)
    ]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", [*KINDS, *LEARNED])
def test_it_steps_and_answers_as_the_eager_one(name):
    (eager, rows), (compiled, own) = beside(name)
    rng = np.random.default_rng(2)
    for seq in range(STEPS):
        chosen = rng.permutation(STREAMS)[:30].tolist()
        told = records(eager.model, rng, seq)
        told = [told[i] for i in chosen]
        watched = [int(rng.integers(0, seq + 1)) for _ in chosen], [0.1] * len(chosen)
        first = eager.step([rows[i] for i in chosen], told, *watched)
        second = compiled.step([own[i] for i in chosen], told, *watched)
        assert all(isinstance(each, Summarised) for each in second.places)
        for one, other in zip(first.readouts, second.readouts, strict=True):
            assert other.regime is one.regime is None
            for field, value, mine in zip(one._fields[:-1], one[:-1], other[:-1], strict=True):
                assert mine == pytest.approx(value, rel=1e-10, abs=1e-11, nan_ok=True), field
        check_answers(told, first, second)
    for row, mine in zip(rows, own, strict=True):
        one, other = eager.state(row), compiled.state(mine)
        alive = torch.isfinite(one.belief.log_prob)
        assert torch.allclose(one.belief.log_prob[alive], other.belief.log_prob[alive], atol=1e-10)
        assert torch.equal(one.belief.run_length[alive], other.belief.run_length[alive])
        assert torch.allclose(one.totals, other.totals, rtol=1e-12)


def check_answers(told, first, second):
    pairs = [[Answer("a", "m@1", record) for record in told] for _ in range(2)]
    for answers, step in zip(pairs, (first, second), strict=True):
        for answer, readout, place in zip(answers, step.readouts, step.places, strict=True):
            answer.readout, answer.place = readout, place
        fill(answers)
    for one, other in zip(*pairs, strict=True):
        if one.predictive.probabilities is not ABSENT:
            mine = other.predictive.probabilities
            assert mine == pytest.approx(one.predictive.probabilities, abs=1e-11)
            continue
        assert other.predictive.mean == pytest.approx(one.predictive.mean, rel=1e-10)
        variances = zip(one.predictive.variance, other.predictive.variance, strict=True)
        assert all(mine == pytest.approx(row, rel=1e-10, abs=1e-10) for row, mine in variances)
        for level, values in one.predictive.quantiles.items():
            assert other.predictive.quantiles[level] == pytest.approx(values, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name", LEARNED)
def test_a_series_of_a_learned_model_is_its_steps_one_by_one(name):
    (eager, rows), (compiled, own) = beside(name)
    rng = np.random.default_rng(3)
    assert compiled.in_series
    told = [records(eager.model, rng, seq)[1] for seq in range(20)]
    steps = [eager.step(rows[:1], [record], [0], [0.1]) for record in told]
    found = compiled.series(own[0], told, 0, 0.1)
    assert len(found.readouts) == len(told)
    for step, readout, place in zip(steps, found.readouts, found.places, strict=True):
        assert isinstance(place, Summarised)
        assert readout.log_score == pytest.approx(
            step.readouts[0].log_score, abs=1e-10, nan_ok=True
        )
        assert readout.mean_run_length == pytest.approx(step.readouts[0].mean_run_length, rel=1e-10)
    one, other = eager.state(rows[0]), compiled.state(own[0])
    assert torch.allclose(one.context, other.context, atol=1e-12)
    alive = torch.isfinite(one.belief.log_prob)
    for mine, expected in zip(other.stats, one.stats, strict=True):
        assert torch.allclose(mine[alive], expected[alive], rtol=1e-10, atol=1e-10)


def test_rows_that_name_details_are_stepped_eagerly():
    (_, _), (compiled, rows) = beside("averaged")
    rng = np.random.default_rng(4)
    told = records(compiled.model, rng, 0)
    detailed = [i % 4 == 0 for i in range(STREAMS)]
    step = compiled.step(rows, told, [0] * STREAMS, None, detailed)
    for place, wanted in zip(step.places, detailed, strict=True):
        assert isinstance(place, Place if wanted else Summarised)
    assert [each.hypotheses for each in step.readouts] == [1] * STREAMS


def test_a_label_that_is_too_far_off_is_refused_by_both():
    (eager, rows), (compiled, own) = beside("averaged")
    rng = np.random.default_rng(6)
    told = records(eager.model, rng, 0)
    told[3].y = 1e200
    steps = [each.step(at, told, [0] * STREAMS) for each, at in ((eager, rows), (compiled, own))]
    for step in steps:
        assert [readout.ok for readout in step.readouts] == [i != 3 for i in range(STREAMS)]
    assert int(compiled.state(own[3]).seq) == 0
    assert isinstance(steps[1].places[3], Place)


def test_a_slab_steps_eagerly_until_its_kernel_is_ready():
    slab, rows = slab_of("averaged")
    told = records(slab.model, np.random.default_rng(8), 0)
    kinds = [type(slab.step(rows, told, [0] * STREAMS).places[0])]
    slab.compile()
    slab._compiled.compile()
    kinds.append(type(slab.step(rows, told, [0] * STREAMS).places[0]))
    with kernel.eager_only():
        kinds.append(type(slab.step(rows, told, [0] * STREAMS).places[0]))
    assert kinds == [Place, Summarised, Place]


GIVEN = {
    "averaged": {"location": [4.0], "scale": [2.0]},
    "gaussian": {"location": [4.0], "scale": [2.0]},
    "poisson": {"location": [4.0]},
    "categorical": {"classes": 4},
}


@pytest.mark.parametrize("model", GIVEN)
def test_a_worker_answers_as_without_kernels(make_bench, model):
    answers = []
    for compiles in (False, True):
        bench = make_bench(db=int(compiles), partitions=1)
        bench.worker.engine.compiles = compiles
        bench.ask(Configure("a", {"model": model, **GIVEN[model]}), status=201)
        bench.observe("a", [1.0, 2.0])
        for slab in bench.worker.engine._slabs.values():
            if compiles:
                slab._compiled.compile()  # waits for it
        own = bench.observe("a", [1.0, 3.0, None, 2.0])
        bench.crash()  # what is stored is stepped through again
        own += bench.observe("a", [0.0, 1.0])
        own += bench.observe("a", [1.0], components=True)
        own += bench.observe("a", [0.0, None, 1.0, 1.0], belief=True)
        answers.append(own)
    close_to(*answers, 1e-7)


def test_a_worker_answers_for_an_artifact_as_without_kernels(make_bench, alpaca):
    rng = np.random.default_rng(9)
    coming = [
        Observation(
            y=None if at % 9 == 5 else rng.normal(size=2).tolist(), x=rng.normal(size=2).tolist()
        )
        for at in range(60)
    ]
    answers = []
    for compiles, part in ((False, 7), (True, 1), (True, 7)):
        bench = make_bench(db=len(answers), partitions=1)
        bench.worker.engine.compiles = compiles
        bench.ask(Configure("a", {"model": "pump@1"}), status=201)
        own = bench.observe("a", coming[:1])
        for slab in bench.worker.engine._slabs.values():
            assert compiles == (slab._compiled is not None)
            if compiles:
                slab._compiled.compile()  # waits for it
        own += bench.observe("a", coming[1:40], part=part)
        bench.crash()  # what is stored is stepped through again
        own += bench.observe("a", coming[40:], part=part)
        answers.append((own, [record.seq for record in bench.records("a")]))
    for found, kept in answers[1:]:
        close_to(found, answers[0][0], 1e-7)
        assert kept == answers[0][1]


@pytest.mark.parametrize("name", ["gaussian", "averaged", "alpaca-lags"])
def test_beliefs_of_a_series_are_those_after_its_steps(name):
    (eager, rows), (compiled, own) = beside(name)
    rng = np.random.default_rng(9)
    told = [records(eager.model, rng, seq)[1] for seq in range(25)]  # more than hypotheses
    expected = []
    for record in told:
        eager.step(rows[:1], [record], [0], [0.1])
        expected.append(eager.belief(rows[0]))
    found = compiled.series(own[0], told, 0, 0.1, believed=True)
    for mine, belief in zip(found.beliefs, expected, strict=True):
        assert mine.run_length == belief.run_length == sorted(belief.run_length)
        assert mine.probability == pytest.approx(belief.probability, abs=1e-10)
    assert len(found.beliefs[0].run_length) == 1
    assert max(len(each.run_length) for each in found.beliefs) > 5
    assert found.beliefs[-1] == compiled.belief(own[0])
    assert compiled.series(own[1], told, 0, 0.1).beliefs is None


def test_a_series_with_beliefs_is_one_without():
    """Answers, states and the observation that is refused are the same."""
    (_, _), (compiled, own) = beside("averaged")
    rng = np.random.default_rng(10)
    told = [records(compiled.model, rng, seq)[1] for seq in range(12)]
    told[9].y = 1e200
    plain, believed = (compiled.series(own[i], told, 0, 0.1, believed=i > 0) for i in range(2))
    assert len(believed.beliefs) == len(believed.readouts) == len(plain.readouts) == 9
    for one, other in zip(plain.readouts, believed.readouts, strict=True):
        pairs = zip(one, other, strict=True)
        assert all(np.array_equal(*np.array(pair, dtype=float), equal_nan=True) for pair in pairs)
    for one, other in zip(plain.places, believed.places, strict=True):
        mine, theirs = (p.summary.rows([p.row]).numbers for p in (one, other))
        assert np.array_equal(mine, theirs, equal_nan=True)
    states = [compiled.state(own[i]) for i in range(2)]
    assert torch.equal(states[0].belief.log_prob, states[1].belief.log_prob)
