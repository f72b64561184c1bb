"""The console's files: what is sent, how it is kept, and what a page may do."""

import gzip
import re
from importlib.metadata import PackageNotFoundError

import pytest

from service.console import assets

EVERY = [name for name in assets.names() if name != assets.PAGE]


@pytest.fixture
def fresh():
    """Files are made once: not for a test that changes what they are made of."""
    for cached in (assets._asset, assets.plotly_name):
        cached.cache_clear()
    yield
    for cached in (assets._asset, assets.plotly_name):
        cached.cache_clear()


async def test_the_page_has_no_script_of_its_own_and_asks_no_other_origin(start, settings, worker):
    async with start(settings) as client:
        answer = await client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(
        each.split(" ", 1) for each in answer.headers["content-security-policy"].split("; ")
    )
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert re.findall(r"<script(?![^>]* src=)", answer.text) == []
    assert re.findall(r'\son\w+="|\sstyle="', answer.text) == []
    assert re.findall(r'(?:src|href)="(?:https?:)?//', answer.text) == []


async def test_every_file_that_is_asked_for_is_there(start, settings, worker):
    async with start(settings) as client:
        page = (await client.get("/")).text
        asked = set(re.findall(r'(?:src|href)="(console/[^"]+)"', page))
        for name in EVERY:
            answer = await client.get(f"/console/{name}")
            assert answer.status_code == 200
            asked |= {f"console/{other}" for other in re.findall(r'from "\./([^"]+)"', answer.text)}
        assert {f"console/{name}" for name in EVERY} == asked, "a file that nothing asks for"
        plotly = re.search(r'name="moca-plotly" content="([^"]+)"', page)
        alarm = re.findall(r'name="moca-(?:anomaly-alarm|alarm-silence)" content="(.+)"', page)
        assert alarm == ["0.999", "100"]
        answer = await client.get(f"/console/{plotly[1]}")
        assert answer.text.lstrip().startswith("/**\n* plotly.js")
        assert "immutable" in answer.headers["cache-control"]


@pytest.mark.parametrize(
    "path", ["/console/none.js", "/console/..%2fassets.py", "/console/__init__.py"]
)
async def test_nothing_else_is_served(start, settings, worker, path):
    async with start(settings) as client:
        answer = await client.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


async def test_packed_where_that_is_understood(start, settings, worker):
    async with start(settings) as client:
        plain = await client.get("/console/main.js", headers={"Accept-Encoding": "identity"})
        refused = await client.get("/console/main.js", headers={"Accept-Encoding": "gzip;q=0"})
        packed = await client.get("/console/main.js", headers={"Accept-Encoding": "br, gzip"})
    assert "content-encoding" not in plain.headers
    assert "content-encoding" not in refused.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content
    assert int(packed.headers["content-length"]) < len(plain.content) / 2
    assert plain.headers["vary"] == packed.headers["vary"] == "Accept-Encoding"
    assert plain.headers["etag"] != packed.headers["etag"]


async def test_an_unchanged_file_is_not_sent_again(start, settings, worker):
    async with start(settings) as client:
        first = await client.get("/console/main.js")
        known = {"If-None-Match": first.headers["etag"]}
        again = await client.get("/console/main.js", headers=known)
        other = await client.get("/console/dom.js", headers=known)
    assert first.headers["cache-control"] == "no-cache"
    assert (again.status_code, again.content) == (304, b"")
    assert other.status_code == 200


async def test_without_the_plotting_package_the_page_says_so(
    start, settings, worker, fresh, monkeypatch
):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(assets, "version", missing)
    async with start(settings) as client:
        assert '<meta name="moca-plotly" content=""' in (await client.get("/")).text


async def test_no_key_is_needed_for_the_page_and_one_for_its_data(start, settings, worker):
    locked = settings.model_copy(update={"require_keys": True})
    async with start(locked) as client:
        assert (await client.get("/")).status_code == 200
        assert (await client.get("/console/main.js")).status_code == 200
        assert (await client.get("/v1/overview")).status_code == 401


async def test_it_can_be_left_out(start, settings, worker):
    async with start(settings.model_copy(update={"no_console": True})) as client:
        assert (await client.get("/")).status_code == 404
        assert (await client.get("/console/main.js")).status_code == 404


def test_packing_is_the_same_each_time(fresh):
    first = assets.asset("main.js")
    assets._asset.cache_clear()
    assert assets.asset("main.js") == first
    assert gzip.decompress(first.packed) == first.content


def test_modules_are_small():
    for name in EVERY:
        assert len((assets.STATIC / name).read_text().splitlines()) <= 300, name
