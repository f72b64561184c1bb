"""Every call of the REST interface with a good request of it, and what its documentation allows."""

from __future__ import annotations

import functools
import json
from typing import NamedTuple

import jsonschema
import msgspec

from service import wire
from service.api.app import create_app
from service.api.openapi import all_examples
from service.api.parsing.bodies import BYTES
from service.api.parsing.remote_write import PROTOBUF
from service.api.routes.table import CALLS, ApiCall
from service.problems import PROBLEM_JSON, TYPE_PREFIX
from service.settings import Settings
from service.wire import snapshot
from tests.remote_write import V2, version_2

BY_NAME = {call.endpoint.__name__: call for call in CALLS}


class Asked(NamedTuple):
    """A call, and a request of it that its form accepts."""

    call: ApiCall
    name: str
    url: str
    headers: dict[str, str]
    content: bytes | None

    @property
    def media(self):
        return self.headers.get("Content-Type", "").partition(";")[0]

    async def send(self, api, url=None, content=msgspec.UNSET, **headers):
        """Send it, with another address, body or headers."""
        body = self.content if content is msgspec.UNSET else content
        headers = {**self.headers, **headers}
        return await api.request(self.call.method, url or self.url, content=body, headers=headers)


def request_of(example, snapshot, samples):
    """The request of an example; a snapshot and a remote write are bytes that it does not have."""
    call = BY_NAME[example.call]
    url = call.path.format(**example.path) + (f"?{example.query}" if example.query else "")
    headers = {"Content-Type": example.media} if call.has_body else {}
    content = None
    if isinstance(example.body, str):
        content = example.body.encode()
    elif example.body is not msgspec.UNSET:
        content = json.dumps(example.body).encode()
    if example.media == PROTOBUF:
        headers, content = V2, version_2(samples)
    if example.media == BYTES and call.has_body:
        content = snapshot
    return Asked(call, example.call, url, headers, content)


@functools.cache
def requests():
    """One request of each call, as its first example has it."""
    head = wire.Head(1, wire.StreamSettings())
    blob = snapshot.dump(snapshot.StreamSnapshot("s", 1, None, head, None, [], [], {}))
    found = {}
    for example in all_examples():
        asked = request_of(example, blob, ({"__name__": "x"}, [(1.0, 1_767_225_600_000)]))
        found.setdefault(example.call, asked)
    return list(found.values())


@functools.cache
def openapi():
    """The OpenAPI document."""
    return create_app(Settings(redis_url="redis://localhost")).openapi()


def operation(name, document=None):
    """What the document says of a call."""
    call = BY_NAME[name]
    return (document or openapi())["paths"][call.path][call.method.lower()]


def check(schema, value, document=None):
    """Check that a value fits a schema of the document."""
    whole = {**schema, "components": (document or openapi())["components"]}
    jsonschema.Draft202012Validator(whole).validate(value)


def check_problem(name, response, status, slug):
    """Check a problem document: its form, and that the call's documentation has it."""
    assert response.status_code == status, (name, response.text)
    assert response.headers["content-type"] == PROBLEM_JSON, name
    document = response.json()
    assert document["type"] == TYPE_PREFIX + slug, (name, document)
    assert document["status"] == status, name
    assert document["title"], name
    assert document["detail"], name
    assert all(error["loc"] and error["detail"] for error in document.get("errors", []))
    described = operation(name)["responses"][str(status)]
    content = described["content"][PROBLEM_JSON]
    assert slug in content["examples"], (name, slug)
    check(content["schema"], document)
    if status in (429, 503, 504):
        assert int(response.headers["retry-after"]) > 0, name
        assert "Retry-After" in described["headers"], name
    return document
