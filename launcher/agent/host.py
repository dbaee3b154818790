"""A host as the launcher reaches it over SSH: one call per connection, `python agent.pyz host CALL`, its answer on stdout.

What a login shell prints comes before the answer, so that begins with a mark: a line of `ANSWER` and JSON. The request is one
line of JSON on stdin, or in arguments where the answer is a stream.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict, List

from . import host_checks, host_run, host_stream

ANSWER = "distlaunch-host-1 "
Request = Dict[str, Any]


def main(argv: List[str]) -> None:
    """Run one call; whatever goes wrong is an answer, too: `{"problem": ...}`."""
    call, rest = argv[0], argv[1:]
    if call == "tail":
        answer({})
        host_stream.tail(rest[0], int(rest[1]), int(rest[2]), once="--once" in rest)
        return
    if call == "signal":
        answer(host_run.send_signal(rest[0], int(rest[1]), int(rest[2]), force="--force" in rest))
        return
    calls = {"preflight": host_checks.preflight, "files": host_run.unpack, "start": host_run.start, "runs": host_run.runs}
    try:
        answer(calls[call](json.loads(sys.stdin.buffer.readline())))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        answer({"problem": f"{where}{error.strerror or error}"})
    except host_run.HostError as error:
        answer({"problem": str(error)})


def answer(value: Request) -> None:
    """Print the answer, with a line end before it: a banner may have none."""
    os.write(1, b"\n" + ANSWER.encode() + json.dumps(value).encode("ascii") + b"\n")
