"""The console's files: what is sent, how it is kept, and what a page may do."""

import re
from importlib.metadata import PackageNotFoundError
from unittest.mock import Mock

import pytest

from service.console import assets
from tests.service.api.conftest import slug


@pytest.fixture
def fresh():
    """The page is made once: not for a test that changes what it is made of."""
    for cached in (assets.page, assets.plotly_name):
        cached.cache_clear()
    yield
    for cached in (assets.page, assets.plotly_name):
        cached.cache_clear()


async def test_the_page_has_no_script_of_its_own_and_asks_no_other_origin(api):
    answer = await api.get("/")
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


async def test_every_file_that_is_asked_for_is_there_and_nothing_else(api):
    every = [file.name for file in assets.STATIC.iterdir()]
    page = (await api.get("/")).text
    asked = set(re.findall(r'(?:src|href)="(console/[^"]+)"', page))
    for name in every:
        answer = await api.get(f"/console/{name}")
        assert answer.status_code == 200
        asked |= {f"console/{other}" for other in re.findall(r'from "\./([^"]+)"', answer.text)}
    assert {f"console/{name}" for name in every} == asked, "a file that nothing asks for"
    plotly = re.search(r'name="moca-plotly" content="([^"]+)"', page)
    answer = await api.get(f"/console/{plotly[1]}")
    assert answer.text.lstrip().startswith("/**\n* plotly.js")
    assert "immutable" in answer.headers["cache-control"]
    for path in ("none.js", "..%2fassets.py", "__init__.py"):
        answer = await api.get(f"/console/{path}")
        assert (answer.status_code, slug(answer)) == (404, "not-found")


async def test_files_are_packed_where_that_is_understood_and_not_sent_again(api):
    plain = await api.get("/console/main.js", headers={"Accept-Encoding": "identity"})
    packed = await api.get("/console/main.js", headers={"Accept-Encoding": "br, gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content
    assert plain.headers["vary"] == packed.headers["vary"] == "Accept-Encoding"
    assert packed.headers["cache-control"] == "no-cache"
    known = {"If-None-Match": packed.headers["etag"], "Accept-Encoding": "gzip"}
    again = await api.get("/console/main.js", headers=known)
    assert (again.status_code, again.content) == (304, b"")
    assert (await api.get("/console/dom.js", headers=known)).status_code == 200
    assert again.headers["cache-control"] == "no-cache"
    assert "default-src 'none'" in again.headers["content-security-policy"]


async def test_a_browser_that_is_lost_gets_a_page_in_words(api, start, settings):
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    answer = await api.get("/some/<where>", headers=browser)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "/some/&lt;where&gt;" in answer.text
    assert 'href="../docs"' in answer.text  # also behind a proxy that cuts a prefix
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    for sheet in re.findall(r'href="\.\./(console/[^"]+)"', answer.text):
        assert (await api.get(f"/{sheet}")).status_code == 200
    answer = await api.get("/nowhere", headers=browser)
    assert 'href="./docs"' in answer.text
    assert slug(await api.get("/nowhere")) == "not-found"
    async with start(settings, no_console=True) as client:
        assert slug(await client.get("/nowhere", headers=browser)) == "not-found"


async def test_without_the_plotting_package_the_page_says_so(api, fresh, monkeypatch):
    monkeypatch.setattr(assets, "version", Mock(side_effect=PackageNotFoundError))
    assert '<meta name="moca-plotly" content=""' in (await api.get("/")).text


async def test_it_needs_no_key_but_its_data_do_and_it_can_be_left_out(start, settings, worker):
    async with start(settings, require_keys=True) as client:
        assert (await client.get("/")).status_code == 200
        assert (await client.get("/console/main.js")).status_code == 200
        assert (await client.get("/v1/overview")).status_code == 401
    async with start(settings, no_console=True) as client:
        assert (await client.get("/")).status_code == 404
        assert (await client.get("/console/main.js")).status_code == 404
