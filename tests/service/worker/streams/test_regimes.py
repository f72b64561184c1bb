"""A stream that remembers its regimes, on a worker: durable as all else."""

import numpy as np
import pytest

from service.wire import (
    Configure,
    Delete,
    EventFeedback,
    Move,
    NameRegime,
    Regimes,
    RunLength,
    SetBelief,
    WhatIf,
)
from tests.service.worker.conftest import confirmed
from tests.service.worker.kinds import publish

LEVELS = [0.0, 7.0, -6.0]


def labels(count, seed=3):
    rng = np.random.default_rng(seed)
    levels = np.repeat([LEVELS[k % 3] for k in range(count // 30 + 1)], 30)[:count]
    return (levels + rng.normal(size=count)).tolist()


def test_killed_and_replayed_it_keeps_ids_and_numbers(make_bench, close):
    """Wherever it is killed, and whatever is in the tail: no checkpoint is due of itself."""
    bench, plain = make_bench(checkpoint_every=10_000), make_bench(db=1)
    for own in (bench, plain):
        own.ask(Configure("a", {"regimes": 4}), status=201)
    given = labels(420)
    rng = np.random.default_rng(0)
    answers, at = [], 0
    while at < len(given):
        count = int(rng.integers(1, 40))
        answers += bench.observe("a", given[at : at + count])
        at += count
        bench.crash()
    truth = plain.observe("a", given)
    close(answers, truth, 0.0)
    known = [answer.get("regime") for answer in truth]
    assert {regime["id"] for regime in known if regime} >= {1, 2, 3}
    events = confirmed(bench)
    assert events == confirmed(plain)
    assert all(event.returned for event in events[-4:])
    told = [answer["event"] for answer in truth if answer["event"]]
    (served,) = [event for event in told if event["confirmed_at"] == events[-1].confirmed_at][:1]
    assert served["returned"]["id"] == events[-1].returned.id
    records = bench.records("a")
    assert [record.regime and record.regime.id for record in records] == [
        regime and regime["id"] for regime in known
    ]
    assert bench.head("a").regime == records[-1].regime


def test_snapshot_carries_what_is_remembered(make_bench, close):
    bench = make_bench()
    bench.ask(Configure("a", {"regimes": 4}), status=201)
    given = labels(300)
    bench.observe("a", given[:250])
    bench.put("b", bench.export("a"))
    for ours, theirs in zip(
        bench.observe("a", given[250:]), bench.observe("b", given[250:]), strict=True
    ):
        close({**ours, "stream": ""}, {**theirs, "stream": ""}, 0.0)


def test_models_that_recall_nothing_are_refused(bench, tmp_path):
    publish(tmp_path / "models")
    problem = bench.ask(Configure("p", {"model": "leaf", "regimes": 2}), status=422)
    assert "regimes" in problem["detail"]


def test_vectors_have_a_memory_by_default_as_well(bench):
    bench.default_model = "averaged"
    bench.ask(Configure("v", {"regimes": 2}), status=201)
    (answer,) = bench.observe("v", [[1.0, 2.0]])
    assert answer["model"] == "joint"


def test_setting_is_fixed_once_there_are_observations(bench):
    bench.ask(Configure("a", {"regimes": 2}), status=201)
    bench.observe("a", labels(30))
    problem = bench.ask(Configure("a", {"regimes": 3}), status=409)
    assert "regimes" in problem["detail"]


def test_feedback_beliefs_and_other_settings(make_bench, close):
    """Reruns and overrides of the belief go through what is remembered, and survive a crash."""
    bench, plain = make_bench(), make_bench(db=1)
    given = labels(300)
    for own in (bench, plain):
        own.ask(Configure("a", {"regimes": 4}), status=201)
        own.observe("a", given[:200])
        own.ask(EventFeedback("a", False, confirmed(own)[1].id))
        own.ask(SetBelief("a", [(3, 0.5), (9, 0.5)]))
        tried = own.ask(WhatIf("a", {"regimes": 0}))
        assert tried["seq"] == 200
    bench.crash()
    found, expected = (own.observe("a", given[200:]) for own in (bench, plain))
    close(found, expected, 0.0)
    belief = bench.ask(RunLength("a"))["belief"]
    lengths = [entry["run_length"] for entry in belief]
    assert lengths == sorted(set(lengths))
    assert sum(entry["probability"] for entry in belief) == pytest.approx(1, abs=1e-9)
    bench.crash()
    close(bench.observe("a", given[:40]), plain.observe("a", given[:40]), 0.0)
    assert any(answer.get("regime") for answer in found)


def remembered(bench, stream="a"):
    return {regime["id"]: regime for regime in bench.ask(Regimes(stream))["regimes"]}


def test_regimes_are_listed_with_what_they_say_of_the_next_label(bench):
    bench.ask(Configure("a", {"regimes": 4}), status=201)
    assert bench.ask(Regimes("a"))["regimes"] == []
    answers = bench.observe("a", labels(220))
    answer = bench.ask(Regimes("a"))
    assert (answer["seq"], answer["model"], answer["warming_up"]) == (219, "gaussian", False)
    own = remembered(bench)
    assert sorted(own) == [regime["id"] for regime in answer["regimes"]] == [1, 2, 3]
    means = sorted(regime["predictive"]["mean"][0] for regime in own.values())
    assert means == pytest.approx(sorted(LEVELS), abs=0.5)
    for regime in own.values():
        assert 0.6 < regime["predictive"]["variance"][0][0] < 2.5
    present = max(own.values(), key=lambda regime: regime["probability"])
    now = answers[-1]["regime"]
    assert (present["id"], present["last_seen"]) == (now["id"], now["last_seen"])
    assert present["probability"] == pytest.approx(now["probability"], abs=1e-12)
    assert bench.ask(Regimes("a")) == answer  # it changes nothing
    bench.ask(Configure("plain", {}), status=201)
    bench.observe("plain", labels(60))
    assert bench.ask(Regimes("plain"))["regimes"] == []


def test_names_are_given_taken_away_and_kept(make_bench):
    """They are in all answers and events from then on, whatever happens to worker and stream."""
    bench = make_bench()
    bench.ask(Configure("a", {"regimes": 4}), status=201)
    given = labels(420)
    bench.observe("a", given[:220])
    problem = bench.ask(NameRegime("a", 9, "idle"), status=404)
    assert problem["type"].endswith("/unknown-regime")
    assert "remembered: 1, 2, 3" in problem["detail"]
    for id_, own in remembered(bench).items():
        name = f"level {round(own['predictive']['mean'][0])}"
        assert bench.ask(NameRegime("a", id_, name)) == {**own, "name": name}
    names = {id_: own["name"] for id_, own in remembered(bench).items()}
    assert bench.head("a").regime.name == names[bench.head("a").regime.id]
    bench.crash()
    answers = bench.observe("a", given[220:320])
    seen = {(own["id"], own["name"]) for own in map(regime_of, answers) if own}
    assert seen == set(names.items())
    event = confirmed(bench)[-1]
    assert event.returned.name == names[event.returned.id]
    assert event.sentence.startswith(
        f"returned to regime {event.returned.id} ({event.returned.name}), "
        f"last seen at {event.returned.last_seen}"
    )
    bench.put("b", bench.export("a"))
    assert {id_: own["name"] for id_, own in remembered(bench, "b").items()} == names
    assert bench.ask(NameRegime("a", 1))["name"] is None
    bench.crash()
    assert remembered(bench)[1]["name"] is None
    assert bench.head("a").regime_names == {id_: names[id_] for id_ in (2, 3)}
    bench.ask(Delete("a"), status=204)
    bench.ask(Configure("a", {"regimes": 4}), status=201)
    bench.observe("a", given[:220])
    assert {own["name"] for own in remembered(bench).values()} == {None}


def test_names_of_what_is_not_remembered_any_more_are_dropped(bench):
    bench.ask(Configure("a", {"regimes": 1}), status=201)
    given = labels(300)
    bench.observe("a", given[:100])
    (first,) = remembered(bench)
    bench.ask(NameRegime("a", first, "early"))
    bench.observe("a", given[100:])
    (last,) = remembered(bench)
    assert last > first
    bench.ask(NameRegime("a", last, "late"))
    assert bench.head("a").regime_names == {last: "late"}


def test_a_move_keeps_ids_and_names_of_the_regimes_it_finds_again(bench):
    bench.ask(Configure("a", {"model": "gaussian", "regimes": 4}), status=201)
    given = labels(300)
    bench.observe("a", given[:250])
    before = remembered(bench)
    for id_ in before:
        bench.ask(NameRegime("a", id_, f"level {id_}"))
    bench.ask(Move("a", "averaged"))
    bench.crash()
    after = remembered(bench)
    kept = before.keys() & after.keys()
    assert kept
    for id_, own in after.items():
        if id_ in kept:
            assert own["name"] == f"level {id_}"
            mean = own["predictive"]["mean"]
            assert mean == pytest.approx(before[id_]["predictive"]["mean"], abs=1.0)
        else:
            assert (id_ > max(before), own["name"]) == (True, None)
    answers = bench.observe("a", given[250:])
    names = {own["id"]: own["name"] for own in map(regime_of, answers) if own}
    assert any(names.values())


def test_a_rerun_keeps_ids_and_names_of_the_regimes_it_finds_again(bench):
    bench.ask(Configure("a", {"regimes": 4}), status=201)
    given = labels(300)
    bench.observe("a", given[:250])
    before = remembered(bench)
    names = {}
    for id_, own in before.items():
        names[id_] = f"level {round(own['predictive']['mean'][0])}"
        bench.ask(NameRegime("a", id_, names[id_]))
    bench.ask(EventFeedback("a", False, confirmed(bench)[0].id))
    after = remembered(bench)
    kept = [id_ for id_ in after if id_ in before]
    assert kept
    for id_, own in after.items():
        if id_ in before:
            assert own["name"] == names[id_]
            assert own["predictive"]["mean"] == pytest.approx(
                before[id_]["predictive"]["mean"], abs=1.0
            )
        else:  # no id is used again
            assert id_ > max(before)
            assert own["name"] is None
    answers = bench.observe("a", given[250:])
    known = {own["id"]: own["name"] for own in map(regime_of, answers) if own}
    assert known.items() <= {id_: own["name"] for id_, own in remembered(bench).items()}.items()


def regime_of(answer):
    return answer.get("regime")
