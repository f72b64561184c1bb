"""Remote writes under overload: Prometheus drops what is answered 429, and repeats after 503."""

import time

import pytest

from service.errors.base import OutcomeUnknown, PartitionFull, RedisUnavailable, WaitTooLong
from tests.remote_write import V2, version_2
from tests.service.api.real import make_key

SERIES = [({"__name__": "x", "instance": each}, [(1.0, 1000), (2.0, 100_000)]) for each in "abc"]
WRITTEN = "x-prometheus-remote-write-samples-written"


async def write(api):
    return await api.post("/v1/prometheus/write", content=version_2(*SERIES), headers=V2)


@pytest.mark.parametrize("error", [WaitTooLong("too long"), PartitionFull("full")])
async def test_what_is_not_admitted_is_to_be_sent_again(api, monkeypatch, error):
    def refuse(command):
        raise error

    monkeypatch.setattr(api.app.state.context.gateway, "admit", refuse)
    answer = await write(api)
    assert (answer.status_code, answer.headers[WRITTEN]) == (503, "0")
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["deferred"] == 6
    assert answer.json()["type"].endswith("/samples-deferred")


@pytest.mark.parametrize(
    "error", [PartitionFull("full"), OutcomeUnknown("?"), RedisUnavailable("")]
)
async def test_what_is_refused_in_part_is_to_be_sent_again(api, monkeypatch, error):
    async def submit(command, begun, patience):
        if command.stream.startswith("x@b"):
            raise error
        body = b'{"applied":2,"skipped":0}'
        return type("Outcome", (), {"status": 200, "body": [body]})

    monkeypatch.setattr(api.app.state.context.gateway, "submit", submit)
    answer = await write(api)
    assert (answer.status_code, answer.headers[WRITTEN]) == (503, "4")
    assert answer.json()["deferred"] == 2


def test_a_key_needs_the_scopes_of_other_posts_and_reads(real_api):
    api = real_api(require_keys=1, key_cache_s=0.4)
    reader = make_key(api.redis_url, "reader", "read")
    writer = make_key(api.redis_url, "writer", "write")
    time.sleep(0.6)
    body, results = version_2(), "/v1/prometheus/results"
    for token, wrote, read in ((None, 401, 401), (reader, 403, 200), (writer, 204, 403)):
        with api.client(token) if token else api.client() as client:
            sent = client.post("/v1/prometheus/write", content=body, headers=V2)
            assert (sent.status_code, client.get(results).status_code) == (wrote, read)
