"""A command as large as torchrun accepts: 400 KB of arguments and 240 KB of variables."""

from __future__ import annotations

import random
import zlib

from tests.command import ROOT

SCRIPT = ROOT / "tests/scripts/large.py"
_CHANCE = random.Random(1)
ARGUMENTS = [_CHANCE.randbytes(50_000).hex() for _ in range(4)]
VARIABLES = [_CHANCE.randbytes(40_000).hex() for _ in range(3)]
OPTIONS = [word for number, value in enumerate(VARIABLES) for word in ("--env", f"LARGE{number}={value}")]
_TEXT = "\n".join([*ARGUMENTS, *VARIABLES])
PRINTED = f"large {len(ARGUMENTS) + 1} {len(_TEXT)} {zlib.crc32(_TEXT.encode())}"
"""What the script then prints."""
