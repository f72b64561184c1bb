"""Request bodies: packed ones, bombs, and some KB that hold millions of values.

Time is counted as the processor's: what else runs on the machine does not matter.
"""

import asyncio
import functools
import gc
import gzip
import json
import threading
import time
import tracemalloc
import zlib
from unittest.mock import Mock

import pytest
from pydantic import ValidationError

from service.api import http
from service.api.http import is_light
from service.api.parsing import bodies
from service.api.parsing.bodies import JSON, NDJSON, CommandParser, field_errors
from service.api.parsing.observations import SHORT_BYTES, ObservationParser
from service.problems import BodyTooLarge, InvalidField, ServiceError
from service.schema.commands import ActionForm, BeliefForm, MovesForm, PredictionForm, WhatIfForm
from service.schema.observations import StreamForm
from service.settings import Settings
from service.wire.rows import WIDEST
from tests.service.api.conftest import slug

MIB = 1 << 20
LONGEST_S = 0.1  # of one callback of the event loop, and of one call that keeps the interpreter
MOST_S = 2.0  # of the longest: 10,000 items, each with errors of its own
LIST, MANY = "/v1/streams/s/observations", "/v1/observations"
PREDICT, ACT, WHAT_IF = (f"/v1/streams/s/{name}" for name in ("predictions", "actions", "what-if"))
BELIEF, SETTINGS = "/v1/streams/s/run-length", "/v1/streams/s"
FORMS = ObservationParser(Settings())
ASKED = CommandParser(Settings())


def times(head, piece, count, tail):
    return head + (piece + b",") * (count - 1) + piece + tail


def full(head, piece, tail, size=8 * MIB - 64):
    """A body as large as may be, of one piece again and again."""
    return times(head, piece, (size - len(head) - len(tail)) // (len(piece) + 1), tail)


@functools.cache
def fields(count):
    return b",".join(b'"f%d":1' % i for i in range(count))


BAD = b"{" + fields(70) + b"}"
NINES = b"9" * 4300
# name: path, how the body is made, status
HOSTILE = {
    "fields": (LIST, lambda: b"{" + fields(600_000) + b"}", 422),
    "fields of an item": (MANY, lambda: b'[{"stream":"a",' + fields(600_000) + b"}]", 200),
    "as many fields as may be": (LIST, lambda: b"{" + fields(500) + b"}", 422),
    "one field, often": (LIST, lambda: full(b"{", b'"y":1', b"}"), 422),
    "one field, as often as may be": (LIST, lambda: times(b"{", b'"y":""', 5000, b"}"), 422),
    "candidates": (ACT, lambda: full(b'{"candidates":[', b"[1]", b"]}"), 422),
    "as many candidates": (ACT, lambda: times(b'{"candidates":[', b'""', 65_000, b"]}"), 422),
    "as many texts": (LIST, lambda: times(b'{"x":[', b'""', 65_000, b"]}"), 422),
    "a table": (SETTINGS, lambda: full(b'{"hazard":[', b"5", b"]}"), 422),
    "scales": (WHAT_IF, lambda: full(b'{"settings":{"scale":[', b"-1", b"]}}"), 422),
    "a belief": (BELIEF, lambda: full(b'{"belief":[', b"{}", b"]}"), 422),
    "a list": (LIST, lambda: full(b"[", b"{}", b"]"), 422),
    "empty lines": (MANY, lambda: b"\n" * (8 * MIB), 422),
    "bad items": (MANY, lambda: times(b"[", BAD, 10_000, b"]"), 200),
    "lists in lists": (LIST, lambda: b"[" * (8 * MIB), 400),
    "digits": (LIST, lambda: b'{"y":' + b"9" * (8 * MIB - 10) + b"}", 422),
    "as many digits as may be": (LIST, lambda: full(b'{"y":[', NINES, b"]}", size=2 * MIB), 422),
    "digits of a position": (LIST, lambda: b'{"seq":' + b"9" * (2 * MIB - 10) + b"}", 422),
    "a long text": (LIST, lambda: b'{"time":"' + b"\\u00e9" * (MIB // 3) + b'"}', 422),
    "commas": (LIST, lambda: b"[" + b"," * (8 * MIB - 1), 400),
    "NaN": (LIST, lambda: full(b"[NaN,", b'""', b"]"), 400),
    "NaN and a text without end": (LIST, lambda: b'[NaN,"' + b'\\"' * 200_000, 400),
}


def read(form, body):
    """Read a body as a route does."""
    try:
        return form.model_validate(ASKED.json(body))
    except ValidationError as error:
        raise InvalidField(field_errors(error.errors(), "body")) from None


READERS = {
    LIST: FORMS.observations,
    MANY: lambda body: FORMS.items(body, b"\n" in body[:MIB]),
    SETTINGS: lambda body: read(StreamForm, body),
    PREDICT: lambda body: ASKED.prediction("s", read(PredictionForm, body)),
    ACT: lambda body: ASKED.action("s", read(ActionForm, body)),
    WHAT_IF: lambda body: ASKED.what_if("s", read(WhatIfForm, body)),
    BELIEF: lambda body: ASKED.belief("s", read(BeliefForm, body)),
}


def refused(path, body):
    """Status of the problem document that a body makes, 200 for none; its bytes and errors."""
    try:
        READERS[path](body)
    except ServiceError as error:
        return error.status, len(error.render()), len(error.extra["errors"])
    return 200, 0, 0


def test_bodies_of_millions_of_values_are_refused_in_little_time_and_few_words():
    for name, (path, make, status) in HOSTILE.items():
        body = make()
        began = time.thread_time()
        found, size, errors = refused(path, body)
        spent = time.thread_time() - began
        assert (found, size < 4096, errors <= 20) == (status, True, True), name
        assert spent < MOST_S, name
    with pytest.raises(InvalidField):
        read(MovesForm, b"{" + fields(600_000) + b"}")


@pytest.mark.parametrize(("body", "got"), [(b"{}", "object"), (b"3", "integer"), (b"null", "null")])
def test_what_is_no_list_is_refused_as_other_fields_are(body, got):
    with pytest.raises(InvalidField, match=f"^body: expected array, got {got}$"):
        bodies.split(body, 10)


def test_what_is_light_is_parsed_at_once():
    """Anything else is parsed in the thread, as it could hold the event loop."""
    assert is_light(b"," * 599)
    assert not is_light(b"," * 600)
    assert is_light(b" " * 16_384)
    assert not is_light(b" " * 16_385)


def test_a_list_of_far_too_many_objects_is_refused_before_it_is_cut(monkeypatch):
    assert len(bodies.split(b"[" + b",".join([b"{}"] * 9) + b"]", 10)) == 9
    keeps_the_interpreter = AssertionError("cutting keeps the interpreter to itself")
    monkeypatch.setattr(bodies, "_cut", Mock(side_effect=keeps_the_interpreter))
    with pytest.raises(InvalidField):
        bodies.split(b"[" + b",".join([b"{}"] * (bodies.MAX_BRACES * 10 + 1)) + b"]", 10)


def test_a_short_list_of_valid_items_is_read_at_once_and_as_any_other():
    item = {"stream": "s", "y": [1, None], "time": 1714521600, "seq": 3, "key": "k"}
    good = [item, {"stream": "t"}, {"stream": "s", "y": 0.5, "elapsed": 2}]
    body = json.dumps(good).encode()
    assert FORMS.valid_items(body) == FORMS.items(body, False)
    plain = [
        {"stream": "s", "y": 1},
        {"stream": "t", "y": -0.5, "time": 1714521600},
        {"stream": "u", "y": [1, 2.5]},
        {"stream": "v", "y": 0.5, "x": [1, 2]},
    ]
    alone = {"stream": "w", "y": [1]}
    long = {"stream": "w", "y": 1, "x": [1] * (WIDEST + 1)}
    cases = ((plain, 0), ([*plain, *good], 3), ([*plain, alone], 1), ([*plain, long], 1))
    for few, others in cases:
        own = FORMS.valid_items(json.dumps(few).encode())
        lines = "\n".join(map(json.dumps, few))
        assert own == FORMS.items(json.dumps(few).encode(), False)
        assert own == FORMS.items(lines.encode(), True)
        seen = [own.observation(i) for i in range(len(few))]
        assert [one.y for one in seen[:4]] == [1.0, -0.5, [1.0, 2.5], 0.5]
        assert [one.x for one in seen[:4]] == [None, None, None, [1.0, 2.0]]
        assert few[-1] is not alone or seen[-1].y == [1.0]
        assert len(own.others) == others
    assert FORMS.valid_items(body.ljust(SHORT_BYTES)) is not None
    many = [{"stream": "s"}] * (Settings().max_observations + 1)
    wide = {"stream": "s", "y": [1] * (Settings().max_dimension + 1)}
    for bad in ([*good, {"stream": "/"}], [*good, wide], [wide], many, {}, [1]):
        assert FORMS.valid_items(json.dumps(bad).encode()) is None
    for other in (body.ljust(SHORT_BYTES + 1), body[:-1], b"\xff"):
        assert FORMS.valid_items(other) is None


def test_a_short_list_of_valid_observations_is_read_at_once_and_as_any_other():
    good = [{"y": [1, None], "time": 1714521600, "seq": 3}, {}, {"y": 0.5, "elapsed": 2, "seq": 5}]
    body = json.dumps(good).encode()
    found = FORMS.valid_list(body)
    assert found == FORMS.observations(body)
    assert (found.seq, len(found.observations)) == (3, 3)
    assert FORMS.valid_list(body.ljust(SHORT_BYTES)) == found
    for plain in ([{"y": 1}, {"y": -0.5, "time": 1714521600}], [{"y": 1}, {"y": None}], []):
        body = json.dumps(plain).encode()
        at_once = FORMS.valid_list(body)
        listed = at_once._replace(observations=[*at_once.observations])
        assert listed == FORMS.observations(body)
    most = Settings().max_observations
    few = [{"y": 1}, {"y": 1, "pending": True}]
    for bad in ([*good, {"y": "1"}], [{"seq": 3}, {"seq": 5}], few, [{}] * (most + 1)):
        assert FORMS.valid_list(json.dumps(bad).encode()) is None
    settings = Settings(max_observations=2)
    for count in (2, 3):
        found = ObservationParser(settings).valid_list(json.dumps([{"y": 1}] * count).encode())
        assert (found is None) == (count == 3)
    for other in (body.ljust(SHORT_BYTES + 1), body[:-1], b"\xff", b'{"y": 1}'):
        assert FORMS.valid_list(other) is None


async def test_a_heavy_body_is_parsed_in_the_thread(api, monkeypatch):
    threads = []
    parse = ObservationParser.observations

    def noted(self, body):
        threads.append(threading.current_thread())
        return parse(self, body)

    monkeypatch.setattr(ObservationParser, "observations", noted)
    for size in (100, SHORT_BYTES):
        await api.post(LIST, content=b'[{"y": "1"}]'.ljust(size), headers={"Content-Type": JSON})
        good = await api.post(LIST, content=b"[{}]".ljust(size), headers={"Content-Type": JSON})
        assert good.status_code == 200
    good = b"[{}]".ljust(SHORT_BYTES + 1)
    await api.post(LIST, content=good, headers={"Content-Type": JSON})
    here, *apart = [thread is threading.main_thread() for thread in threads]
    assert (here, apart) == (True, [False, False])


# --- packed bodies, and large ones --------------------------------------------------------------


async def test_packed_bodies_are_read_and_are_the_same_bodies(api):
    body = json.dumps([{"y": float(i)} for i in range(100)]).encode()
    packs = {"gzip": gzip.compress, "deflate": zlib.compress, "identity": bytes}
    for encoding in ("gzip", "deflate", "x-gzip", "GZIP", "identity"):
        packed = packs[encoding.lower().removeprefix("x-")](body)
        headers = {"Content-Type": JSON, "Idempotency-Key": encoding}
        coded = {**headers, "Content-Encoding": encoding}
        answers = (await api.post(LIST, content=packed, headers=coded)).json()
        assert [answer["predictive"]["mean"] for answer in answers] == [[y] for y in range(100)]
        again = (await api.post(LIST, content=body, headers=headers)).json()
        assert all(answer["duplicate"] for answer in again)


async def test_bodies_that_cannot_be_unpacked(api):
    body = gzip.compress(b'{"y": 1}')
    headers = {"Content-Type": JSON, "Content-Encoding": "gzip"}
    for content in (
        body[:-9],
        b"\x00" * 50,
        body + b"rest",
        body[:-8] + b"\x00" * 8,
        b"",
        gzip.compress(b"") * http.MAX_MEMBERS + body,
    ):
        response = await api.post(LIST, content=content, headers=headers)
        assert (response.status_code, slug(response)) == (400, "malformed-body")
    parts = gzip.compress(b'{"y": ') + gzip.compress(b"") * 62 + gzip.compress(b"1}")
    assert (await api.post(LIST, content=parts, headers=headers)).status_code == 200


def bomb(mebibytes):
    """A gzip body that unpacks to so many MiB of spaces; the same packed block over and over."""
    pack = zlib.compressobj(9, zlib.DEFLATED, 31)
    first = pack.compress(b'{"y": 1, "x": [') + pack.flush(zlib.Z_FULL_FLUSH)
    block = pack.compress(b" " * MIB) + pack.flush(zlib.Z_FULL_FLUSH)
    return first + block * mebibytes + pack.flush()


def test_a_bomb_is_unpacked_up_to_the_limit():
    packed = bomb(2000)
    assert len(packed) < 8 * MIB
    tracemalloc.start()
    with pytest.raises(BodyTooLarge):
        http._unpacked(packed, http._WINDOWS[b"gzip"], MIB)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(packed) + 4 * MIB
    exact = gzip.compress(b" " * 1000)
    assert len(http._unpacked(exact, http._WINDOWS[b"gzip"], 1000)) == 1000
    with pytest.raises(BodyTooLarge):
        http._unpacked(exact, http._WINDOWS[b"gzip"], 999)


# --- the whole, at length -----------------------------------------------------------------------


def packed_request(name):
    path, make, _ = HOSTILE[name]
    kind = NDJSON if "lines" in name else JSON
    headers = {"Content-Type": kind, "Content-Encoding": "gzip"}
    method = "PUT" if path in (SETTINGS, BELIEF) else "POST"
    return {"method": method, "url": path, "content": gzip.compress(make(), 1), "headers": headers}


@pytest.mark.slow
async def test_the_event_loop_is_never_held(api, monkeypatch):
    run, lag = asyncio.Handle._run, [0.0]

    def timed(handle):
        began = time.thread_time()
        run(handle)
        lag[0] = max(lag[0], time.thread_time() - began)

    monkeypatch.setattr(asyncio.Handle, "_run", timed)
    gc.collect()
    gc.freeze()  # as the server does at its start
    requests = {name: (packed_request(name), HOSTILE[name][2]) for name in HOSTILE}
    many = json.dumps([{"stream": f"s{i}", "y": 1.0} for i in range(5000)]).encode()
    wide = json.dumps([{"x": [1.0] * 250, "y": 1.0}] * 1000).encode()
    for path, content in ((MANY, many), (LIST, wide)):  # and good ones
        request = {"method": "POST", "url": path, "content": content}
        requests[path] = ({**request, "headers": {"Content-Type": JSON}}, 200)
    held = []
    for name, (request, status) in requests.items():
        for _ in range(3):
            lag[0] = 0.0
            responses = await asyncio.gather(*(api.request(**request) for _ in range(2)))
            if lag[0] < LONGEST_S:
                break
        if lag[0] > LONGEST_S or {each.status_code for each in responses} != {status}:
            held.append((name, lag[0], [each.text[:300] for each in responses]))
    gc.unfreeze()
    assert held == []
