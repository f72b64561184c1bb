"""Chromium on the console, before a stand-in for the service; skipped if there is no Chromium."""

import shutil
import subprocess
import tarfile
from urllib.parse import urlsplit

import pytest

from tests.e2e.console.fake import FakeApi
from tests.waiting import PATIENCE_S

AXE = "4.14.1"
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)


@pytest.fixture(scope="module")
def chromium():
    """A browser. Not for the session: what drives it keeps an event loop running in this thread."""
    if not CHROMIUM:
        pytest.skip("no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api")
    playwright.expect.set_options(timeout=1000 * PATIENCE_S)
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def tabs(chromium):
    """The window of all pages that need none of their own: one costs as much as a page."""
    return chromium.new_context()


@pytest.fixture
def fake():
    with FakeApi() as server:
        yield server


@pytest.fixture
def opened(chromium, tabs, fake):
    """Open pages of a service; at the end none may have had an error or asked another origin.

    A page whose clock is moved, or with options of a window, has a window of its own. The stand-in
    ends after the pages: one that follows it would ask anew, and count that as an error.
    """
    pages = []
    opened = []

    def begin(url, errors=(), own=False, **options):
        window = chromium.new_context(**options) if own or options else tabs
        page = window.new_page()
        opened.append(page if window is tabs else window)
        page.set_default_timeout(1000 * PATIENCE_S)
        errors_seen, origins = [], set()
        page.on("console", lambda each: each.type == "error" and errors_seen.append(each.text))
        page.on("pageerror", lambda error: errors_seen.append(str(error)))
        page.on("request", lambda request: origins.add(urlsplit(request.url)[:2]))
        pages.append((url, errors, errors_seen, origins))
        return page

    yield begin
    for page_or_window in opened:
        page_or_window.close()
    for url, errors, errors_seen, origins in pages:
        assert [text for text in errors_seen if not any(each in text for each in errors)] == []
        assert {each for each in origins if each[0] in ("http", "https")} <= {urlsplit(url)[:2]}


@pytest.fixture
def page(opened, fake):
    return opened(fake.url)


@pytest.fixture(scope="session")
def axe(tmp_path_factory):
    """The text of axe-core, from the package registry as npm is set up to use it."""
    if shutil.which("npm") is None:
        pytest.skip("no npm to fetch axe-core with")
    folder = tmp_path_factory.mktemp("axe")
    command = ["npm", "pack", f"axe-core@{AXE}", "--silent", "--pack-destination", str(folder)]
    try:
        fetched = subprocess.run(command, capture_output=True, timeout=120, check=False, cwd=folder)
    except subprocess.TimeoutExpired:
        pytest.skip("axe-core could not be fetched in time")
    packed = next(folder.glob("*.tgz"), None)
    if fetched.returncode or packed is None:
        pytest.skip("axe-core could not be fetched")
    with tarfile.open(packed) as archive:
        return archive.extractfile("package/axe.min.js").read().decode()
