"""Damaged copies of the agent's archive."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib

from launcher.agent import bytecode


def with_damaged_seldom_modules(archive: bytes) -> bytes:
    """The archive, in which no module can be imported that is compressed, as no start imports it."""
    members = zipfile.ZipFile(io.BytesIO(archive))
    member = next(each for each in members.infolist() if each.filename.endswith(bytecode.SUFFIX))
    whole = members.read(member)
    damaged = whole
    for _, is_compressed, code in bytecode._unpack(whole).values():
        if is_compressed:
            damaged = damaged.replace(bytes(code), bytes(len(code)))
    assert damaged != whole
    checksums = struct.pack("<I", member.CRC), struct.pack("<I", zlib.crc32(damaged))
    return archive.replace(whole, damaged).replace(*checksums)
