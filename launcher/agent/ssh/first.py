"""The second text that a login's Python runs: it reads the request, which brings the program that answers it.

That is `boot.py`, as a text and as the bytecode of the launcher's Python: to compile it takes longer than all it does.
"""

import binascii
import importlib.util
import json
import marshal
import sys
import zlib
from typing import Any


def _unpacked(text: str) -> bytes:
    return zlib.decompress(binascii.a2b_base64(text))


def _program(text: str, code: str, magic: str) -> Any:
    if magic == importlib.util.MAGIC_NUMBER.hex():
        return marshal.loads(_unpacked(code))  # noqa: S302 - sent by the launcher
    return _unpacked(text)


if __name__ == "__main__":
    _request = json.loads(sys.stdin.buffer.readline())
    exec(_program(**_request.pop("program")))  # noqa: S102 - sent by the launcher
