"""What is sent again, how often, with which key, and what never is."""

import httpx
import pytest

from service.client import InvalidRequest, OutcomeUnknown, Unavailable, UnexpectedAnswer, errors
from service.client.problems import problem_of
from service.client.retry import KEY_MEMORY_S
from service.errors.base import TYPE_PREFIX, ServiceError
from service.schema.responses import Snapshot
from tests.service.client.conftest import Scripted

ANSWER = {"stream": "s", "seq": 0, "model": "m"}
STATE = {"stream": "s", "seq": 0, "model": "m"}
WHAT_IF = {
    **STATE,
    "first": 0,
    "settings": {"hazard": 0.1},
    "warming_up": False,
    "compared": 0,
    "mean_log_score": None,
    "present_mean_log_score": None,
    "events": [],
    "segmentation": [],
}
LOST, REFUSED = httpx.ReadError, httpx.ConnectError


def said(status, slug="x", **more):
    headers = more.pop("headers", {})
    document = {"type": f"https://x/problems/{slug}", "title": slug, **more}
    return httpx.Response(status, json=document, headers=headers)


def ok(document=ANSWER):
    return lambda request: httpx.Response(200, json=document)


CALLS = {
    "put_stream": (lambda c: c.put_stream("s", {"hazard": 0.1}), STATE),
    "delete_stream": (lambda c: c.delete_stream("s"), {}),
    "observe": (lambda c: c.observe("s", 1.0), ANSWER),
    "observe list": (lambda c: c.observe("s", [1.0]), [ANSWER]),
    "observe_many": (
        lambda c: c.observe_many([{"stream": "s", "y": 1.0}]),
        [{**ANSWER, "status": 200}],
    ),
    "predict": (lambda c: c.predict("s"), {**ANSWER, "predictions": []}),
    "act": (
        lambda c: c.act("s", [[1.0]]),
        {**ANSWER, "strategy": "thompson", "chosen": 0, "candidate": [1.0]},
    ),
    "what_if": (lambda c: c.what_if("s", {"hazard": 0.1}), WHAT_IF),
    "put_run_length at seq": (lambda c: c.put_run_length("s", changepoint=1.0, seq=3), STATE),
    "stream": (lambda c: c.stream("s"), STATE),
    "overview": (lambda c: c.overview("s"), {"streams": []}),
    "run_length": (lambda c: c.run_length("s"), STATE),
    "changepoints": (lambda c: c.changepoints("s"), STATE),
    "snapshot": (lambda c: c.snapshot("s"), {}),
    "models": (lambda c: c.models(), {"models": []}),
}
UNSAFE = {
    "put_run_length": lambda c: c.put_run_length("s", {0: 1.0}),
    "put_snapshot": lambda c: c.put_snapshot("s", Snapshot(b"x")),
    "move_model": lambda c: c.move_model("s", "other"),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("trouble", [LOST, REFUSED, 429, 503, 504])
def test_what_can_be_repeated_is(ask, name, trouble):
    use, document = CALLS[name]
    bad = said(trouble) if isinstance(trouble, int) else trouble
    script = Scripted(bad, bad, ok(document))
    ask(script, use)
    assert len(script.requests) == 3
    assert len({request.content for request in script.requests}) == 1
    (key,) = set(script.headers("idempotency-key"))
    changes = script.requests[0].method in ("PUT", "DELETE") or name.startswith("observe ")
    assert (key is not None) == (changes or name == "observe")


def test_items_have_keys_of_their_own(ask):
    script = Scripted(LOST, ok([{**ANSWER, "status": 200}] * 2))
    ask(script, lambda c: c.observe_many([{"stream": "s", "y": 1.0}] * 2))
    first, again = (httpx.Response(200, content=r.content).json() for r in script.requests)
    assert first == again
    assert len({item["key"] for item in first}) == 2


@pytest.mark.parametrize("name", UNSAFE)
@pytest.mark.parametrize("trouble", [LOST, httpx.ReadTimeout, 504, 503])
def test_what_could_undo_or_double_something_is_never_repeated(ask, name, trouble):
    script = Scripted(said(trouble) if isinstance(trouble, int) else trouble, ok())
    with pytest.raises(OutcomeUnknown, match="may or may not have been applied"):
        ask(script, UNSAFE[name])
    assert len(script.requests) == 1


@pytest.mark.parametrize("name", UNSAFE)
@pytest.mark.parametrize("trouble", [REFUSED, (429, "overloaded"), (503, "redis-unavailable")])
def test_unless_it_was_certainly_not_accepted(ask, name, trouble):
    script = Scripted(said(*trouble) if isinstance(trouble, tuple) else trouble, ok())
    ask(script, UNSAFE[name])
    assert len(script.requests) == 2


def test_a_delete_whose_repeat_finds_nothing_was_done(ask):
    ask(Scripted(LOST, said(404, "unknown-stream")), lambda c: c.delete_stream("s"))
    with pytest.raises(errors.UnknownStream):
        ask(Scripted(said(404, "unknown-stream")), lambda c: c.delete_stream("s"))
    script = Scripted(said(429), said(404, "unknown-stream"))  # nothing was accepted before
    with pytest.raises(errors.UnknownStream):
        ask(script, lambda c: c.delete_stream("s"))


def test_items_refused_for_the_time_being_are_sent_again(ask):
    busy, behind = (
        {"status": status, "type": f"x/{slug}"}
        for status, slug in ((429, "partition-full"), (424, "earlier-item-failed"))
    )
    good = {**ANSWER, "status": 200}
    script = Scripted(ok([busy, good, behind]), ok([good, good]))
    items = [{"stream": stream, "y": 1.0} for stream in "aba"]
    found = ask(script, lambda c: c.observe_many(items))
    assert [type(each).__name__ for each in found] == ["Answer"] * 3
    assert b'"b"' not in script.requests[1].content


def test_items_behind_a_bad_one_are_not(ask):
    bad, behind = {"status": 422, "type": "x/y"}, {"status": 424, "type": "x/earlier-item-failed"}
    script = Scripted(ok([bad, behind]))
    found = ask(script, lambda c: c.observe_many([{"stream": "s", "y": 1.0}] * 2))
    assert [each.status for each in found] == [422, 424]
    assert len(script.requests) == 1


def test_items_whose_repeat_got_no_answer_say_so(ask):
    good, busy = {**ANSWER, "status": 200}, {"status": 429, "type": "x/partition-full"}
    script = Scripted(ok([good, busy]), LOST)
    items = [{"stream": stream, "y": 1.0} for stream in "ab"]
    found = ask(script, lambda c: c.observe_many(items), retries=1)
    assert type(found[0]).__name__ == "Answer"
    assert (found[1].status, found[1].type) == (503, "outcome-unknown")


def test_retries_are_bounded_in_number(ask):
    script = Scripted(said(503, "redis-unavailable"))
    with pytest.raises(Unavailable, match="503") as caught:
        ask(script, lambda c: c.observe("s", 1.0), retries=4)
    assert len(script.requests) == 5
    assert not isinstance(caught.value, OutcomeUnknown)
    assert caught.value.status == 503


def test_retries_are_bounded_in_time(ask):
    script = Scripted(said(429, headers={"Retry-After": "100"}))
    with pytest.raises(Unavailable) as caught:
        ask(script, lambda c: c.stream("s"), retry_for_s=60)
    assert len(script.requests) == 1
    assert caught.value.retry_after_s == 100


def test_keys_are_not_trusted_longer_than_they_are_kept(ask, monkeypatch):
    script = Scripted(said(503, headers={"Retry-After": str(KEY_MEMORY_S + 1)}), ok())
    with pytest.raises(OutcomeUnknown):
        ask(script, lambda c: c.observe("s", 1.0), retry_for_s=10_000)
    ask(script, lambda c: c.stream("s"), retry_for_s=10_000)


def test_it_waits_as_long_as_it_is_told_and_longer_each_time(ask):
    script = Scripted(said(503, headers={"Retry-After": "7"}), *[REFUSED] * 6, ok())
    ask(script, lambda c: c.observe("s", 1.0))
    assert 7 <= ask.pauses[0] <= 8.4
    for pause, least in zip(ask.pauses[1:], [0.2, 0.4, 0.8, 1.6, 3.2, 5.0], strict=True):
        assert 0.8 * least <= pause <= 1.2 * least


def test_no_retries_at_all(ask):
    script = Scripted(LOST)
    with pytest.raises(OutcomeUnknown):
        ask(script, lambda c: c.observe("s", 1.0), retries=0)
    assert len(script.requests) == 1


@pytest.mark.parametrize("key", ["argument", "variable", None])
def test_the_api_key(ask, key, monkeypatch):
    monkeypatch.delenv("MOCA_API_KEY", raising=False)
    if key == "variable":
        monkeypatch.setenv("MOCA_API_KEY", "moca_1_secret")
    script = Scripted(ok(STATE))
    ask(script, lambda c: c.stream("s"), api_key="moca_1_secret" if key == "argument" else None)
    assert script.headers("authorization") == ["Bearer moca_1_secret" if key else None]


@pytest.mark.parametrize("slug", errors.Problem.types)
def test_every_type_of_problem_has_its_exception(ask, slug):
    kind = errors.Problem.types[slug]
    script = Scripted(said(422, slug, detail="why", seq=5, headers={"X-Request-Id": "r1"}))
    with pytest.raises(errors.Problem, match=f"422 {slug}: why") as caught:
        ask(script, lambda c: c.stream("s"))
    assert type(caught.value) is kind
    assert (caught.value.type, caught.value.request_id) == (slug, "r1")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.Invalid),
        (401, errors.Unauthorized),
        (403, errors.Forbidden),
        (404, errors.NotFound),
        (409, errors.Conflict),
        (413, errors.Invalid),
        (418, errors.Problem),
        (424, errors.EarlierItemFailed),
        (500, errors.Fault),
        (502, errors.Temporary),
        (599, errors.Fault),
    ],
)
def test_an_unknown_type_gets_the_class_of_its_status(ask, status, kind):
    with pytest.raises(errors.Problem) as caught:
        ask(Scripted(said(status, "new-in-a-later-version")), lambda c: c.stream("s"))
    assert type(caught.value) is kind


def test_what_is_no_problem_document(ask):
    script = Scripted(httpx.Response(404, text="<html>nginx</html>"))
    with pytest.raises(errors.NotFound, match="404 Not Found: <html>"):
        ask(script, lambda c: c.stream("s"))
    with pytest.raises(UnexpectedAnswer, match="GET /v1/streams/s: unexpected answer"):
        ask(Scripted(httpx.Response(200, text="<html>")), lambda c: c.stream("s"))
    script = Scripted(ok([{**ANSWER, "status": 200}]))
    with pytest.raises(UnexpectedAnswer, match="1 answers to 2 items"):
        ask(script, lambda c: c.observe_many([{"stream": "s", "y": 1.0}] * 2))


def below(kind):
    return {kind}.union(*(below(each) for each in kind.__subclasses__()))


def test_the_tree_is_drawn_completely():
    mine = {each.__name__ for each in below(errors.ClientError) if hasattr(errors, each.__name__)}
    assert len(mine) > 25
    assert [name for name in mine if name not in errors.__doc__] == []


@pytest.mark.parametrize(
    "error", sorted(below(ServiceError), key=str), ids=lambda error: error.__name__
)
def test_what_the_service_says_has_an_exception(error):
    found = problem_of(error.status, {"type": TYPE_PREFIX + error.slug})
    assert type(found) is not errors.Problem
    assert isinstance(found, errors.Problem.statuses[error.status])


def test_an_address_that_is_none():
    from service.client import Client

    with pytest.raises(InvalidRequest, match="not a valid address"):
        Client("http://[::1")


def test_bodies_of_calls_to_come(ask):
    script = Scripted(ok(STATE))
    ask(script, lambda c: c.put_run_length("a/b", {0: 0.25, 4: 0.75, 5: 0.0}, seq=3))
    ask(script, lambda c: c.put_snapshot("s", Snapshot(b"\x00\x01", "application/x"), replace=True))
    ask(script, lambda c: c.move_model("s", "gaussian@1"))
    belief, snapshot, move = script.requests
    assert belief.url.raw_path == b"/v1/streams/a%2Fb/run-length"
    hypotheses = [{"run_length": 0, "probability": 0.25}, {"run_length": 4, "probability": 0.75}]
    assert httpx.Response(200, content=belief.content).json() == {"belief": hypotheses, "seq": 3}
    assert (snapshot.content, snapshot.headers["content-type"]) == (b"\x00\x01", "application/x")
    assert snapshot.url.query == b"replace=true"
    assert move.content == b'{"model":"gaussian@1"}'
    found = ask(
        Scripted(httpx.Response(200, content=b"\x00", headers={"Content-Type": "application/x"})),
        lambda c: c.snapshot("s"),
    )
    assert found == Snapshot(b"\x00", "application/x")
