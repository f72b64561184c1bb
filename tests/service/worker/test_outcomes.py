"""Outcomes are stored, published as a hint, and expire; reads past their deadline are skipped."""

import json
import time

import msgspec
import pytest

from service import wire
from service.store import keys
from service.store.append import entry_of
from service.store.connection import connect
from service.wire import Configure, Delete, Observation, Observe, Predict, RunLength
from service.worker.commit import INLINE_BYTES
from tests.service.worker import conftest as bench_of

INCARNATION = "api0"


def test_stored_under_their_number_and_expiring(make_bench):
    bench = make_bench(request_deadline_s=150.0)
    (number,) = bench.append(Observe("a", [Observation(y=1.0)]))
    (outcome,) = bench.outcomes([number])
    assert (outcome.number, outcome.status) == (0, 200)
    key = keys.outcomes(number[0], INCARNATION, 0)
    assert 290_000 < bench.client.pttl(key) <= 300_000


@pytest.fixture
def listener(valkey_url):
    with connect(valkey_url) as client, client.pubsub() as found:
        yield found


def heard(listener):
    """Hints of the next message."""
    end = time.monotonic() + 10
    while (message := listener.get_message(timeout=1)) is None or "message" not in message["type"]:
        assert time.monotonic() < end, "no message came"
    return wire.decode_hints(message["data"])


def test_published_with_the_commit(bench, listener):
    p = bench.partition("a")
    listener.ssubscribe(keys.reply_channel(p, INCARNATION))
    assert listener.get_message(timeout=5)["type"] == "ssubscribe"
    stored = bench.send(*(Observe("a", [Observation(y=float(i))]) for i in range(3)))
    hints = heard(listener)
    assert hints == stored
    assert [outcome.number for outcome in hints] == [0, 1, 2]


def test_of_a_long_outcome_only_the_number_is_published(bench, listener):
    listener.ssubscribe(keys.reply_channel(bench.partition("a"), INCARNATION))
    many = [Observation(y=0.0) for _ in range(32)]
    long, short = bench.send(Observe("a", many), Observe("a", many[:1]))
    assert len(wire.encode(long)) > INLINE_BYTES > len(wire.encode(short))
    assert heard(listener) == [long.number, short]


def test_an_earlier_api_hears_whole_outcomes_on_its_one_channel(bench, listener, monkeypatch):
    """Its entries do not say that it listens on the channels of partitions."""
    p = bench.partition("a")
    listener.ssubscribe(keys.reply_channel(p, INCARNATION))
    listener.subscribe(keys.plain_reply_channel(INCARNATION))
    monkeypatch.setattr(bench_of, "entry_of", earlier_entry)
    (outcome,) = bench.send(Observe("a", [Observation(y=0.0) for _ in range(32)]))
    assert len(wire.encode(outcome)) > INLINE_BYTES
    assert heard(listener) == [outcome]
    assert listener.get_message(timeout=0.1) is None


def earlier_entry(partition, incarnation, commands):
    """An entry as APIs wrote it before there were sharded channels."""
    payload, sums = entry_of(partition, incarnation, commands)
    array = msgspec.msgpack.decode(wire.checked(sums, "entry", partition))
    assert array.pop() is True
    return payload, wire.checksummed(msgspec.msgpack.encode(array), "entry", partition)


def test_the_numbers_of_many_share_keys(bench):
    bench.numbers = 1020
    bench.send(*(RunLength("a") for _ in range(8)))
    p = bench.partition("a")
    names = [keys.outcomes(p, INCARNATION, n) for n in (1020, 1024)]
    assert [bench.client.hlen(name) for name in names] == [4, 4]


@pytest.mark.parametrize("command", [RunLength("a"), Predict("a")])
def test_a_read_past_its_deadline_is_skipped(bench, command):
    bench.observe("a", [1.0])
    (late,) = bench.send(command, deadline_ms=1)
    assert late.status == 504
    (early,) = bench.send(command, deadline_ms=bench.now_ms + 60_000)
    assert early.status == 200


def test_what_has_an_effect_has_no_deadline(bench):
    commands = [Configure("a", {}), Observe("a", [Observation(y=1.0)]), Delete("a")]
    outcomes = bench.send(*commands, deadline_ms=1)
    assert [outcome.status for outcome in outcomes] == [201, 200, 204]


def test_reads_see_what_came_before_them(bench):
    bench.observe("a", [float(i % 3) for i in range(30)])
    first, answer, last = bench.send(
        RunLength("a"), Observe("a", [Observation(y=9.0)]), RunLength("a")
    )
    assert json.loads(first.body[0])["seq"] == 29
    assert json.loads(answer.body[0])["seq"] == 30
    assert json.loads(last.body[0])["seq"] == 30


def test_reads_change_nothing(bench):
    bench.ask(Configure("a", {"location": [0.0], "scale": [1.0]}), status=201)
    before = bench.stored("a")
    bench.ask(Predict("a"))
    bench.ask(RunLength("a"))
    assert bench.stored("a") == before
    bench.observe("a", [1.0] * 5)
    before = bench.stored("a")
    bench.ask(Predict("a", samples=3))
    bench.ask(RunLength("a"))
    assert bench.stored("a") == before


class TestAnswers:
    def test_run_length_fits_the_answer(self, bench):
        bench.ask(Configure("a", {"location": [0.0], "scale": [1.0]}), status=201)
        (*_, last) = bench.observe("a", [0.1, -0.3, 5.0, 5.2], belief=True)
        found = bench.ask(RunLength("a"))
        assert found["seq"] == last["seq"] == 3
        for name in ("map", "mean", "hypotheses"):
            assert found["run_length"][name] == pytest.approx(last["run_length"][name])
        belief = last["run_length"]["belief"]
        assert belief["run_length"] == [row["run_length"] for row in found["belief"]]
        assert belief["probability"] == [row["probability"] for row in found["belief"]]
        assert sum(belief["probability"]) == pytest.approx(1)
        assert [row["start"] for row in found["belief"]] == [3, 2, 1, 0]
        for name in ("changed", "changepoint", "recent_change"):
            name = f"{name}_probability"
            assert found[name] == pytest.approx(last[name])
        assert found["run_length"]["quantiles"]["0.5"] in range(4)

    def test_components_make_the_mixture(self, bench):
        bench.ask(Configure("a", {"location": [0.0], "scale": [1.0]}), status=201)
        bench.observe("a", [0.1, -0.3, 5.0, 5.2])
        answer = bench.ask(Predict("a", components=True, quantiles=[0.9, 0.1]))
        assert answer["seq"] == 4
        (found,) = answer["predictions"]
        weights = [each["weight"] for each in found["components"]]
        assert sum(weights) == pytest.approx(1)
        mean = sum(w * c["mean"][0] for w, c in zip(weights, found["components"], strict=True))
        assert found["predictive"]["mean"] == [pytest.approx(mean)]
        assert list(found["predictive"]["quantiles"]) == ["0.9", "0.1"]
        assert found["predictive"]["quantiles"]["0.1"] < found["predictive"]["quantiles"]["0.9"]
        # The last is the outliers'; the others are the run lengths to come.
        assert [each["run_length"] for each in found["components"]] == [0, 1, 2, 3, 4, None]

    def test_a_seed_means_the_same_draws(self, bench):
        bench.observe("a", [float(i % 5) for i in range(60)])
        draws = [bench.ask(Predict("a", samples=4, seed=s)) for s in (1, 1, 2)]
        bench.stop()
        draws.append(bench.ask(Predict("a", samples=4, seed=1)))
        samples = [each["predictions"][0]["samples"] for each in draws]
        assert samples[0] == samples[1]
        for found, expected in zip(samples[3], samples[0], strict=True):
            assert found == pytest.approx(expected)
        assert samples[0] != samples[2]

    def test_huge_counts_are_answered_quickly(self, bench):
        bench.ask(Configure("a", {"model": "poisson", "location": [1e11]}), status=201)
        answers = bench.observe("a", [1e12, 0.0, 1e11, None])
        assert answers[-1]["predictive"]["mean"][0] > 1e9
