"""The segmentation in hindsight: what an evaluation computes, kept beside the stream."""

import math
import random

import pytest
from msgspec.structs import replace
from torch.utils._pytree import tree_leaves

from model_core.defaults import Defaults
from model_core.upm.builtin import Options, build
from service import wire
from service.store import keys
from service.store.worker_reads import CHUNK, phase_of
from service.wire import Configure, Delete, EventFeedback, Move, Observation, SegmentHistory
from service.worker import background_jobs
from service.worker.commands import rerun, rerun_commands
from training.evaluation.online import Settings, segmentation

LEVELS = [0.0, 3.0, -2.0, 5.0]


def labels(model, count, seed=5):
    """Regimes of 30 observations, as labels of the model."""
    rng = random.Random(seed)
    y = [rng.gauss(LEVELS[t // 30 % 4], 1.0) for t in range(count)]
    if model == "poisson":
        return [float(round(abs(10 * value))) for value in y]
    if model == "exponential":
        return [abs(value) + 0.1 for value in y]
    if model == "bernoulli":
        return [float(value > 2) for value in y]
    return y


def stored(bench, stream="a"):
    """The stored segmentation in hindsight, after its checksum."""
    blob = bench.client.hget(keys.hindsight(bench.partition(stream)), stream)
    if blob is None:
        return None
    return wire.decode_hindsight(wire.checked(blob, "hindsight", stream))


def segment(bench, stream="a"):
    (outcome,) = bench.send(SegmentHistory(stream))
    assert (outcome.status, outcome.body) == (204, [])
    return stored(bench, stream)


def evaluated(model, y):
    """Starts that an evaluation of the labels finds, without the first."""
    return segmentation(build(model, Options()), [[value] for value in y], Settings(Defaults()))


@pytest.fixture
def reruns(monkeypatch):
    """Observations of each rerun."""
    counts = []
    inner = rerun.in_hindsight

    def counting(engine, stream, records):
        counts.append(len(records))
        return (yield from inner(engine, stream, records))

    monkeypatch.setattr(rerun, "in_hindsight", counting)
    return counts


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("model", "seed"),
    [
        *[("averaged", seed) for seed in (1, 2, 3)],
        *[("gaussian", seed) for seed in (1, 2)],
        ("autoregressive", 1), ("poisson", 1), ("exponential", 1), ("bernoulli", 1),
    ],
)  # fmt: skip
def test_is_what_an_evaluation_finds(bench, model, seed):
    y = labels(model, 150, seed)
    bench.ask(Configure("a", {"model": model}), status=201)
    bench.observe("a", y)
    found = segment(bench)
    assert (found.first, found.seq, found.starts[0]) == (0, 150, 0)
    assert found.starts[1:] == evaluated(model, y)
    if model in ("averaged", "gaussian"):
        assert len(found.starts) > 3


def test_location_and_scale_are_those_of_all_labels(bench):
    """A warm-up at another level and scale misleads the online path, and not this one."""
    rng = random.Random(8)
    y = [rng.gauss(0.0, 0.01) for _ in range(20)]
    y += [rng.gauss(100.0 + 40.0 * (t // 50), 5.0) for t in range(150)]
    bench.ask(Configure("a", {"model": "gaussian"}), status=201)
    bench.observe("a", y)
    found = segment(bench)
    assert found.starts[1:] == evaluated("gaussian", y)
    head = bench.head("a")
    assert head.scale[0] < 0.1  # the stream's own stays


def state(bench, stream="a"):
    """Everything that is stored of the stream, and its state on the device."""
    (loaded,) = [s for s in bench.worker.engine.streams.values() if s.name == stream]
    held = loaded.slab.state(loaded.row)
    return bench.stored(stream), [each.tolist() for each in tree_leaves(held)]


def test_the_stream_is_untouched(bench):
    y = labels("averaged", 140)
    for name in ("a", "b"):
        bench.ask(Configure(name, {"model": "averaged"}), status=201)
        bench.observe(name, y)
    before = state(bench)
    assert segment(bench) is not None
    assert state(bench) == before
    more = labels("averaged", 40, seed=9)
    answers = {name: bench.observe(name, more) for name in ("a", "b")}
    assert [{**each, "stream": "b"} for each in answers["a"]] == answers["b"]
    assert bench.events("a") == bench.events("b")


def test_is_kept_until_a_tenth_more_was_observed(bench, reruns):
    y = labels("gaussian", 133)
    bench.ask(Configure("a", {}), status=201)
    bench.observe("a", y[:120])
    first = segment(bench)
    bench.observe("a", y[120:132])
    assert segment(bench) == first
    assert reruns == [120]
    bench.observe("a", y[132:])
    found = segment(bench)
    assert (reruns, found.seq) == ([120, 133], 133)
    assert found.starts[1:] == evaluated("gaussian", y)


def test_several_requests_are_one_rerun(bench, reruns):
    bench.ask(Configure("a", {}), status=201)
    bench.observe("a", labels("gaussian", 60))
    entries = [bench.append(SegmentHistory("a")) for _ in range(3)]
    entries.append(bench.append(SegmentHistory("a"), SegmentHistory("a")))
    found = bench.outcomes([number for entry in entries for number in entry])
    assert [outcome.status for outcome in found] == [204] * 5
    assert reruns == [60]


@pytest.mark.parametrize("history", [100, 64])
def test_of_a_stream_longer_than_its_history(bench, history):
    y = labels("averaged", 330)
    bench.ask(Configure("a", {"model": "averaged", "history": history}), status=201)
    bench.observe("a", y)
    found = segment(bench)
    # History is retained in whole chunks.
    assert 330 - history - CHUNK < found.first <= 330 - history
    assert found.starts == [
        found.first,
        *(found.first + s for s in evaluated("averaged", y[found.first :])),
    ]


@pytest.mark.parametrize("way", ["crash", "stop"])
def test_after_a_restart(bench, way):
    y = labels("averaged", 150)
    bench.ask(Configure("a", {"model": "averaged"}), status=201)
    bench.observe("a", y)
    getattr(bench, way)()
    assert segment(bench).starts[1:] == evaluated("averaged", y)


def test_of_an_evicted_stream(bench):
    y = labels("averaged", 150)
    for name in ("a", "b"):
        bench.ask(Configure(name, {"model": "averaged"}), status=201)
        bench.observe(name, y)
    bench.worker.engine.settings = bench.settings.model_copy(update={"resident_bytes": 1})
    bench.turn()
    assert not bench.worker.engine.streams
    assert segment(bench).starts[1:] == evaluated("averaged", y)


def test_what_is_broken_off_is_done_by_the_next_owner(bench, monkeypatch):
    monkeypatch.setattr(background_jobs.Job, "advance", background_jobs.Job.step)
    y = labels("gaussian", 150)
    bench.ask(Configure("a", {}), status=201)
    bench.observe("a", y)
    asked = bench.append(SegmentHistory("a"))
    for _ in range(4):
        bench.turn()
    assert bench.partition("a") in bench.worker._jobs
    assert stored(bench) is None
    bench.crash()
    assert [outcome.status for outcome in bench.outcomes(asked)] == [204]
    assert stored(bench).starts[1:] == evaluated("gaussian", y)


def test_goes_with_its_stream(bench):
    bench.ask(Configure("a", {}), status=201)
    bench.observe("a", labels("gaussian", 60))
    assert segment(bench) is not None
    bench.send(Delete("a"))
    assert stored(bench) is None
    assert bench.ask(SegmentHistory("a"), status=404)["status"] == 404
    bench.ask(Configure("a", {}), status=201)
    bench.observe("a", labels("gaussian", 60, seed=6))
    assert segment(bench).generation == 2


def test_of_an_earlier_generation_is_computed_anew(bench, reruns):
    """As an older worker leaves it, which deletes the stream and does not know of this."""
    bench.ask(Configure("a", {}), status=201)
    bench.observe("a", labels("gaussian", 60))
    old = segment(bench)
    blob = wire.checksummed(wire.encode(replace(old, generation=0)), "hindsight", "a")
    bench.client.hset(keys.hindsight(bench.partition("a")), "a", blob)
    assert segment(bench).starts == old.starts
    assert reruns == [60, 60]


@pytest.mark.parametrize("damage", [b"", b"\x00nonsense", "flip", "other"])
def test_a_damaged_one_is_computed_anew(bench, reruns, damage):
    bench.ask(Configure("a", {}), status=201)
    bench.observe("a", labels("gaussian", 60))
    found = segment(bench)
    key = keys.hindsight(bench.partition("a"))
    blob = bench.client.hget(key, "a")
    if damage == "flip":
        damage = blob[:5] + bytes([blob[5] ^ 1]) + blob[6:]
    elif damage == "other":
        damage = wire.checksummed(wire.encode(found), "hindsight", "b")
    bench.client.hset(key, "a", damage)
    assert segment(bench).starts == found.starts
    assert reruns == [60, 60]


def test_feedback_and_moves_drop_it(bench):
    rng = random.Random(1)
    y = [rng.gauss(0.0 if t < 60 else 6.0, 1.0) for t in range(120)]
    bench.ask(Configure("a", {"location": [0.0], "scale": [1.0]}), status=201)
    bench.observe("a", y)
    assert segment(bench).starts == [0, 60]
    (event,) = (each for each in bench.events("a") if each.state == "confirmed")
    bench.ask(EventFeedback("a", False, event=event.id))
    assert stored(bench) is None
    assert segment(bench).starts == [0]  # the retained observations say so now
    bench.ask(Move("a", "averaged"))
    assert stored(bench) is None


def test_supervision_and_rates_are_those_that_observations_met(bench):
    """As the online path has them: a later setting is for what comes."""
    rng = random.Random(3)
    y = [rng.gauss(0.0, 1.0) for _ in range(120)]
    seen = [Observation(y=v, changepoint=1.0 if t == 70 else None) for t, v in enumerate(y)]
    bench.ask(Configure("a", {"model": "averaged"}), status=201)
    bench.observe("a", seen)
    bench.ask(Configure("a", {"hazard": 0.9}))
    assert segment(bench).starts == [0, 70]


def test_begins_after_a_lost_observation(bench):
    bench.ask(Configure("a", {}), status=201)
    y = labels("gaussian", 200)
    bench.observe("a", y)
    key, p = keys.history(bench.partition("a"), "a"), phase_of("a")
    chunk = (100 + p) // CHUNK
    blob = bench.client.hget(key, str(chunk))
    assert blob is not None
    bench.crash()
    bench.client.hset(key, str(chunk), blob[:-1])
    found = segment(bench)
    after = (chunk + 1) * CHUNK - p
    assert found.starts == [after, *(after + s for s in evaluated("gaussian", y[after:]))]
    bench.client.hdel(key, str(chunk))
    bench.client.delete(keys.hindsight(bench.partition("a")))
    assert segment(bench).starts == found.starts


def test_refused_while_warming_up(bench):
    bench.ask(Configure("a", {}), status=201)
    bench.observe("a", labels("gaussian", 10))
    assert bench.ask(SegmentHistory("a"), status=409)["type"].endswith("warming-up")
    assert stored(bench) is None


def test_where_labels_are_missing(bench):
    y = labels("averaged", 150)
    missing = {3, 40, 41, 42, 149}
    bench.ask(Configure("a", {"model": "averaged"}), status=201)
    bench.observe("a", [Observation(None if t in missing else v) for t, v in enumerate(y)])
    expected = evaluated("averaged", [math.nan if t in missing else v for t, v in enumerate(y)])
    assert segment(bench).starts[1:] == expected


def test_where_torch_steps_it_covers_fewer(bench, monkeypatch):
    monkeypatch.setattr(rerun_commands, "UNCOMPILED", 70)
    y = labels("gaussian", 300)
    bench.ask(Configure("a", {}), status=201)
    bench.observe("a", y)
    found = segment(bench)
    assert 230 - CHUNK < found.first <= 230
    assert [s - found.first for s in found.starts[1:]] == evaluated("gaussian", y[found.first :])
