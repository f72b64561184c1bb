"""Rows of a slab: stepped by a kernel as eagerly, in place while the slab grows."""

import math
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import service.samples
from model_core import artifact, compiled
from model_core.stream import columns, warmup
from model_core.stream.events import NOTHING_WATCHED
from model_core.stream.slab import Slab, SlabMemory
from model_core.stream_settings import DEFAULTS
from model_core.upm.builtin import Options, build
from service.wire import Configure, Observation, Record
from service.worker.streams.answers import LEVELS
from service.worker.streams.step_inputs import past_of
from tests.answers import close

MIB = 1 << 20
SAMPLES = Path(service.samples.__file__).parent / "models"
STREAMS = 20


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def slab_of():
    room = SlabMemory(chunk_bytes=1)  # a row to a chunk, nearly
    slab = Slab(build("averaged", Options()), 10, LEVELS, room=room)
    return slab, slab.begin([[2.0]] * STREAMS, [[1.5]] * STREAMS)


def beside():
    """Two slabs alike, the first without its kernel."""
    eager, compiled = slab_of(), slab_of()
    eager[0]._kernel = None
    return eager, compiled


def records(y):
    return [Record(0, y + i, None, None, 1.0, None, 0.01, 0.01) for i in range(STREAMS)]


# --- the kernel ---------------------------------------------------------------------------------


def test_a_replayed_observation_that_breaks_the_step_counts_as_missing():
    (eager, rows), (compiled, own) = beside()
    told = records(1.0)
    told[3].y = 1e200
    for slab, at in ((eager, rows), (compiled, own)):
        readouts = list(slab.replay(at[0], past_of(slab.model, told)))
        assert all(readout.ok for readout in readouts)
        assert np.isnan([readout.log_score for readout in readouts]).nonzero()[0].tolist() == [3]
        assert slab.row(at[0]).seq == STREAMS


def test_torch_answers_as_the_kernel_of_labels_with_a_season_and_of_one_that_is_refused():
    (eager, rows), (compiled, own) = beside()
    y = np.linspace(0.0, 6.0, STREAMS)[:, None]
    for wrong in (None, 2):
        seen = seen_of(y + 0.5, [0.01])._replace(offset=np.linspace(-1.0, 1.0, STREAMS)[:, None])
        if wrong is not None:
            seen.y[wrong] = 1e200
        watched = [NOTHING_WATCHED] * STREAMS
        for i, (step, other) in enumerate(
            zip(eager.step(rows, seen, watched), compiled.step(own, seen, watched), strict=True)
        ):
            assert step.readout.ok == other.readout.ok == (i != wrong)
            if i == wrong:
                assert math.isnan(step.anomaly)
                continue
            assert step.anomaly == pytest.approx(other.anomaly, rel=1e-9, nan_ok=True)
            assert step.uncorrected == pytest.approx(other.uncorrected, rel=1e-4)
            numbers = step.predictive.numbers(0.0), other.predictive.numbers(0.0)
            np.testing.assert_allclose(*numbers, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", [True, False])
def test_a_label_that_is_refused_is_not_the_last_one_of_a_held_series(kernel):
    slab = Slab(build("averaged", Options()), 10, LEVELS)
    if not kernel:
        slab._kernel = None
    rows = slab.begin([[2.0]] * 2, [[1.5]] * 2, [[0.0, 2.0], None])
    scored = []
    for label in (1.0, 1.0, 1e200, 1.0, 1.0, 3.0, 3.0):
        seen = seen_of(np.array([[label], [1.5]]), [0.01])
        held, other = slab.step(rows, seen, [NOTHING_WATCHED] * 2)
        assert other.readout.ok
        assert not math.isnan(other.readout.log_score)
        assert held.readout.ok == (label < 1e200)
        scored.append(not math.isnan(held.readout.log_score) and held.readout.ok)
    assert scored == [True, False, False, False, True, True, False]


def test_the_kernel_foresees_labels_that_lack_outputs_as_torch():
    rng = np.random.default_rng(7)
    model = build("joint", Options(y_dim=3))
    eager, compiled = (Slab(model, 10, LEVELS) for _ in range(2))
    eager._kernel = None
    at = [slab.begin([[1.0, 2.0, 3.0]] * 2, [[1.5] * 3] * 2) for slab in (eager, compiled)]
    for t in range(12):
        y = rng.normal(size=(2, 3)) + np.arange(3)
        if t > 6:
            y[0, t % 3] = np.nan
        told = seen_of(y, [0.01])
        ours, theirs = (
            slab.step(rows, told, [NOTHING_WATCHED] * 2)
            for slab, rows in zip((compiled, eager), at, strict=True)
        )
        for one, other in zip(ours, theirs, strict=True):
            numbers = one.predictive.numbers(0.0), other.predictive.numbers(0.0)
            np.testing.assert_allclose(*numbers, rtol=1e-4, atol=1e-4)
            assert one.anomaly == pytest.approx(other.anomaly, rel=1e-6)
    for one, other in zip(compiled.each(at[1]), eager.each(at[0]), strict=True):
        np.testing.assert_allclose(one.lines, other.lines, rtol=1e-6, atol=1e-9)


def test_a_row_that_was_removed_is_read_no_more():
    slab, rows = slab_of()
    slab.remove(rows[3])
    for wanted in ([rows[3]], [rows[0], rows[3]], rows):
        with pytest.raises(KeyError, match=rf"\[{rows[3]}\] were removed"):
            list(slab.each(wanted))


def predicted(slab, row, count):
    seen = past_of(slab.model, records(0.0)[:count]).seen
    return slab.predicted(row, columns.packed(slab.model, seen), [0.5]).numbers


def test_what_is_predicted_takes_no_rows_and_no_memory_of_many():
    (large, rows), (small, own) = slab_of(), slab_of()
    small.step_rows = 2
    np.testing.assert_array_equal(predicted(small, own[0], 7), predicted(large, rows[0], 7))
    assert small.rows == large.rows == STREAMS


@pytest.mark.parametrize("regimes", [0, 2])
def test_components_and_draws_are_the_same_whatever_slots_hypotheses_are_in(regimes):
    slab = Slab(build("averaged", Options()), 10, LEVELS, regimes=regimes)
    (row,) = slab.begin([[0.0]], [[1.0]])
    for y in (*np.linspace(-1.0, 1.0, 30), *np.linspace(4.0, 6.0, 12)):
        slab.step([row], seen_of(np.array([[y]]), [0.05]), [NOTHING_WATCHED])
    coming = columns.packed(slab.model, seen_of(np.full((1, 1), np.nan), [0.05]))
    mixture, run_lengths = slab.mixture(row, coming)
    alive = [length for length in run_lengths if length is not None]
    assert alive == sorted(alive)
    assert len(set(alive)) > 5
    assert run_lengths[: len(alive)] == alive
    own = slab.row(row)
    lines = own.lines.copy()
    lines[:, : slab.layout.slots] = own.lines[:, : slab.layout.slots][:, ::-1]
    other, of_other = slab.mixture(slab.add(own._replace(lines=lines)), coming)
    assert of_other == run_lengths
    drawn = [each.sample(9, torch.Generator().manual_seed(3)) for each in (mixture, other)]
    torch.testing.assert_close(*drawn, rtol=1e-9, atol=0.0)


def test_a_warm_up_leaves_no_row_where_a_step_fails(monkeypatch):
    slab = Slab(build("averaged", Options()), 10, LEVELS)
    monkeypatch.setattr(slab, "absorb", Mock(side_effect=MemoryError))
    seen = past_of(slab.model, records(0.0)).seen
    with pytest.raises(MemoryError):
        warmup.begun(slab, [seen, seen], [DEFAULTS] * 2)
    assert slab.empty


@pytest.mark.parametrize("name", ["averaged", "gaussian", "poisson", "joint"])
def test_filters_of_warm_ups_begin_together_as_each_alone(name, monkeypatch):
    """Of other lengths and hazards."""
    rng = np.random.default_rng(3)
    model = build(name, Options(y_dim=2 if name == "joint" else 1))
    slab = Slab(model, 10, LEVELS)
    histories = []
    for count, hazard in (
        (3, [0.01]),
        (40, [-1.0, 0.2, 200.0]),
        (90, [0.01]),
        (25, [0.1, 0.02, 0.01]),
    ):
        y = rng.poisson(4.0, (count, model.y_dim)).astype(float)
        y[0] += 1
        histories.append(seen_of(y, hazard))
    histories.append(seen_of(np.ones((30, model.y_dim)), [0.01]))
    settings = [DEFAULTS] * len(histories)
    together = warmup.begun(slab, histories, settings)
    assert together[-1] is None  # no two labels differ
    for seen, row in zip(histories, together, strict=True):
        (alone,) = warmup.begun(slab, [seen], settings[:1])
        assert (alone is None) == (row is None)
        if row is None:
            continue
        one, other = slab.row(row), slab.row(alone)
        for name_of in ("lines", "head"):
            assert getattr(one, name_of).tobytes() == getattr(other, name_of).tobytes()
        with monkeypatch.context() as patched:  # as where a label is refused
            patched.setattr(slab, "absorb", lambda rows, parts: [False] * len(rows))
            (replayed,) = warmup.begun(slab, [seen], settings[:1])
        assert slab.row(replayed).lines.tobytes() == one.lines.tobytes()
        slab.remove(replayed)
        slab.remove(alone)
        slab.remove(row)
    assert slab.empty


def seen_of(y, hazard):
    """Observations with labels (n, d)."""
    count = len(y)
    return columns.Columns(
        y=y,
        x=np.empty((count, 0)),
        elapsed=np.ones(count),
        changepoint=np.full(count, np.nan),
        outlier_rate=np.zeros(count),
        hazard=columns.of_all(np.array(hazard), count),
        offset=np.zeros((count, 1)),
    )


def test_a_worker_answers_as_without_kernels(make_bench, monkeypatch):
    """One by one, in lists, with details, with beliefs, and stepped again after a crash."""
    rng = np.random.default_rng(9)
    y = rng.normal(size=50).tolist()
    coming = [Observation(y=None if i % 9 == 5 else y[i]) for i in range(50)]
    given = {"model": "averaged", "location": [4.0], "scale": [2.0]}
    answers = []
    for kernel_of, part in (
        (lambda model: None, 7),
        (compiled.kernel_of, 1),
        (compiled.kernel_of, 7),
    ):
        monkeypatch.setattr(compiled, "kernel_of", kernel_of)
        bench = make_bench(db=len(answers), partitions=1)
        bench.ask(Configure("a", given), status=201)
        own = bench.observe("a", coming[:20], part=part)
        (slab,) = bench.worker.engine._slabs.values()
        assert slab.in_series == (len(answers) > 0)
        bench.crash()
        own += bench.observe("a", coming[20:30], part=part)
        own += bench.observe("a", coming[30:40], part=part, components=True)
        own += bench.observe("a", coming[40:], part=part, belief=True)
        answers.append(own)
        assert [record.seq for record in bench.records("a")] == list(range(50))
    predicted = [[answer.pop("predictive") for answer in own] for own in answers]
    for found in predicted[1:]:  # kernels merge hypotheses for quantiles, which correct forecasts
        close(found, predicted[0], 1e-3)
    for found in answers[1:]:
        close(found, answers[0], 1e-7)


# --- memory -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def regimes():
    return artifact.load(SAMPLES / "regimes" / "1")


def test_rows_stay_where_they_are_while_a_slab_grows(regimes):
    """As the worker looks at it meanwhile: what was taken for rows to come is not given back."""
    slab = Slab(regimes, 50, LEVELS, room=SlabMemory(64 * MIB))
    rows = []
    for count in (1, 15, 17, 40):
        rows += slab.begin([[0.0]] * count, [[1.0]] * count)
        held, places = slab.nbytes, slab._chunks.places(rows)
        assert slab.trim(eager=False) == 0
        assert slab.nbytes == held
        for (chunk, lying, _), (before, was, _) in zip(
            slab._chunks.places(rows), places, strict=True
        ):
            assert chunk is before
            assert lying.tolist() == was.tolist()
    for row in rows[5:]:
        slab.remove(row)
    assert slab.trim(eager=False) > 0
    assert slab.trim() > 0
    for row in rows[:5]:
        slab.remove(row)
    slab.trim(eager=False)
    assert slab.nbytes == 0
