"""Colours and the look of each method, safe for the colour-blind (Okabe & Ito)."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import NamedTuple

INK = "#1f2933"
QUIET = "#5f6b7a"
GRID = "#e4e7eb"
CURRENT = "#d55e00"  # data of the current task
EARLIER = "#009e73"  # data of earlier tasks
CHANGE = "#c8102e"  # true switches
CHOSEN = "#0072b2"  # selected times
SEGMENTS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#5f6b7a")
BELIEF = "Blues"  # plotly's colour scales
VALUE = "Viridis"


class Look(NamedTuple):
    """Look of a method: colour, symbol and dash each identify it."""

    colour: str
    symbol: str
    dash: str


METHODS = {
    "MOCA": Look("#0072b2", "circle", "solid"),
    "oracle": Look("#1f2933", "diamond", "dash"),
    "SW5": Look("#e69f00", "square", "solid"),
    "SW10": Look("#d55e00", "triangle-up", "solid"),
    "SW50": Look("#cc79a7", "triangle-down", "solid"),
    "TOE": Look("#009e73", "x", "dot"),
    "COE": Look("#56b4e9", "cross", "dot"),
}
OTHERS = (
    Look("#7f5539", "circle", "dash"),
    Look("#5f6b7a", "square", "dash"),
    Look("#6a3d9a", "diamond", "dot"),
)


def look(method: str) -> Look:
    """Look of a method, the same in every figure; methods not in the paper share `OTHERS`."""
    return METHODS.get(method) or OTHERS[zlib.crc32(method.encode()) % len(OTHERS)]


def ordered(methods: Iterable[str]) -> list[str]:
    """In the order of the paper; others after them, in their own order."""
    known = list(METHODS)
    return sorted(methods, key=lambda name: known.index(name) if name in METHODS else len(known))
