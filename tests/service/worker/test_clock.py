"""An API's clock that is stepped by hours and days: order, keys and deadlines do not rest on it."""

import random

from service.wire import Configure, Observation, Observe, Predict, RunLength

HOUR_MS = 3_600_000
STEPS_MS = (1000, HOUR_MS, -HOUR_MS, 30 * HOUR_MS, -30 * HOUR_MS)
SETTINGS = {"model": "gaussian", "location": [0.0], "scale": [1.0], "hazard": 0.02}


def test_a_stepped_clock_changes_neither_the_order_nor_what_a_key_identifies(make_bench, close):
    """Keys are kept for a minute here; a step of hours makes none of the newest ones old."""
    rng = random.Random(7)
    stepped = make_bench(idempotency_keep_s=60.0)
    steady = make_bench(db=1, idempotency_keep_s=60.0)
    for bench in (stepped, steady):
        bench.ask(Configure("a", SETTINGS), status=201)
    labels = [rng.gauss(4.0 * (i > 25), 1.0) for i in range(50)]
    for i, y in enumerate(labels):
        stepped.now_ms += rng.choice(STEPS_MS)
        steady.now_ms += 1000
        own, other = (
            bench.ask(Observe("a", [Observation(y=y)], key=f"k{i}", digest=f"d{i}"))
            for bench in (stepped, steady)
        )
        for name in ("seq", "predictive", "log_score", "evidence", "run_length"):
            close(own[name], other[name])
        stepped.now_ms += rng.choice(STEPS_MS)
        if rng.random() < 0.2:
            stepped.crash()
        earlier = rng.randrange(i + 1)
        repeated = Observe(
            "a", [Observation(y=labels[earlier])], key=f"k{earlier}", digest=f"d{earlier}"
        )
        again = stepped.ask(repeated)
        assert (again["seq"], again["duplicate"]) == (earlier, True)
    assert [record.y for record in stepped.records("a")] == labels
    close(stepped.ask(RunLength("a")), steady.ask(RunLength("a")))
    own, other = (
        [(event.id, event.state, event.start) for event in bench.events("a")]
        for bench in (stepped, steady)
    )
    assert own == other


def test_a_deadline_counts_from_the_append_whatever_the_clock(make_bench):
    bench = make_bench()
    bench.ask(Configure("a", SETTINGS), status=201)
    bench.observe("a", [0.1, 0.2])
    for step_ms in STEPS_MS:
        bench.now_ms += step_ms
        (outcome,) = bench.send(Predict("a"), deadline_ms=bench.now_ms + 60_000)
        assert outcome.status == 200
        (late,) = bench.send(Predict("a"), deadline_ms=bench.now_ms - 60_000)
        assert late.status == 504
