"""Prints how many arguments it has, and a checksum of them and of its variables LARGE0, LARGE1, ..."""

import os
import sys
import zlib

text = "\n".join([*sys.argv[1:], *(os.environ[name] for name in sorted(os.environ) if name.startswith("LARGE"))])
print("large", len(sys.argv), len(text), zlib.crc32(text.encode()), flush=True)
