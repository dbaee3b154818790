"""Packs Python texts into one command-line argument, which runs them in order as parts of one program."""

from __future__ import annotations

import binascii
import zlib


def code(*texts: str) -> str:
    """The argument of `python -c`: one short line.

    Each text is read only after those before it have run, so the first can stop a Python that cannot read the others.
    No garbage is collected from the first import on: what is imported stays, and so does what is made for the agent.
    """
    steps = "".join(
        f"exec(zlib.decompress(binascii.a2b_base64('{packed(text.encode())}')).decode());" for text in texts
    )
    return f"import binascii,gc,zlib;gc.disable();{steps}"


def packed(data: bytes) -> str:
    """The bytes as a short word."""
    return binascii.b2a_base64(zlib.compress(data, 9), newline=False).decode()
