"""The client's retries and typed answers against the HTTP stand-in."""

import httpx
import pytest

from service.client import Client, ClientError, Problem, Unavailable


def test_a_lost_answer_is_asked_for_again_with_the_same_key(standin):
    standin.lose_answers = 2
    with Client(standin.url) as client:
        answers = client.observe("a", [{"y": 1.0}, {"y": 2.0}])
        assert [answer.seq for answer in answers] == [0, 1]
        assert all(answer.duplicate for answer in answers)
        assert client.stream("a").seq == 2


@pytest.mark.parametrize("status", [429, 503, 504])
def test_retries_when_the_service_says_so(standin, status):
    standin.refusals = [(status, {}), (status, {"Retry-After": "0"})]
    with Client(standin.url) as client:
        assert client.observe("a", [{"y": 1.0}])[0].seq == 0
    assert standin.requests == [("POST", "/v1/streams/a/observations")] * 3


def test_gives_up(standin):
    standin.refusals = [(503, {})] * 50
    with Client(standin.url, retry_for_s=0.3) as client, pytest.raises(Unavailable, match="503"):
        client.stream("a")


def test_nobody_there():
    with Client("http://127.0.0.1:1") as client, pytest.raises(Unavailable, match="ConnectError"):
        client.wait_ready(0.2)


def test_problems_carry_the_document(standin):
    with Client(standin.url) as client:
        with pytest.raises(Problem, match="404 Unknown stream: no stream 'a b'") as caught:
            client.stream("a b")
        assert caught.value.document["status"] == 404


def test_not_an_address():
    with Client("localhost:8000") as client, pytest.raises(ClientError, match="not an http"):
        client.stream("a")


def test_an_answer_that_is_none():
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json={"seq": "x"}))
    with (
        Client(transport=transport) as client,
        pytest.raises(ClientError, match="unexpected answer"),
    ):
        client.stream("a")


def test_typed_reads(standin):
    with Client(standin.url) as client:
        client.put_stream("a", {"model": "gaussian"})
        client.observe("a", [{"y": 0.1}, {"y": 0.2}])
        assert list(client.streams()) == ["a"]
        assert client.changepoints("a").segmentation[0].end == 2
        belief = client.run_length("a").belief
        assert sum(each.probability for each in belief) == pytest.approx(1)
        client.delete_stream("a")
        assert list(client.streams()) == []
