"""Checksums of stored parts: a damaged one is refused before anything of it is used.

Layout: 0xC1, CRC-32 of place and body (u32, little-endian), body. The place (kind of part, owner,
field) is in the checksum and not stored, so that bytes that belong elsewhere do not fit. The
partition is no part of the place: a backup may be restored with another number of them.

CRC-32 finds all damage within 32 neighbouring bits, and any other but for one in 4 billion. It
takes 4 bytes and the time of reading them once. It is no protection against forgery.
"""

from __future__ import annotations

from zlib import crc32

MARK = b"\xc1"
SIZE = 5  # of what precedes the body


class Damaged(ValueError):
    """Bytes that do not fit their checksum at this place."""


def checksummed(body: bytes, part: str, owner: object, field: object = "") -> bytes:
    """Return a body with its checksum; part, owner and field are its place."""
    place = f"{part}\0{owner}\0{field}".encode()
    return MARK + crc32(body, crc32(place)).to_bytes(4, "little") + body


def checked(blob: bytes, part: str, owner: object, field: object = "") -> bytes:
    """Return the body of what `checksummed` made; raises Damaged."""
    body = blob[SIZE:]
    place = f"{part}\0{owner}\0{field}".encode()
    crc = int.from_bytes(blob[1:SIZE], "little")
    if blob[:1] != MARK or len(blob) < SIZE or crc != crc32(body, crc32(place)):
        raise Damaged("checksum mismatch")
    return body
