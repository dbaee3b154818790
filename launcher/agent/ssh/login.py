"""Python texts as one argument of a command line, which runs them one after the other as parts of one program."""

from __future__ import annotations

import base64
import zlib


def code(*texts: str) -> str:
    """What follows `python -c`: one line without quotes that a shell would take for its own, and short.

    Each text is read only when those before it have run, so the first one can end a Python that cannot read the others.
    """
    packed = [base64.b64encode(zlib.compress(text.encode(), 9)).decode() for text in texts]
    steps = "".join(f"exec(zlib.decompress(base64.b64decode('{each}')).decode());" for each in packed)
    return f"import base64,zlib;{steps}"
