"""Chromium on the console of a real service; skipped where there is no Chromium."""

import asyncio
import json
import random
import shutil
import subprocess
import tarfile
import threading
import time
from urllib.parse import urlsplit

import httpx
import pytest

from service.runtime.embedded import Embedded
from tests.e2e.deployment import Processes, wait_ready
from tests.ports import free_port

AXE = "4.14.1"
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
WAIT_MS = 30_000  # on a busy machine; most things take a tenth of a second


@pytest.fixture(scope="module")
def chromium():
    """A browser. Not for the session: what drives it keeps an event loop running in this thread."""
    if not CHROMIUM:
        pytest.skip("no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api")
    playwright.expect.set_options(timeout=WAIT_MS)
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    """Start a service in a folder of its own; each is stopped at the end, with its store."""
    started = []

    def begin(*command, **environment):
        folder, port = tmp_path_factory.mktemp("console"), free_port()
        processes = Processes(folder, {"MOCA_PARTITIONS": "8", **environment})
        started.append((processes, folder))
        places = ["--data-dir", str(folder / "data"), "--port", str(port)]
        processes.start("service", *command, *places)
        wait_ready(f"http://127.0.0.1:{port}", 90)
        return f"http://127.0.0.1:{port}", folder

    yield begin
    for processes, folder in started:
        processes.stop_all()
        store = Embedded(folder / "data")
        store.start()
        store.stop()


@pytest.fixture(scope="session")
def demo(start, tmp_path_factory):
    """URL of `moca demo`, once both samples went through it."""
    url, _ = start("demo", "--plots-dir", str(tmp_path_factory.mktemp("plots")))
    with httpx.Client(base_url=url, timeout=60) as client:
        for _ in range(900):
            found = client.get("/v1/streams/coal")
            if found.status_code == 200 and found.json()["seq"] == 112:
                return url
            time.sleep(0.1)
    raise AssertionError("the samples did not go through")


@pytest.fixture
def client(demo):
    with httpx.Client(base_url=demo, timeout=60) as made:
        yield made


class Cable:
    """What lies between a browser and a service, and can be cut."""

    def __init__(self, url):
        self._behind = httpx.URL(url)
        self._port, self._open = free_port(), set()
        self.url = f"http://127.0.0.1:{self._port}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.mend()

    def mend(self):
        self._listener = self._do(asyncio.start_server(self._accept, "127.0.0.1", self._port))

    def cut(self):
        self._do(self._cut())

    def close(self):
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, wanted):
        return asyncio.run_coroutine_threadsafe(wanted, self._loop).result(10)

    async def _cut(self):
        self._listener.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self, reader, writer):
        task = asyncio.current_task()
        self._open.add(task)
        ends = [writer]
        try:
            there, back = await asyncio.open_connection(self._behind.host, self._behind.port)
            ends.append(back)
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            for end in ends:
                end.transport.abort()

    async def _pump(self, reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()


@pytest.fixture
def cable(demo):
    made = Cable(demo)
    yield made
    made.close()


class Watched:
    """A page, what its console said, and where it sent requests."""

    def __init__(self, page):
        self.page, self.errors, self.origins, self.paths = page, [], set(), []
        page.on("console", lambda said: said.type == "error" and self.errors.append(said.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._asked)
        page.set_default_timeout(WAIT_MS)

    def _asked(self, request):
        url = urlsplit(request.url)
        if url.scheme in {"http", "https", "ws", "wss"}:
            self.origins.add(f"{url.scheme}://{url.netloc}")
            self.paths.append(f"{url.path}?{url.query}")


@pytest.fixture
def watched(chromium):
    """Open pages; at the end none may have had an error or asked another origin."""
    opened, contexts = [], []

    def begin(url, errors=(), **options):
        contexts.append(chromium.new_context(**options))
        found = Watched(contexts[-1].new_page())
        opened.append((found, url, errors))
        return found

    yield begin
    for context in contexts:
        context.close()
    for found, url, errors in opened:
        unexpected = [e for e in found.errors if not any(each in e for each in errors)]
        assert unexpected == []
        assert found.origins <= {url}


@pytest.fixture
def page(watched, demo):
    return watched(demo).page


@pytest.fixture
def stream(client, request):
    """A stream of its own, named after the test, of known units."""
    name = request.node.name.partition("[")[0]
    settings = {"model": "gaussian", "location": 10.0, "scale": 1.0}
    assert client.put(f"/v1/streams/{name}", json=settings).status_code == 201
    return name


def post(client, stream, level, count, seed=1):
    rng = random.Random(seed)
    body = [{"y": rng.gauss(level, 0.5)} for _ in range(count)]
    response = client.post(f"/v1/streams/{stream}/observations", json=body)
    assert response.status_code == 200, response.text
    return response.json()


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


def drawn(page):
    """Wait until the chart is there; its figure as plotly has it."""
    page.wait_for_selector(".plot[data-drawn]")
    return figure(page)


def figure(page):
    return json.loads(
        page.evaluate(
            """() => { const { data, layout } = document.querySelector(".plot");
            const [level, lines] = [true, false].map((is) =>
              (layout.shapes ?? []).filter((each) => (each.xref === "paper") === is));
            return JSON.stringify({ data, shapes: lines, threshold: level[0]?.y0 ?? null }); }"""
        )
    )


def until(page, condition):
    """Wait for a condition in JavaScript; playwright's own way evaluates text in the page."""
    end = time.monotonic() + WAIT_MS / 1000
    while not page.evaluate(condition):
        assert time.monotonic() < end, f"not in time: {condition}"
        time.sleep(0.05)
