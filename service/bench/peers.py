"""Other packages' steps, for `moca bench step`: measured where they are installed."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from service.bench.subjects import REGIME, label

FAST_BOCPD = "fast-bocpd"
RUN_LENGTHS = 200  # of fast-bocpd: its default
Update = Callable[[float], Any]


class Peer(NamedTuple):
    """name: of the package. description: what is set. module: imported. make: from that module.

    posterior: whether it computes probabilities of run lengths, as our steps do.
    """

    name: str
    description: str
    module: str
    make: Callable[[Any], Update]
    posterior: bool = True


class PeerStreams:
    """Streams of numbers that a package's detectors follow, one detector each."""

    def __init__(self, peer: Peer, module: Any, streams: int) -> None:
        self.peer = peer
        self.streams = streams
        self.at = 0
        self._updates = [peer.make(module) for _ in range(streams)]

    def walk(self, to: int) -> None:
        """Step through the series up to a time."""
        if self.at < to:
            self.time_us(to - self.at)

    def time_us(self, steps: int) -> float:
        """Thread CPU time of a step of one stream; the streams move on."""
        window = [self._labels(self.at + i) for i in range(steps)]
        began = time.thread_time()
        for labels in window:
            for update, y in zip(self._updates, labels, strict=True):
                update(y)
        took_s = time.thread_time() - began
        self.at += steps
        return 1e6 * took_s / steps / self.streams

    def _labels(self, t: int) -> list[float]:
        values: list[float] = label("real", 1, self.streams, t)[:, 0].tolist()
        return values


def _fast_bocpd(module: Any) -> Update:
    model = module.GaussianNIG(0.0, 1.0, 1.0, 1.0)
    update: Update = module.BOCPD(
        model, module.ConstantHazard(float(REGIME)), max_run_length=RUN_LENGTHS
    ).update
    return update


def _changepoint(module: Any) -> Update:
    update: Update = module.Bocpd(module.NormalGamma(), float(REGIME)).step
    return update


def _page_hinkley(module: Any) -> Update:
    update: Update = module.PageHinkley().update
    return update


def _adwin(module: Any) -> Update:
    update: Update = module.ADWIN().update
    return update


PEERS = (
    Peer(FAST_BOCPD, f"Gaussian, {RUN_LENGTHS} run lengths", "fast_bocpd", _fast_bocpd),
    Peer("changepoint", "normal-gamma, no truncation", "changepoint", _changepoint),
    Peer("river", "Page-Hinkley: a flag", "river.drift", _page_hinkley, False),
    Peer("river", "ADWIN: a flag", "river.drift", _adwin, False),
)


def installed() -> tuple[list[tuple[Peer, Any]], list[str]]:
    """Return the peers with their modules, and the names of those that are not installed."""
    peers: list[tuple[Peer, Any]] = []
    missing = []
    for peer in PEERS:
        try:
            peers.append((peer, import_module(peer.module)))
        except ImportError:
            missing.append(peer.name)
    return peers, sorted(set(missing))
