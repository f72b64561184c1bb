"""Draw the pictures of docs/console.md: start an empty `moca serve`, then run this file.

Needs playwright and Chromium. A fleet of 208 streams, of which ten change together.
"""

import itertools
import os
import random
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from moca_client import Client

URL = os.environ.get("MOCA_URL", "http://127.0.0.1:8000")
IMAGES = Path(__file__).parent.parent / "images"
METRICS = ("cpu", "mem", "disk", "rps", "p50", "p99", "err", "gc", "conn", "lag")
SERVICES = ("pay", "cart", "search", "mail")
REGIONS = ("eu", "us", "asia", "sa", "af")
MINUTES = 300
SETTLED_MS = 6000
TOGETHER = 230  # minute at which all metrics of one service change
SINGLE = {"us.cart.p99": (120, 3, 1), "asia.mail.rps": (180, -2, 1), "host-3": (60, 0, 4)}
SINGLE |= {"sa.search.gc": (255, 1.5, 1), "us.pay.err": (40, 4, 2)}
PICTURES = {
    "console-changes": (1320, 920, "light", "#/"),
    "console-dark": (1320, 920, "dark", "#/"),
    "console-incident": (1320, 880, "light", None),
    "console-stream": (1320, 1000, "light", "#/streams/eu.pay.p99"),
    "console-streams": (1320, 600, "light", "#/streams"),
    "console-narrow": (390, 844, "light", "#/"),
}


def fleet():
    """Names and tags of the streams."""
    for region, service, metric in itertools.product(REGIONS, SERVICES, METRICS):
        tags = {"region": region, "service": service, "metric": metric}
        yield f"{region}.{service}.{metric}", tags
    for number in range(8):
        yield f"host-{number}", {"metric": "load"}


def values(name, rng):
    """A value a minute."""
    level, sd = rng.uniform(20, 300), rng.uniform(1, 10)
    start, shift, scale = SINGLE.get(name, (MINUTES, 0, 1))
    if name.startswith("eu.pay."):
        start, shift = TOGETHER, rng.choice((-1, 1)) * rng.uniform(2, 5)
    for minute in range(MINUTES):
        z = rng.gauss(0, 1) if minute < start else shift + scale * rng.gauss(0, 1)
        yield round(level + sd * z, 2)


def post(client):
    """Post the fleet's observations, the last of them of now."""
    rng = random.Random(5)
    began = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=MINUTES - 1)
    times = [(began + timedelta(minutes=minute)).isoformat() for minute in range(MINUTES)]
    for name, tags in fleet():
        client.put_stream(name, {"tags": tags})
        rows = zip(times, values(name, rng), strict=True)
        client.observe(name, [{"time": time, "y": y} for time, y in rows])


def draw(incident):
    """Take the pictures, in 256 colours."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (width, height, scheme, place) in PICTURES.items():
            page = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme=scheme,
                device_scale_factor=1.5 if width < 600 else 1,
            ).new_page()
            page.goto(f"{URL}/{place or f'#/incidents/{incident}'}")
            page.wait_for_selector("main h1")
            page.wait_for_timeout(SETTLED_MS)  # charts are drawn, and nothing is fetched any more
            page.screenshot(path=IMAGES / f"{name}.png")
            whole = Image.open(IMAGES / f"{name}.png").convert("RGB")
            whole.quantize(256).save(IMAGES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    with Client(URL, timeout_s=300) as client:
        post(client)
        (largest, *_) = client.incidents(sort="streams")
        draw(largest.id)
