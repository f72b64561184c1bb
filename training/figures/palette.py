"""Colours, and how each method looks, in every figure: safe for the colour-blind (Okabe & Ito)."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import NamedTuple

INK, QUIET, GRID = "#1f2933", "#5f6b7a", "#e4e7eb"
CURRENT, EARLIER = "#d55e00", "#009e73"  # data of the present task and of those before
CHANGE = "#c8102e"  # true switches
CHOSEN = "#0072b2"  # times that are looked at
SEGMENTS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#5f6b7a")
BELIEF, VALUE = "Blues", "Viridis"  # colour scales that both renderers know by this name


class Look(NamedTuple):
    """How a method is drawn: told apart by colour, symbol and dash alike."""

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
    """The look of a method, the same everywhere; one not of the paper gets one of the others."""
    return METHODS.get(method) or OTHERS[zlib.crc32(method.encode()) % len(OTHERS)]


def ordered(methods: Iterable[str]) -> list[str]:
    """In the order of the paper; others after them, as given."""
    given, known = list(methods), list(METHODS)
    return sorted(given, key=lambda each: known.index(each) if each in METHODS else len(known))
