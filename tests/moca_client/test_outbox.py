"""The outbox's decisions against a model of the service that loses whatever can be lost."""

import random
import threading
from contextlib import contextmanager, suppress
from functools import partial
from types import SimpleNamespace

import httpx
import msgspec
import pytest

from moca_client import Client, Outbox, outbox, retry
from moca_client.errors import InvalidRequest, OutcomeUnknown, problem_of
from moca_client.outbox import (
    Delivered,
    OutboxError,
    OutboxFull,
    OutboxStore,
    Sender,
)
from moca_client.responses import Answer, HistoryPage, Recorded, StreamSummary
from moca_client.retry import Call
from tests.waiting import PATIENCE_S, Clock


class LossyService:
    """What the service guarantees, and no more: keys may be forgotten, answers lost."""

    def __init__(self, rng, *, history=10_000):
        self.rng, self.history = rng, history
        self.log: dict[str, list[dict]] = {}
        self.keys: dict[tuple[str, str], dict] = {}
        self.late: list[bytes] = []  # requests that were given up, and are still on their way
        self.refuse = 0.0
        self.wreck = 0.0
        self.seen: list[list[dict]] = []

    def answer(self, call: Call):
        request = call.request
        if self.rng.random() < self.wreck:  # lost on its way there; it may still arrive
            if request.content is not None and self.rng.random() < 0.5:
                self.late.append(request.content)
            raise OutcomeUnknown("cut")
        parts = request.path.split("/")
        if request.method == "POST":
            if self.late and self.rng.random() < 0.5:
                self.post(self.late.pop(self.rng.randrange(len(self.late))))
            results = self.post(request.content)
            if self.rng.random() < self.wreck:
                raise OutcomeUnknown("the answer was lost")
            return results
        stream = parts[3]
        if stream not in self.log:
            raise problem_of(404, {"type": "x/unknown-stream"})
        log = self.log[stream]
        if len(parts) == 4:
            return StreamSummary(stream, "m", len(log))
        start = int(dict(request.params)["start"])
        first = max(0, len(log) - self.history)
        kept = [
            Recorded(i, y=log[i]["y"], time=log[i].get("time"))
            for i in range(max(start, first), min(len(log), max(start, first) + 1))
        ]
        return HistoryPage(stream, len(log), "m", first, kept)

    def post(self, content: bytes) -> list:
        results, failed = [], set()
        self.seen.append(msgspec.json.decode(content))
        for item in self.seen[-1]:
            result = None
            if item["stream"] in failed:
                result = {"status": 424, "type": "x/earlier-item-failed"}
            else:
                result = self.apply(item)
            if result["status"] == 200:
                results.append(msgspec.convert(result, Answer))
            else:
                failed.add(item["stream"])
                results.append(problem_of(result["status"], result))
        return results

    def apply(self, item: dict) -> dict:
        log = self.log.setdefault(item["stream"], [])
        known = self.keys.get((item["stream"], item["key"]))
        if known is not None:
            return known
        if self.rng.random() < self.refuse:
            return {"status": self.rng.choice([429, 503]), "type": "x/partition-full"}
        if item.get("seq") not in (None, len(log)):
            result = {"status": 409, "type": "x/seq-conflict", "seq": len(log)}
        elif item["y"] == "bad":
            result = {"status": 422, "type": "x/label-out-of-range"}
        else:
            log.append(item)
            result = {"status": 200, "stream": item["stream"], "seq": len(log) - 1, "model": "m"}
        self.keys[item["stream"], item["key"]] = result
        return result


class Died(BaseException):
    """The end of the outbox's process."""


class Driver:
    """Carries out an outbox's rounds, and may die at any step of them."""

    def __init__(self, service, path, batch=8):
        self.service, self.path, self.batch = service, path, batch
        self.notices: list = []
        self.die = 0.0
        self.open()

    def open(self):
        self.dead = False
        self.store = OutboxStore(self.path, 10_000)
        self.sender = Sender(self.store, self.batch, self, self.notify)

    def live(self):
        """Maybe die: nothing is written after that."""
        if self.service.rng.random() < self.die:
            self.dead = True
            self.store.close()
            raise Died

    def call(self, call, retry_for_s):
        assert retry_for_s == 0.0
        self.live()
        result = self.service.answer(call)
        self.live()
        return result

    def notify(self, notice):
        self.live()
        self.notices.append(notice)
        self.live()

    def round(self, die=0.0) -> bool:
        """Whether the round came to its end."""
        self.die = die
        with suppress(Died):
            self.sender.round()
        if self.dead:
            self.open()
            return False
        self.sender._pauses._until.clear()  # nobody waits here
        return True

    def add(self, stream, y, **rest):
        return self.store.add(stream, msgspec.json.encode({"y": y, **rest}))


@pytest.fixture
def service():
    return LossyService(random.Random(1))


@pytest.fixture
def driver(service):
    driver = Driver(service, None)
    yield driver
    driver.store.close()


@contextmanager
def losing(service, applied):
    """Have posts end without an answer, applied or not."""
    answer = service.answer

    def lose(call):
        post = call.request.method == "POST"
        result = answer(call) if applied or not post else None
        if post:
            raise OutcomeUnknown("lost")
        return result

    service.answer = lose
    yield
    service.answer = answer


def labels(service, stream):
    return [item["y"] for item in service.log.get(stream, [])]


STORMS = [(history, seed) for history in (10_000, 3, 0) for seed in range(6)]


@pytest.mark.parametrize(
    ("history", "seed"),
    [
        pytest.param(*storm, marks=[] if storm[1] == 0 else [pytest.mark.slow], id=f"{storm}")
        for storm in STORMS
    ],
)
def test_nothing_is_lost_or_doubled_whatever_happens(tmp_path, history, seed):
    rng = random.Random(1000 * history + seed)
    service = LossyService(rng, history=history)
    service.wreck, service.refuse = 0.25, 0.1
    driver = Driver(service, tmp_path / "box", batch=rng.choice([1, 3, 8, 40]))
    added: dict[str, list] = {f"s{i}": [] for i in range(4)}
    for i in range(200):
        stream = rng.choice(list(added))
        y = "bad" if rng.random() < 0.03 else rng.choice([float(i), 1.0])
        driver.add(stream, y)
        added[stream].append(y)
        if rng.random() < 0.5:
            driver.round(die=0.15)
        if rng.random() < 0.05:
            service.keys.clear()  # ten minutes later
    service.wreck = service.refuse = 0.0
    for _ in range(500):
        if not driver.store.waiting_count:
            break
        driver.round()
    assert driver.store.waiting_count == 0
    for content in service.late:  # what was on its way arrives after all, with no effect
        service.post(content)
    for stream, posted in added.items():
        assert labels(service, stream) == [y for y in posted if y != "bad"]
    bad = sum(y == "bad" for posted in added.values() for y in posted)
    assert len(driver.store.aside()) == bad
    driver.store.close()


@pytest.mark.parametrize(
    "present",
    [[1.0, 99.0], [1.0, 2.0], []],
    ids=["written to", "written the same to", "begun again"],
)
def test_a_stream_that_somebody_else_changed_gets_what_comes_next(service, driver, present):
    driver.add("s", 1.0)
    driver.round()
    service.log["s"] = [{"y": y} for y in present]
    driver.add("s", 2.0)
    driver.round()
    driver.round()
    assert labels(service, "s") == [*present, 2.0]


def test_too_large_a_batch_is_halved_and_a_single_one_set_aside(service, driver):
    for i in range(6):
        driver.add("s", float(i))
    post = service.post

    def small(content):
        if len(msgspec.json.decode(content)) > 2 or b'"y":4' in content:
            raise problem_of(413, {"type": "x/body-too-large"})
        return post(content)

    service.post = small
    for _ in range(30):
        driver.round()
    assert labels(service, "s") == [0.0, 1.0, 2.0, 3.0, 5.0]
    (aside,) = driver.store.aside()
    assert aside.problem.status == 413
    service.post = post
    for i in range(16):
        driver.add("s", float(i))
    while driver.store.waiting_count:
        driver.round()
    assert max(map(len, service.seen)) == driver.batch  # it has grown again


def test_a_service_that_takes_nothing_loses_nothing(service, driver):
    driver.add("s", 1.0)
    post = service.post
    for status in (401, 403, 404, 500):

        def refuse(content, status=status):
            raise problem_of(status, {"title": "no"})

        service.post = refuse
        for _ in range(10):
            driver.round()
        assert driver.store.waiting_count == 1
        assert str(status) in driver.sender.error
    service.post = post
    driver.round()
    assert (labels(service, "s"), driver.sender.error) == ([1.0], None)


@pytest.mark.parametrize(("kind", "tries"), [("internal-error", 5), ("quarantined", 1)])
def test_a_fault_is_tried_again_and_what_is_quarantined_is_not(service, driver, kind, tries):
    driver.add("s", 1.0)
    driver.add("s", 2.0)
    apply = service.apply

    def fail(item):
        return {"status": 500, "type": f"x/{kind}"} if item["y"] == 1.0 else apply(item)

    service.apply = fail
    for _ in range(7):
        driver.round()
    assert labels(service, "s") == [2.0]
    assert sum(item["y"] == 1.0 for items in service.seen for item in items) == tries
    (aside,) = driver.store.aside()
    assert aside.problem.type == kind


def test_tries_behind_a_refused_observation_do_not_count(service, driver):
    driver.add("s", "bad")
    driver.add("s", 1.0)
    apply = service.apply

    def fail(item):
        return {"status": 500, "type": "x/internal-error"} if item["y"] == 1.0 else apply(item)

    service.apply = fail
    for _ in range(8):
        driver.round()
    sent = [item["seq"] for items in service.seen for item in items if item["y"] == 1.0]
    assert sent == [1, *[0] * outbox.FAULT_TRIES]


def test_what_a_lost_request_did_not_apply_is_not_taken_for_what_another_wrote(service, driver):
    driver.add("s", 2.0)
    with losing(service, applied=False):
        driver.round()
    service.log["s"] = [{"y": 99.0}]
    driver.round()
    driver.round()
    assert labels(service, "s") == [99.0, 2.0]
    assert [notice.answer.seq for notice in driver.notices] == [1]


def test_what_was_applied_is_delivered_though_its_repeat_is_refused(service, driver):
    driver.add("s", 1.0)
    with losing(service, applied=True):
        driver.round()
    service.apply = lambda item: {"status": 422, "type": "x/label-out-of-range"}
    driver.round()
    (notice,) = driver.notices
    assert isinstance(notice, Delivered)
    assert (notice.answer.seq, driver.store.aside_count) == (0, 0)


@pytest.mark.parametrize("y", [[1.0, None], [None, None]])
def test_an_answer_found_in_the_history_is_delivered(service, driver, y):
    driver.add("s", y)
    with losing(service, applied=True):
        driver.round()
    service.keys.clear()
    if y == [None, None]:
        service.log["s"][0]["y"] = None  # as the service keeps it
    driver.round()
    (notice,) = driver.notices
    assert isinstance(notice, Delivered)
    assert (notice.answer.seq, notice.answer.duplicate) == (0, True)
    assert len(service.log["s"]) == 1


def test_pauses_double_for_each_stream_until_it_works(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(outbox, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(retry, "random", SimpleNamespace(uniform=lambda low, high: 1.0))
    pauses = outbox.Pauses()
    assert pauses.left() == {}
    waits = []
    for _ in range(8):
        pauses.fail("a", None)
        waits.append(pauses.left()["a"])
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
    pauses.fail("b", problem_of(429, {}, {"retry-after": "9"}))
    assert pauses.left() == pytest.approx({"a": 5.0, "b": 9.0})
    clock.advance(5.001)
    assert pauses.left() == pytest.approx({"b": 3.999})
    pauses.work("b")
    pauses.fail("b", None)
    pauses.fail("", None)
    assert pauses.left() == pytest.approx({"b": 0.1, "": 0.1})


def test_a_stream_that_pauses_holds_up_no_other_and_is_not_asked_for_meanwhile(
    service, driver, monkeypatch
):
    clock = Clock()
    monkeypatch.setattr(outbox, "time", SimpleNamespace(time=clock, monotonic=clock))
    apply = service.apply

    def busy(item):
        full = {"status": 429, "type": "x/partition-full"}
        return full if item["stream"] == "a" else apply(item)

    service.apply = busy
    driver.add("a", 1.0)
    driver.sender.round()
    driver.add("b", 2.0)
    driver.sender.round()
    pause_s = driver.sender.round()
    assert [[item["stream"] for item in items] for items in service.seen] == [["a"], ["b"]]
    service.apply = apply
    clock.advance(pause_s)
    driver.sender.round()
    assert (labels(service, "a"), labels(service, "b")) == ([1.0], [2.0])


def test_a_service_that_is_away_is_not_asked_meanwhile(service, driver, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(outbox, "time", SimpleNamespace(time=clock, monotonic=clock))
    with losing(service, applied=False):
        driver.add("a", 1.0)
        driver.sender.round()
    pause_s = driver.sender.round()
    assert pause_s > 0.0
    assert labels(service, "a") == []
    clock.advance(pause_s)
    driver.sender.round()
    assert labels(service, "a") == [1.0]


@pytest.mark.parametrize("stream", ["", ".", "..", "\ud800", 7])
def test_a_stream_that_no_request_can_name_would_hold_all_up_and_is_refused(stream):
    transport = httpx.MockTransport(lambda _: httpx.Response(503))
    with Client("http://test", transport=transport) as client, Outbox(client) as box:
        for add in (box.add, partial(box.add_once, source="topic", offset=1)):
            with pytest.raises(InvalidRequest, match="expected a str|expected a stream id"):
                add(stream, 1.0)
        assert box.flush(timeout_s=0.0)


def test_an_outbox_holds_so_many_and_takes_each_offset_of_a_source_once(tmp_path):
    store = OutboxStore(tmp_path / "box", 3)
    assert store.add("s", b"{}", ("topic", 5))
    assert not store.add("s", b"{}", ("topic", 5))
    assert not store.add("s", b"{}", ("topic", 4))
    assert store.add("s", b"{}", ("other", 5))
    assert [item.body for item in store.waiting([], 9, 1)] == [b"{}"]  # one, however large
    assert len(store.waiting([], 9, 4)) == 2
    refusal = problem_of(422, {"title": "unfit"}, {"x-request-id": "r1"})
    store.set_aside(store.waiting([], 1, 100)[0], refusal)
    store.add("s", b"{}")
    for add in (lambda: store.add("s", b"{}"), lambda: store.add("s", b"{}", ("topic", 6))):
        with pytest.raises(OutboxFull):  # what was set aside counts
            add()
    store.close()
    store = OutboxStore(tmp_path / "box", 4)
    assert (store.waiting_count, store.aside_count) == (2, 1)
    (aside,) = store.aside()
    assert (aside.ticket, aside.stream, aside.observation) == (1, "s", {})
    assert str(aside.problem) == "422 unfit"
    assert aside.problem.request_id == "r1"
    store._db.execute(
        "CREATE TEMP TRIGGER kept BEFORE DELETE ON items BEGIN SELECT RAISE(ABORT, 'full'); END"
    )
    with pytest.raises(OutboxError, match="full"):
        store.remove([1], again=True)
    assert (store.waiting_count, store.aside_count) == (2, 1)
    assert not store.add("s", b"{}", ("topic", 5))
    assert store.add("s", b"{}", ("topic", 6))
    store.close()


@pytest.mark.parametrize("state", ["asks", "pauses", "idle"])
def test_nothing_holds_up_the_end_of_an_outbox(tmp_path, state, caplog, monkeypatch):
    """With a request under way, with a service that is away, with nothing to do."""
    monkeypatch.setattr(outbox, "STOP_S", 0.01)
    for count in (1, 2):  # the file can be opened again, and has what was not sent
        begun = threading.Event()
        end = threading.Event()

        def hang(request, begun=begun, end=end):
            begun.set()
            if state == "asks":
                end.wait(PATIENCE_S)
            raise httpx.ConnectError("away")

        client = Client("http://test", transport=httpx.MockTransport(hang))
        box = Outbox(client, tmp_path / "box")
        if state != "idle":
            box.add("s", 1.0)
            begun.wait(PATIENCE_S)
        assert box.close(0.01) == (0 if state == "idle" else count)
        end.set()
        box._thread.join(PATIENCE_S)
        assert not box._thread.is_alive()
        client.close()
    assert "stopped" not in caplog.text


def test_a_sender_that_breaks_says_so_to_its_owner(monkeypatch):
    monkeypatch.setattr(Sender, "round", lambda _: 1 / 0)
    with Client("http://test", transport=httpx.MockTransport(httpx.Response)) as client:
        box = Outbox(client)
        box._thread.join(PATIENCE_S)
        assert box.error == "division by zero"
        for use in (box.flush, box.failed, partial(box.add, "s", 1.0)):
            with pytest.raises(OutboxError, match="stopped sending: division by zero"):
                use()


def test_what_a_callback_raises_holds_up_nothing(caplog):
    def applied(request):
        """Answer as a service that applies all that is posted, to a new stream."""
        if request.method == "GET":
            return httpx.Response(404)
        items = msgspec.json.decode(request.content)
        answers = [
            {"stream": "s", "seq": item["seq"], "model": "m", "status": 200} for item in items
        ]
        return httpx.Response(200, json=answers)

    threads = []

    def note(delivered):
        threads.append(threading.current_thread().name)
        raise RuntimeError("no")

    with (
        Client("http://test", transport=httpx.MockTransport(applied)) as client,
        Outbox(client, on_answer=note) as box,
    ):
        for y in (1.0, 2.0):
            box.add("s", y)
            assert box.flush()
    assert threads == ["moca-outbox"] * 2
    assert "a callback of the outbox failed" in caplog.text
