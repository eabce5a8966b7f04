"""Gzip files that can be read from any block on: each block is a member of its own, which says how long it is.

`zcat` reads them like any other gzip file (RFC 1952, sections 2.2 and 2.3.1.1: members, extra field). That a
member's length stands in its extra field, so that a reader can hop from one to the next, is the idea of BGZF
(SAM specification, section 4.1).
"""

from __future__ import annotations

import os
import struct
import zlib

import msgspec

_LEVEL = 4  # lines of ids: a quarter of level 6's time for 4 % more bytes
_START = b"\x1f\x8b\x08\x04"  # gzip, deflate, with an extra field
_SUBFIELD = b"VB"
_HEADER = struct.Struct("<4sIBBH2sHII")  # start, mtime, flags, system, extra bytes; subfield, its bytes, member, data
_TRAILER = struct.Struct("<II")  # CRC-32 and length of the data
_UNKNOWN_SYSTEM = 255


class Member(msgspec.Struct, frozen=True):
    """Where a block is: in the file (`offset`, `length`) and in the data (`start`), all in bytes."""

    offset: int
    length: int
    start: int


def pack(data: bytes) -> bytes:
    """A block of data as a gzip member."""
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = deflate.compress(data) + deflate.flush()
    length = _HEADER.size + len(body) + _TRAILER.size
    header = _HEADER.pack(_START, 0, 0, _UNKNOWN_SYSTEM, 12, _SUBFIELD, 8, length, len(data))
    return header + body + _TRAILER.pack(zlib.crc32(data), len(data))


def unpack(member: bytes) -> bytes:
    """The data of a member. Raises ValueError when it is damaged."""
    try:
        data = zlib.decompress(member[_HEADER.size : -_TRAILER.size], -zlib.MAX_WBITS)
    except zlib.error as e:
        raise ValueError(f"a block cannot be decompressed: {e}") from e
    if member[-_TRAILER.size :] != _TRAILER.pack(zlib.crc32(data), len(data)):
        raise ValueError("a block's checksum is wrong")
    return data


def members(fd: int) -> list[Member]:
    """All members of a file. Raises ValueError when `pack` has not made them, and OSError."""
    found: list[Member] = []
    offset, start, size = 0, 0, os.fstat(fd).st_size
    while offset < size:
        length, data_length = _lengths(os.pread(fd, _HEADER.size, offset))
        found.append(Member(offset, length, start))
        offset, start = offset + length, start + data_length
    return found


def _lengths(header: bytes) -> tuple[int, int]:
    if len(header) == _HEADER.size:
        magic, _, _, _, _, subfield, _, length, data_length = _HEADER.unpack(header)
        if magic == _START and subfield == _SUBFIELD and length > _HEADER.size:
            return length, data_length
    raise ValueError("not a gzip file of blocks")
