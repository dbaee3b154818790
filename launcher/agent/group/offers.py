"""What all nodes tell one another, as one text: many nodes read it, and most of it is alike."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Sequence

_MAX_BYTES = 2048
"""Longer texts are packed; most runs have a shorter one, which people can read."""


def pack(texts: Sequence[bytes]) -> str:
    """The JSON objects as a list; packed if it is long."""
    whole = b"[" + b",".join(texts) + b"]"
    if len(whole) <= _MAX_BYTES:
        return whole.decode()
    import base64
    import zlib

    return base64.b85encode(zlib.compress(whole)).decode("ascii")


def unpack(text: bytes) -> List[Dict[str, Any]]:
    """The objects."""
    whole = text
    if not text.startswith(b"["):
        import base64
        import zlib

        whole = zlib.decompress(base64.b85decode(text))
    found: List[Dict[str, Any]] = json.loads(whole)
    return found
