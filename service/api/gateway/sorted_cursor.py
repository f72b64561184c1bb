"""Cursors of sorted pages: the place of the last row, and the order that it is a place of."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from service import wire
from service.problems import FieldError, InvalidField

Place = TypeVar("Place")


class SortedCursor(Generic[Place]):
    """Cursors of pages whose rows have places of one type, a tuple."""

    def __init__(self, place: Any) -> None:
        """place: the type of places, as msgspec takes it."""
        self._decode: Callable[[bytes], tuple[str, Place]] = msgspec.msgpack.Decoder(
            tuple[str, place]
        ).decode

    def encode(self, sort: str, place: Place) -> str:
        """Return the cursor of the page after a place."""
        return base64.urlsafe_b64encode(wire.encode((sort, place))).rstrip(b"=").decode()

    def decode(self, cursor: str | None, sort: str) -> Place | None:
        """Return the place of a cursor; raises InvalidField for one that is none of this order."""
        if cursor is None:
            return None
        try:
            padded = cursor + "=" * (-len(cursor) % 4)
            other, place = self._decode(base64.b64decode(padded, altchars=b"-_", validate=True))
        except (binascii.Error, ValueError, msgspec.MsgspecError):
            detail = "expected the unmodified cursor of a page"
        else:
            if other == sort:
                return place
            detail = f"expected a cursor of sort={sort}, got one of sort={other}"
        raise InvalidField([FieldError("query.cursor", detail)])
