"""Hazards in all their forms: what each observation met is kept, and met again after a reload."""

import pytest

from model_core import hazard as tables
from service.schema import observations as schemas
from service.wire import Configure, Durations, Observation, Predict, RunLength
from tests.service.worker.kinds import KINDS, publish, series

KNOWN = {"location": [0.0], "scale": [1.0]}
FORMS = [0.05, [0.0, 0.0, 0.2], {"mean": 12.5, "shape": 4.0}, [1.0, 0.1], None, [0.3], 0.5]
MET = [0.05, (0.0, 0.0, 0.2), Durations(12.5, 4.0), (1.0, 0.1), 0.01, (0.3,), 0.5]


@pytest.mark.parametrize("leave", ["stop", "crash"])
def test_changed_under_way_between_all_forms(make_bench, close, leave):
    bench, plain = make_bench(checkpoint_every=16), make_bench(db=1)
    observations = series(KINDS["gaussian"], 12 * len(FORMS))
    for each in (bench, plain):
        each.ask(Configure("a", KNOWN), status=201)
    for i, hazard in enumerate(FORMS):
        found = []
        for each in (bench, plain):
            said = each.ask(Configure("a", {"hazard": hazard}))
            assert said["settings"]["hazard"] == hazard
            answers = each.observe("a", observations[12 * i : 12 * i + 5])
            if each is bench:
                getattr(bench, leave)()
            answers += each.observe("a", observations[12 * i + 5 : 12 * i + 12])
            found.append((answers, each.ask(RunLength("a")), each.ask(Predict("a"))))
        close(*map(list, found))
    assert [record.hazard for record in bench.records("a")] == [
        met for met in MET for _ in "x" * 12
    ]


def test_each_form_means_its_table(make_bench, close):
    """A number is a table of one, and durations are theirs; so are streams of several forms."""
    bench, observations = make_bench(partitions=1), series(KINDS["gaussian"], 60)
    table = tables.negative_binomial(9.0, 3.0)
    assert len(table) <= schemas.MAX_TABLE
    pairs = [(0.07, [0.07]), ({"mean": 9.0, "shape": 3.0}, list(table)), ([0.1, 0.1], 0.1)]
    for i, pair in enumerate(pairs):
        for name, hazard in zip("ab", pair, strict=True):
            bench.ask(Configure(f"{name}{i}", {**KNOWN, "hazard": hazard}), status=201)
    answers = {}
    for at in range(0, 60, 10):  # streams of every form in one batch
        for name in (f"{n}{i}" for i in range(3) for n in "ab"):
            answers[name] = bench.observe(name, observations[at : at + 10])
    for i in range(3):
        for a, b in zip(answers[f"a{i}"], answers[f"b{i}"], strict=True):
            close({**a, "stream": ""}, {**b, "stream": ""})


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "hazard",
    [
        {"mean": 1.0, "shape": 2.0},
        {"mean": 1 + 1e-12, "shape": schemas.MAX_SHAPE},
        {"mean": schemas.MAX_DURATION, "shape": schemas.MAX_SHAPE},
        {"mean": schemas.MAX_DURATION, "shape": schemas.MIN_SHAPE},
        {"mean": 2.0, "shape": schemas.MIN_SHAPE},
        [1.0],
        [0.0, 1.0],
        [1.0, 0.0],
        [5e-324],
        [0.0] * (schemas.MAX_TABLE - 1) + [1.0],
    ],
)
def test_the_extremes_of_each_form(bench, hazard):
    bench.ask(Configure("a", {**KNOWN, "hazard": hazard}), status=201)
    seen = [Observation(y=float(i % 3), elapsed=1e-6 if i % 4 else 1e6) for i in range(40)]
    answers = bench.observe("a", seen)
    bench.crash()
    answers += bench.observe("a", seen)
    assert [answer["seq"] for answer in answers] == list(range(80))
    assert all(0 <= answer["changed_probability"] <= 1 + 1e-9 for answer in answers)


def test_a_table_of_an_artifact_is_its_streams_default(make_bench, tmp_path):
    publish(tmp_path / "models")
    bench, kind = make_bench(), KINDS["pcoc"]
    bench.ask(Configure("a", {"model": kind.model}), status=201)
    bench.observe("a", series(kind, 5))
    bench.ask(Configure("a", {"hazard": 0.5}))
    bench.observe("a", series(kind, 5))
    assert [record.hazard for record in bench.records("a")] == [None] * 5 + [0.5] * 5


def test_durations_make_changes_come_in_time(bench):
    """After its usual time a regime is expected to end; soon after its start it is not."""
    settings = {**KNOWN, "hazard": {"mean": 20.0, "shape": 1000.0}}
    bench.ask(Configure("a", settings), status=201)
    told = []
    for _ in range(24):
        spread = bench.ask(Predict("a"))["predictions"][0]["predictive"]["variance"][0][0]
        told.append(spread)
        bench.observe("a", [3.0])
    assert told[11] < 0.5 * told[19]
    assert told[11] < told[15] < told[19]
