"""Packs Python texts into one command-line argument, which runs them in order as parts of one program."""

from __future__ import annotations

import base64
import zlib


def code(*texts: str) -> str:
    """The argument of `python -c`: one short line.

    Each text is read only after those before it have run, so the first can stop a Python that cannot read the others.
    """
    packed = [base64.b64encode(zlib.compress(text.encode(), 9)).decode() for text in texts]
    steps = "".join(f"exec(zlib.decompress(base64.b64decode('{each}')).decode());" for each in packed)
    return f"import base64,zlib;{steps}"
