"""Draw the pictures of the README and docs/fit.md against a running service: run this file."""

import csv
import os
import random
import tempfile
from importlib import resources
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

from moca_client.plots import BAND, BAND_ALPHA, COLOURS, band, draw_alarm
from moca_client.replay import replay
from model_core import Detector

URL = os.environ.get("MOCA_URL", "http://127.0.0.1:8000")
IMAGES = Path(__file__).parent.parent / "images"
LIMIT = "#d9822b"
REGIMES = ((120, 180, 12), (100, 201, 12), (80, 201, 4))  # observations, mean, deviation


def samples():
    """Replay both sample series, and draw what `moca replay` draws."""
    for stream, model in (("nile", "gaussian"), ("coal", "poisson")):
        packaged = resources.files("service.samples") / f"{stream}.csv"
        with resources.as_file(packaged) as file:
            replayed = replay(
                file,
                url=URL,
                stream=stream,
                model=model,
                out=IMAGES / f"fit-{stream}.png",
                existing="replace",
            )
        for event in replayed.events:
            confirmed = event.confirmed_at and replayed.when(event.confirmed_at)
            print(stream, event.state, replayed.when(event.start), "confirmed", confirmed)


def switch():
    """Compare the service with limits fixed at three deviations of the first 20 observations."""
    rng = random.Random(8)
    series = np.round([rng.gauss(m, s) for n, m, s in REGIMES for _ in range(n)], 1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "checkout.csv"
        with file.open("w", newline="") as opened:
            csv.writer(opened).writerows([["ms"], *([y] for y in series)])
        out = Path(folder) / "checkout.png"
        replayed = replay(
            file, url=URL, stream="checkout", model="gaussian", out=out, existing="replace"
        )
    center, spread = series[:20].mean(), series[:20].std(ddof=1)
    outside = np.flatnonzero(np.abs(series - center) > 3 * spread)
    print("fixed limits:", len(outside), "outside:", outside)
    starts = [(e.start, e.confirmed_at, e.direction, e.size) for e in replayed.events]
    print("service:", starts)
    draw(replayed, series, (center - 3 * spread, center + 3 * spread), outside)


def draw(replayed, series, limits, outside):
    """Draw data with band and limits, evidence of a change, and run length."""
    x = np.arange(len(series))
    figure, (data, alarm, length) = plt.subplots(
        3,
        1,
        figsize=(11, 6.4),
        dpi=80,
        sharex=True,
        height_ratios=(2.6, 1.1, 1.1),
        layout="constrained",
    )
    forecast = band(replayed, 0)
    data.fill_between(
        x, forecast.low, forecast.high, color=BAND, alpha=BAND_ALPHA, lw=0, label="90 % band"
    )
    data.plot(x, forecast.middle, color=COLOURS["forecast"], lw=1.4, ls=":", label="median")
    data.scatter(x, series, s=9, color=COLOURS["label"], lw=0, zorder=3, label="observed")
    for limit in limits:
        data.axhline(
            limit,
            color=LIMIT,
            lw=1.4,
            ls="--",
            label="fixed limits" if limit == limits[0] else None,
        )
    data.scatter(
        outside,
        series[outside],
        s=60,
        facecolor="none",
        edgecolor=LIMIT,
        lw=1.6,
        zorder=4,
        label="outside limits",
    )
    data.set_ylim(130, 240)
    data.set_ylabel("ms")
    data.set_title("simulated response time", loc="left", fontsize=12)
    data.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=5, frameon=False, fontsize=10)
    draw_alarm(alarm, replayed, x)
    length.step(
        x,
        [np.nan if a.run_length is None else a.run_length.map for a in replayed.answers],
        where="mid",
        color=COLOURS["tried"],
        lw=1.6,
    )
    length.set_ylabel("run length")
    length.set_xlabel("observation")
    for event in replayed.events:
        if event.state == "confirmed":
            for panel in (data, alarm, length):
                panel.axvline(
                    event.start - 0.5, color=COLOURS["state-confirmed"], lw=1.1, ls=(0, (5, 2))
                )
    for panel in (data, alarm, length):
        panel.axvspan(-0.5, 19.5, color=COLOURS["raised"], lw=0, zorder=0)
        panel.set_xlim(-0.5, len(series) - 0.5)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color=COLOURS["line"], lw=0.6)
        panel.set_axisbelow(True)
    length.annotate("warm-up", (9.5, 60), ha="center", color=COLOURS["quiet"], fontsize=9)
    figure.savefig(IMAGES / "fit-switch.png")


def glance():
    """Draw the README's picture: a series with fixed limits, and what `Detector` says of it."""
    text = (resources.files("service.samples") / "nile.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    years = np.array([int(row["time"][:4]) for row in rows])
    flow = np.array([float(row["y"]) for row in rows])
    detector = Detector()
    detector.update_many(flow)
    (event,) = detector.events
    start = years[event.start] - 0.5
    figure, (before, after) = plt.subplots(
        1, 2, figsize=(11, 2.9), dpi=80, sharey=True, layout="constrained"
    )
    for limit in flow[:20].mean() + flow[:20].std(ddof=1) * np.array((-3, 3)):
        before.axhline(limit, color=LIMIT, lw=1.4, ls="--")
    before.set_title("a series, and fixed limits", loc="left", fontsize=12)
    after.axvline(start, color=COLOURS["state-confirmed"], lw=1.4, ls=(0, (5, 2)))
    first, last = (years[0], start), (start, years[-1])
    for (since, until), there in ((first, years < start), (last, years > start)):
        mean, sd = flow[there].mean(), flow[there].std(ddof=1)
        after.plot((since, until), (mean, mean), color=COLOURS["forecast"], lw=1.8)
        after.fill_between(
            (since, until), mean - 2 * sd, mean + 2 * sd, color=BAND, alpha=0.25, lw=0
        )
    said = f"{event.sentence}, since {years[event.start]}"
    after.set_title(said, loc="left", fontsize=12, weight="bold")
    for panel in (before, after):
        panel.scatter(years, flow, s=9, color=COLOURS["label"], lw=0, zorder=3)
        panel.set_xlim(years[0] - 1, years[-1] + 1)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color=COLOURS["line"], lw=0.6)
        panel.set_axisbelow(True)
    figure.savefig(IMAGES / "before-after.png")


def compact(file):
    """Make a picture a fraction of its size: 256 colours, the rare ones among them."""
    whole = Image.open(file).convert("RGB")
    whole.quantize(256, method=Image.Quantize.MAXCOVERAGE).save(file, optimize=True)


if __name__ == "__main__":
    glance()
    samples()
    switch()
    for picture in (IMAGES / "before-after.png", *IMAGES.glob("fit-*.png")):
        compact(picture)
