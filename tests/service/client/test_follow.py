"""Following a stream with made-up answers: cut connections, ends, refusals."""

import httpx
import pytest

from service.client import Ended, Followed, InvalidRequest, Missed, UnexpectedAnswer
from service.client.errors import Conflict, UnknownStream
from tests.service.client.conftest import Scripted


def messages(*blocks, cut=""):
    """Whole messages, and the beginning of one."""
    kind, text = {"Content-Type": "text/event-stream"}, "".join(f"{each}\n\n" for each in blocks)
    return httpx.Response(200, headers=kind, text=text + cut)


def seen(seq):
    return f'id: {seq}@1\nevent: observation\ndata: {{"seq": {seq}, "y": {seq}.5}}'


def refusal(status, slug):
    document = {"type": f"https://x/problems/{slug}", "title": "No", "detail": "it is not there"}
    return httpx.Response(status, json=document)


HELLO = "retry: 10\n:\nid: 3@1"
GAP = 'id: 8@1\nevent: gap\ndata: {"start": 6, "end": 9}'
END = 'event: end\ndata: {"reason": "deleted", "detail": "gone"}'


def all_of(**asked):
    """Everything that comes, of either client."""

    def use(client):
        found = client.follow("s", **asked)
        if hasattr(found, "__aiter__"):
            return collected(found)
        return list(found)

    async def collected(found):
        return [each async for each in found]

    return use


def test_it_goes_on_across_connections_to_the_end(ask):
    cut = 'id: 6@1\nevent: observation\ndata: {"se'
    script = Scripted(
        messages(HELLO),
        messages(HELLO, seen(4), ": beat", seen(5), cut=cut),
        messages(HELLO.replace("3", "5"), GAP, "event: later\ndata: 1", seen(9), END),
    )
    found = ask(script, all_of())
    assert [type(each) for each in found] == [Followed, Followed, Missed, Followed, Ended]
    assert [each.y for each in found if isinstance(each, Followed)] == [4.5, 5.5, 9.5]
    assert found[2] == Missed(6, 9, "8@1")
    assert (found[3].cursor, found[4]) == ("9@1", Ended("deleted", "gone"))
    assert script.headers("Last-Event-ID") == [None, "3@1", "5@1"]
    assert {each.url.path for each in script.requests} == {"/v1/streams/s/observations/live"}


@pytest.mark.parametrize(
    ("status", "slug", "reason"),
    [(404, "unknown-stream", "deleted"), (409, "stream-replaced", "replaced")],
)
def test_a_stream_that_went_meanwhile_has_ended(ask, status, slug, reason):
    script = Scripted(messages(HELLO, seen(4)), refusal(status, slug))
    found = ask(script, all_of(after=3))
    assert found[1:] == [Ended(reason, "it is not there")]
    assert script.headers("Last-Event-ID") == ["3", "4@1"]


@pytest.mark.parametrize(
    ("status", "slug", "kind"),
    [(404, "unknown-stream", UnknownStream), (409, "stream-replaced", Conflict)],
)
def test_one_that_never_was_is_refused(ask, status, slug, kind):
    with pytest.raises(kind, match="it is not there"):
        ask(Scripted(refusal(status, slug)), all_of(after="7@2"))


def test_a_busy_service_is_tried_again(ask):
    busy = httpx.Response(503, headers={"Retry-After": "2"}, json={"title": "busy"})
    assert len(ask(Scripted(busy, messages(HELLO, seen(4), END)), all_of())) == 2
    assert ask.pauses == [2.0]


def test_what_cannot_be(ask):
    with pytest.raises(InvalidRequest, match="expected a stream id"):
        ask(Scripted(END), lambda client: client.follow(""))
    with pytest.raises(UnexpectedAnswer, match="observations/live"):
        ask(Scripted(messages("event: observation\ndata: 1")), all_of())
