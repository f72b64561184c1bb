"""Both clients as one: what is sent again and what never is, problems, subscriptions."""

import asyncio
import contextlib
import json
import pydoc
import runpy
import sys
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import islice
from pathlib import Path

import httpx
import pytest

from moca_client import (
    AsyncClient,
    Client,
    Ended,
    Followed,
    InvalidRequest,
    Missed,
    OutcomeUnknown,
    Unavailable,
    UnexpectedAnswer,
    errors,
)
from moca_client.errors import problem_of, retry_after_s
from moca_client.responses import FieldError, Gap, Snapshot, StreamEvent
from moca_client.retry import KEY_MEMORY_S, http_options
from service.problems import TYPE_PREFIX, problem_types
from tests.serving import Quiet, ThreadServer

ANSWER = STATE = {"stream": "s", "seq": 0, "model": "m"}
ITEM = {**ANSWER, "status": 200}
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
ACTION = {**ANSWER, "strategy": "thompson", "chosen": 0, "candidate": [1.0]}
LOST, REFUSED = httpx.ReadError, httpx.ConnectError

# Calls that are repeated whatever becomes of an attempt: how to make one, and an answer to it.
REPEATED = {
    "put_stream": (lambda c: c.put_stream("s", {"hazard": 0.1}), STATE),
    "delete_stream": (lambda c: c.delete_stream("s"), {}),
    "observe": (lambda c: c.observe("s", 1.0), ANSWER),
    "observe a list": (lambda c: c.observe("s", [1.0]), [ANSWER]),
    "observe_many": (lambda c: c.observe_many([{"stream": "s", "y": 1.0}]), [ITEM]),
    "predict": (lambda c: c.predict("s"), {**ANSWER, "predictions": []}),
    "act": (lambda c: c.act("s", [[1.0]]), ACTION),
    "what_if": (lambda c: c.what_if("s", {"hazard": 0.1}), WHAT_IF),
    "put_run_length at seq": (lambda c: c.put_run_length("s", changepoint=1.0, seq=3), STATE),
    "stream": (lambda c: c.stream("s"), STATE),
    "streams": (lambda c: c.streams(), {"streams": [], "cursor": None}),
    "overview": (lambda c: c.overview("s"), {"streams": []}),
    "regimes": (lambda c: c.regimes("s"), STATE),
    "name_regime": (lambda c: c.name_regime("s", 1, "idle"), {"id": 1}),
    "run_length": (lambda c: c.run_length("s"), STATE),
    "changepoints": (lambda c: c.changepoints("s"), STATE),
    "history": (lambda c: c.history("s"), {**STATE, "first": 0, "observations": []}),
    "snapshot": (lambda c: c.snapshot("s"), {}),
    "models": (lambda c: c.models(), {"models": []}),
}
KEYED = {
    "put_stream",
    "delete_stream",
    "observe",
    "observe a list",
    "put_run_length at seq",
    "name_regime",
}
# Calls whose repeat could undo or double something.
UNSAFE = {
    "put_run_length": lambda c: c.put_run_length("s", {0: 1.0}),
    "put_snapshot": lambda c: c.put_snapshot("s", Snapshot(b"x")),
    "move_model": lambda c: c.move_model("s", "other"),
}


def said(status, slug="x", headers=None, **more):
    document = {"type": f"https://x/problems/{slug}", "title": slug, **more}
    return httpx.Response(status, json=document, headers=headers or {})


def ok(document=ANSWER):
    return lambda request: httpx.Response(200, json=document)


def body(request):
    return httpx.Response(200, content=request.content).json()


def test_types_of_settings_are_as_the_table_gives_them(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["", "--check"])  # it exits where they are not
    script = Path(__file__).parents[2] / "deploy" / "packages" / "client_settings.py"
    runpy.run_path(str(script), run_name="__main__")


# --- what is sent again -----------------------------------------------------------------------


def test_what_can_be_repeated_is_repeated_unchanged(ask):
    for name, (use, document) in REPEATED.items():
        for trouble in (LOST, REFUSED, 429, 503, 504):
            bad = said(trouble) if isinstance(trouble, int) else trouble
            outcome = ask([bad, bad, ok(document)], use)
            assert len(outcome.requests) == 3, (name, trouble)
            assert len({request.content for request in outcome.requests}) == 1, name
            (key,) = set(outcome.headers("idempotency-key"))
            assert (key is not None) == (name in KEYED), name


def test_other_refusals_are_not_repeated(ask):
    for status in (400, 401, 403, 404, 408, 409, 413, 422, 500, 502):
        with pytest.raises(errors.Problem) as caught:
            ask([said(status), ok()], lambda c: c.observe("s", 1.0))
        assert caught.value.status == status
        assert len(caught.value.outcome.requests) == 1, status


def test_what_could_undo_or_double_something_is_repeated_only_after_a_certain_refusal(ask):
    for name, use in UNSAFE.items():
        for trouble in (LOST, httpx.ReadTimeout, (504, "x"), (503, "x")):
            bad = said(*trouble) if isinstance(trouble, tuple) else trouble
            with pytest.raises(OutcomeUnknown) as caught:
                ask([bad, ok()], use)
            assert len(caught.value.outcome.requests) == 1, (name, trouble)
        certain = [(503, slug) for slug in ("redis-unavailable", "not-ready")]
        certain += [REFUSED, (429, "overloaded"), (503, "too-many-connections")]
        for trouble in certain:
            bad = said(*trouble) if isinstance(trouble, tuple) else trouble
            assert len(ask([bad, ok(STATE)], use).requests) == 2, (name, trouble)


def test_a_doubt_stays_whatever_is_answered_later(ask):
    with pytest.raises(OutcomeUnknown):
        ask([LOST, REFUSED], lambda c: c.observe("s", 1.0), retry_for_s=0.15)
    with pytest.raises(Unavailable) as caught:
        ask([REFUSED], lambda c: c.observe("s", 1.0), retry_for_s=0.15)
    assert not isinstance(caught.value, OutcomeUnknown)
    with pytest.raises(Unavailable) as caught:  # a read changes nothing: no doubt
        ask([LOST], lambda c: c.stream("s"), retry_for_s=0.15)
    assert not isinstance(caught.value, OutcomeUnknown)


def test_a_delete_whose_repeat_finds_nothing_was_done(ask):
    gone = said(404, "unknown-stream")
    ask([LOST, gone], lambda c: c.delete_stream("s"))
    for script in ([gone], [said(429), gone]):  # nothing was accepted before
        with pytest.raises(errors.UnknownStream):
            ask(script, lambda c: c.delete_stream("s"))


def test_retries_are_bounded(ask):
    for retry_for_s, retries in ((0.0, 0), (2.0, 4)):
        with pytest.raises(Unavailable) as caught:
            ask(
                [said(503, "redis-unavailable")],
                lambda c: c.observe("s", 1.0),
                retry_for_s=retry_for_s,
            )
        assert len(caught.value.outcome.requests) == retries + 1
        assert caught.value.status == 503
    with pytest.raises(Unavailable, match=r"^GET http.*//.*/readyz: ConnectError.*; \d tries in 0"):
        ask([REFUSED], lambda c: c.wait_ready(0.2))


def test_the_last_retry_begins_when_the_time_is_over_and_none_after(ask):
    def tries(retry_for_s):
        with pytest.raises(Unavailable) as caught:
            ask([said(429)], lambda c: c.stream("s"), retry_for_s=retry_for_s)
        return len(caught.value.outcome.requests)

    assert [tries(0.1), tries(0.0999)] == [2, 1]  # the first pause is 0.1 s
    assert [tries(0.7 + 1e-9), tries(0.6999)] == [4, 3]  # 0.1 + 0.2 + 0.4


def test_pauses_double_up_to_5_s_with_jitter(ask):
    outcome = ask([REFUSED] * 8 + [ok()], lambda c: c.observe("s", 1.0))
    assert outcome.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert set(outcome.jitter) == {(0.8, 1.2)}


def test_it_waits_at_least_as_long_as_the_service_says(ask):
    busy = said(503, headers={"Retry-After": "7"})
    waited = ask([busy, said(429, headers={"Retry-After": "0"}), ok()], lambda c: c.stream("s"))
    assert waited.pauses == [7.0, 0.2]
    assert waited.jitter[:2] == [(0.8, 1.2), (1.0, 1.2)]  # never before the time
    with pytest.raises(Unavailable) as caught:
        ask([said(429, headers={"Retry-After": "61"})], lambda c: c.stream("s"), retry_for_s=60)
    assert len(caught.value.outcome.requests) == 1
    assert caught.value.retry_after_s == 61


def test_a_time_to_retry_may_be_a_date():
    assert [retry_after_s(value) for value in (None, "1.5", "-3", "soon")] == [None, 1.5, 0.0, None]
    later = format_datetime(datetime.now(UTC) + timedelta(hours=1))
    assert 3000 < retry_after_s(later) <= 3600
    assert retry_after_s(format_datetime(datetime(2020, 1, 1, tzinfo=UTC))) == 0.0


def test_keys_are_not_trusted_longer_than_they_are_kept(ask):
    def busy(seconds):
        return said(503, headers={"Retry-After": str(seconds)})

    use = REPEATED["observe"][0]
    assert len(ask([busy(KEY_MEMORY_S), ok()], use, retry_for_s=10_000).requests) == 2
    with pytest.raises(OutcomeUnknown):
        ask([busy(KEY_MEMORY_S + 1), ok()], use, retry_for_s=10_000)
    harmless = ask([busy(KEY_MEMORY_S + 1), ok()], lambda c: c.stream("s"), retry_for_s=10_000)
    assert len(harmless.requests) == 2


# --- observe_many -----------------------------------------------------------------------------

BUSY = {"status": 429, "type": "x/partition-full"}
BEHIND = {"status": 424, "type": "x/earlier-item-failed"}


def items_of(streams):
    return [{"stream": stream, "y": 1.0} for stream in streams]


def test_items_have_keys_of_their_own(ask):
    outcome = ask([LOST, ok([ITEM] * 2)], lambda c: c.observe_many(items_of("ss")))
    first, again = map(body, outcome.requests)
    assert first == again
    assert len({item["key"] for item in first}) == 2


def test_items_refused_for_the_time_being_are_sent_again_with_those_behind_them(ask):
    script = [ok([BUSY, ITEM, BEHIND]), ok([ITEM, ITEM])]
    outcome = ask(script, lambda c: c.observe_many(items_of("aba")))
    assert [type(each).__name__ for each in outcome.value] == ["Answer"] * 3
    first, again = map(body, outcome.requests)
    assert again == [first[0], first[2]]
    assert outcome.pauses == [0.1]


def test_items_behind_a_bad_one_are_not_sent_again(ask):
    bad = {"status": 422, "type": "x/y"}
    outcome = ask([ok([bad, BEHIND])], lambda c: c.observe_many(items_of("ss")))
    assert [each.status for each in outcome.value] == [422, 424]
    assert len(outcome.requests) == 1


def test_rounds_of_items_are_bounded(ask):
    outcome = ask([ok([BUSY])], lambda c: c.observe_many(items_of("a")), retry_for_s=0.5)
    assert (outcome.value[0].status, len(outcome.requests)) == (429, 3)
    for retry_for_s, rounds in ((0.1, 2), (0.0999, 1)):
        use = REPEATED["observe_many"][0]
        assert len(ask([ok([BUSY])], use, retry_for_s=retry_for_s).requests) == rounds


def test_items_whose_repeat_got_no_answer_say_so(ask):
    result = ask(
        [ok([ITEM, BUSY]), LOST], lambda c: c.observe_many(items_of("ab")), retry_for_s=0.15
    )
    assert type(result.value[0]).__name__ == "Answer"
    assert (result.value[1].status, result.value[1].type) == (503, "outcome-unknown")


# --- requests and problems --------------------------------------------------------------------


def test_the_key_of_the_argument_or_of_the_variable_is_sent(ask, monkeypatch):
    monkeypatch.delenv("MOCA_API_KEY", raising=False)
    assert ask([ok(STATE)], lambda c: c.stream("s")).headers("authorization") == [None]
    monkeypatch.setenv("MOCA_API_KEY", "moca_1_env")
    outcome = ask([ok(STATE)], lambda c: c.stream("s"))
    assert outcome.headers("authorization") == ["Bearer moca_1_env"]
    outcome = ask([ok(STATE)], lambda c: c.stream("s"), api_key="moca_2_arg")
    assert outcome.headers("authorization") == ["Bearer moca_2_arg"]


def test_only_what_this_machine_answers_in_the_clear_needs_no_certificates():
    """Others may be reached by a proxy, which has one of its own."""
    addresses = ("http://127.0.0.1:8000", "https://localhost", "HTTPS://moca", "http://moca")
    verified = [http_options(address, "", 1.0)["verify"] for address in addresses]
    assert verified == [False, True, True, True]


def test_a_derived_client_keeps_its_own_methods():
    class Own:
        def stream(self, stream):
            return f"own: {stream}"

    class Mine(Client):
        stream = Own.stream

    class Mixed(Own, AsyncClient):
        pass

    assert Mine("http://localhost").stream("a") == "own: a"
    assert Mixed.stream is Own.stream
    assert Mine.put_stream is Client.put_stream


def test_methods_are_shown_as_those_of_their_client():
    assert "Iterate over the ids" in pydoc.render_doc("moca_client.client")
    for kind in (Client, AsyncClient):
        assert kind.stream.__qualname__ == f"{kind.__name__}.stream"
        assert "return" not in kind.stream.__annotations__  # it is no call


def test_bodies_of_beliefs_snapshots_and_moves(ask):
    use = [
        lambda c: c.put_run_length("a/b", {0: 0.25, 4: 0.75, 5: 0.0}, seq=3),
        lambda c: c.put_snapshot("s", Snapshot(b"\x00\x01", "application/x"), replace=True),
        lambda c: c.move_model("s", "gaussian"),
    ]
    belief, snapshot, move = (ask([ok(STATE)], each).requests[0] for each in use)
    assert belief.url.raw_path == b"/v1/streams/a%2Fb/run-length"
    hypotheses = [{"run_length": 0, "probability": 0.25}, {"run_length": 4, "probability": 0.75}]
    assert body(belief) == {"belief": hypotheses, "seq": 3}
    assert (snapshot.content, snapshot.headers["content-type"]) == (b"\x00\x01", "application/x")
    assert snapshot.url.query == b"replace=true"
    assert move.content == b'{"model":"gaussian"}'
    blob = httpx.Response(200, content=b"\x00", headers={"Content-Type": "application/x"})
    assert ask([blob], lambda c: c.snapshot("s")).value == Snapshot(b"\x00", "application/x")


def test_pages_are_asked_for_one_after_the_other(ask):
    row = [{"stream": "a"}], [{"stream": "b"}]
    pages = [ok({"streams": row[0], "cursor": "a"}), ok({"streams": row[1], "cursor": None})]
    outcome = ask(pages, lambda c: c.streams("p", 1))
    assert outcome.value == ["a", "b"]
    assert [request.url.params.get("cursor") for request in outcome.requests] == [None, "a"]


def below(kind):
    return {kind}.union(*(below(each) for each in kind.__subclasses__()))


def test_invalid_fields_are_read_where_there_are_any():
    named = [{"loc": "body.y", "detail": "bad", "later": 1}]
    problem = problem_of(422, {"errors": named})
    assert problem.errors == [FieldError("body.y", "bad")]
    for odd in (None, "odd", ["odd"], [{"loc": 3}]):
        assert problem_of(422, {"errors": odd}).errors == []


def test_every_type_of_problem_has_its_exception(ask):
    slugs = {kind.slug for kind in problem_types()}
    for slug in slugs:  # the exception of its name, or that of its status
        kind = errors.Problem.types.get(slug)
        problem = problem_of(422, {"type": TYPE_PREFIX + slug, "detail": "why", "seq": 5})
        assert (type(problem), problem.type) == (kind or errors.Invalid, slug)
    for kind in problem_types():
        problem = problem_of(kind.status, kind.shown().document())
        assert isinstance(problem, errors.Problem.statuses[kind.status]), kind
    groups = set(errors.Problem.statuses.values())
    leaves = below(errors.Problem) - groups - {errors.Problem}
    assert {errors.slug_of(kind) for kind in leaves} < slugs
    drawn = [each.__name__ for each in below(errors.ClientError) if hasattr(errors, each.__name__)]
    assert [name for name in drawn if name not in errors.__doc__] == []
    refused = said(409, "seq-conflict", seq=5, headers={"X-Request-Id": "r1"})
    with pytest.raises(errors.SeqConflict) as caught:
        ask([refused], lambda c: c.stream("s"))
    assert (caught.value.seq, caught.value.request_id) == (5, "r1")


def test_an_unknown_type_gets_the_class_of_its_status():
    kinds = {
        400: errors.Invalid,
        401: errors.Unauthorized,
        403: errors.Forbidden,
        404: errors.NotFound,
        409: errors.Conflict,
        413: errors.Invalid,
        418: errors.Problem,
        424: errors.EarlierItemFailed,
        499: errors.Problem,
        500: errors.Fault,
        502: errors.Temporary,
        599: errors.Fault,
    }
    assert {status: type(problem_of(status, {"type": "x/new"})) for status in kinds} == kinds


def test_what_is_no_document_and_no_address(ask):
    with pytest.raises(errors.NotFound) as caught:
        ask([httpx.Response(404, text="<html>nginx</html>")], lambda c: c.stream("s"))
    assert "nginx" in caught.value.detail
    page = "<!DOCTYPE html>\n<html>\n<head><title>Bad gateway</title></head><body>x</body></html>"
    with pytest.raises(errors.NotFound) as caught:
        ask([httpx.Response(404, text=page)], lambda c: c.stream("s"))
    assert caught.value.detail == "a page 'Bad gateway', no answer of this service"
    for answer in (httpx.Response(200, text="<html>"), ok({"seq": "x"})):
        with pytest.raises(UnexpectedAnswer):
            ask([answer], lambda c: c.stream("s"))
    with pytest.raises(UnexpectedAnswer):  # one answer to two items
        ask([ok([ITEM])], lambda c: c.observe_many(items_of("ss")))
    with pytest.raises(InvalidRequest):
        Client("http://[::1")
    for name in ("", ".", ".."):  # the last would be another resource
        with pytest.raises(InvalidRequest, match=f"expected a stream id, got '{name}'"):
            ask([], lambda c, name=name: c.observe(name, 1.0))
    for call, message in (
        (lambda c: c.observe(7, 1.0), "expected a stream id, got 7"),
        (lambda c: c.observe("s", "high"), "expected numbers or objects of observations, got 'h"),
        (lambda c: c.observe_many([("s", 1.0)]), r"items\[0\]: expected an object with a `stream`"),
        (lambda c: c.observe_many({"stream": "s", "y": 1.0}), "expected a list of items"),
        (lambda c: c.put_stream("s", "gaussian"), 'expected settings such as {"model": "gauss'),
        (lambda c: c.put_snapshot("s", b"x"), "expected a snapshot .* got bytes"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            ask([], call)
    with pytest.raises(InvalidRequest, match=r"with http:// or https://, got 'localhost:8000'"):
        Client("localhost:8000")
    with Client("ftp://localhost") as client, pytest.raises(InvalidRequest):
        client.stream("a")


# --- subscriptions ----------------------------------------------------------------------------


def messages(*blocks, cut=""):
    """Whole messages, and the beginning of one."""
    kind, text = {"Content-Type": "text/event-stream"}, "".join(f"{each}\n\n" for each in blocks)
    return lambda _: httpx.Response(200, headers=kind, text=text + cut)


def event(number, name="changepoint"):
    state = f'{{"id": {number}, "state": "confirmed", "start": 1, "suspected_at": 2}}'
    data = f'{{"stream": "s", "model": "m", "event": {state}, "time": null, "at": "t"}}'
    return f"id: {number}\nevent: {name}\ndata: {data}"


def events(count, **asked):
    """So many messages of the feed, by the client of `ask`."""

    def use(client):
        found = client.events(**asked)
        return collected(found) if hasattr(found, "__aiter__") else list(islice(found, count))

    async def collected(found):
        items = [await anext(found) for _ in range(count)]
        await found.aclose()
        return items

    return use


def test_filters_are_asked_for_each_time_and_only_those_that_are_named(ask):
    asked = {"prefix": "pump-", "states": ["confirmed", "withdrawn"], "match": '{site="north"}'}
    script = [messages(event(1)), messages(event(2, "anomaly"), "event: later\ndata: 1", event(3))]
    outcome = ask(script, events(3, after="0", kinds=["change", "anomaly"], **asked))
    assert [type(item) for item in outcome.value] == [StreamEvent] * 3
    for request in outcome.requests:
        assert request.url.params.get_list("state") == ["confirmed", "withdrawn"]
        assert request.url.params.get_list("kind") == ["change", "anomaly"]
        assert request.url.params["prefix"] == "pump-"
        assert request.url.params["match"] == '{site="north"}'
        assert request.headers["Accept"] == "text/event-stream"
    # A service of an earlier version would refuse the query.
    bare = ask([messages(event(1))], events(1)).requests[0].url.params
    assert not {"kind", "match", "after"} & set(bare)
    for name in ("states", "kinds"):
        with pytest.raises(InvalidRequest):
            ask([messages()], events(1, **{name: "confirmed"}))


def test_it_goes_on_after_a_heartbeat_too_and_tells_gaps(ask):
    lost = '{"partitions": [{"partition": 1, "after": null, "until": "t"}]}'
    gap = f"id: 7\nevent: gap\ndata: {lost}"
    script = [messages(":\nid: 5"), messages("retry: 1000", gap), messages(event(8))]
    outcome = ask(script, events(2))
    assert outcome.value[0] == Gap(json.loads(lost), "7")
    assert outcome.value[1].cursor == "8"
    assert outcome.headers("Last-Event-ID") == [None, "5", "7"]
    assert outcome.pauses == [0.1, 1.0]  # as the service says, from then on


def test_a_feed_that_cannot_be_had(ask):
    busy = said(503, headers={"Retry-After": "2"})
    assert ask([busy, said(429), messages(event(1))], events(1)).pauses == [2.0, 0.2]
    for status, kind in ((401, errors.Unauthorized), (404, errors.NotFound)):
        with pytest.raises(kind):
            ask([said(status)], events(1))
    with pytest.raises(errors.UnknownStream):  # ends no feed of events
        ask([messages(event(1)), said(404, "unknown-stream")], events(2))
    with pytest.raises(UnexpectedAnswer):
        ask([httpx.Response(200, text="<html>")], events(1))
    for limit_s, tries in ((0.101, 2), (0.099, 1), (0.0, 1)):
        with pytest.raises(Unavailable) as caught:
            ask([REFUSED], events(1, retry_for_s=limit_s))
        assert len(caught.value.outcome.requests) == tries, limit_s


HELLO = "retry: 10\n:\nid: 3@1"
GAP = 'id: 8@1\nevent: gap\ndata: {"start": 6, "end": 9}'
END = 'event: end\ndata: {"reason": "deleted", "detail": "gone"}'


def observed(seq):
    return f'id: {seq}@1\nevent: observation\ndata: {{"seq": {seq}, "y": {seq}.5}}'


def test_following_goes_on_across_connections_to_the_end(ask):
    script = [
        messages(HELLO),
        messages(HELLO, observed(4), ": beat", observed(5), cut="id: 6@1\nevent: obser"),
        messages(HELLO.replace("3", "5"), GAP, "event: later\ndata: 1", observed(9), END),
    ]
    outcome = ask(script, lambda c: c.follow("s"))
    assert [type(each) for each in outcome.value] == [Followed, Followed, Missed, Followed, Ended]
    assert [each.y for each in outcome.value if isinstance(each, Followed)] == [4.5, 5.5, 9.5]
    assert outcome.value[2:] == [Missed(6, 9, "8@1"), outcome.value[3], Ended("deleted", "gone")]
    assert outcome.value[3].cursor == "9@1"
    assert outcome.headers("Last-Event-ID") == [None, "3@1", "5@1"]


def test_a_stream_that_went_meanwhile_has_ended_and_one_that_never_was_is_refused(ask):
    for status, slug, reason, kind in (
        (404, "unknown-stream", "deleted", errors.UnknownStream),
        (409, "stream-replaced", "replaced", errors.Conflict),
    ):
        gone = said(status, slug, detail="it is not there")
        outcome = ask([messages(HELLO, observed(4)), gone], lambda c: c.follow("s", after=3))
        assert outcome.value[1:] == [Ended(reason, "it is not there")]
        assert outcome.headers("Last-Event-ID") == ["3", "4@1"]
        with pytest.raises(kind):
            ask([gone], lambda c: c.follow("s", after="7@2"))
    with pytest.raises(InvalidRequest):
        ask([messages(END)], lambda c: c.follow(""))
    with pytest.raises(UnexpectedAnswer):
        ask([messages("event: observation\ndata: 1")], lambda c: c.follow("s"))


# --- over real HTTP ---------------------------------------------------------------------------


class Feed(Quiet):
    """Three events behind the cursor on each connection, which ends or hangs in a message."""

    def do_GET(self):
        after = self.headers["Last-Event-ID"]
        self.server.cursors.append(after)
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        whole = [f"{event(int(after) + i)}\n\n: heartbeat\n\n" for i in (1, 2, 3)]
        text = "retry: 50\n: hello\n\n" + "".join(whole) + "id: 99\nevent: changepoint\ndata: {"
        with contextlib.suppress(OSError):  # the client left
            self.wfile.write(text.encode())
            self.server.left.wait()


def taken(client, count, **asked):
    """So many events of either client."""
    if isinstance(client, Client):
        with client:
            return events(count, **asked)(client)

    async def collected():
        async with client:
            return await events(count, **asked)(client)

    return asyncio.run(collected())


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_each_event_comes_once_across_connections_that_are_cut_or_silent(kind):
    with ThreadServer(Feed) as feed:
        feed.cursors, feed.left = [], threading.Event()
        try:
            items = taken(kind(feed.url), 4, after="0", silence_s=0.2)
            feed.left.set()
            items += taken(kind(feed.url), 25, after=items[-1].cursor)
        finally:
            feed.left.set()
    assert [item.event.id for item in items] == list(range(1, 30))
    assert items[-1].cursor == "29"
    asked = list(dict.fromkeys(feed.cursors))  # of a slow machine twice
    assert asked == ["0", "3", *(str(4 + 3 * i) for i in range(9))]
