"""Canaries: a version of a model that only a share of the new streams is made with."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import msgspec
from msgspec import Struct

PARTS = 1_000_000  # a share is told apart from another by as many


class Canary(Struct):
    """A model's canary: a share of its new streams is created with this version."""

    version: str
    share: float


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Canary).decode


def chosen(canary: Canary, name: str, stream: str, versions: Sequence[str]) -> str | None:
    """Return the NAME@VERSION of a new stream; None where there is no choice.

    The stream's id decides, so that it always comes to the same. versions: usable ones, from old to
    new.
    """
    others = [version for version in versions if version != canary.version]
    if canary.version not in versions or not others:
        return None
    picked = crc32(f"canary {stream}".encode()) % PARTS < canary.share * PARTS
    return f"{name}@{canary.version if picked else others[-1]}"
