"""The script whose runs are hit."""

from __future__ import annotations

SCRIPT = "counts_lines.py"

LINES = 25

TEXT = f"""
import os, sys, time
again = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("begin", again, os.getpid(), flush=True)
for number in range({LINES}):
    print("line", again, number, flush=True)
    time.sleep(0.03)
if again == "0" and os.environ["RANK"] == "1":
    sys.exit(3)
print("end", again, flush=True)
"""
"""It needs no torch. Rank 1 fails once, so a restart may be hit too."""
