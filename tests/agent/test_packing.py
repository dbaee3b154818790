"""The agent's archive."""

from __future__ import annotations

import subprocess
import sys

PACK = """
import sys
if sys.argv[1:]:
    for text in map(chr, range(256)):
        sys.intern(text)
    import http.client, email.mime.text
from launcher.payload import agent_archive, agent_packing
sys.stdout.buffer.write(agent_packing.whole(agent_archive.sources()))
"""


def test_any_process_packs_the_same_bytes() -> None:
    """Their digest is the agent's name: a host has it, and a server that stands fits, whatever has packed it."""
    packed = [
        subprocess.run([sys.executable, "-c", PACK, *words], capture_output=True, timeout=60, check=True).stdout
        for words in ([], ["after others"])
    ]
    assert packed[0] == packed[1]
    assert len(packed[0]) > 1_000_000
