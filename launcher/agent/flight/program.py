"""Runs what reads dumps in a process of its own, with limits on time and memory: JSON to its stdin and from stdout."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from typing import Any, Dict, Optional

from ..system.scratch import within

_MEMORY_BYTES = 4 << 30
_ENDS_S = 0.5
"""How long it may take to end when it is killed."""

_START = """\
import sys
sys.path[:] = filter(None, sys.path)
import importlib, os
name, *places = sys.argv[1:]
package = name.partition(".")[0]
sys.path.insert(0, os.path.dirname(places[0]))
importlib.import_module(package).__path__[:] = places
importlib.import_module(name).main()
"""
"""Nothing is imported from the working directory, whose files may be anybody's. A pod's agent is several archives."""

READ, ANALYSE = "read", "analyse"


class FailedError(Exception):
    """It gave no answer; the message says why."""


def ask(request: Dict[str, Any], limit_s: float) -> Dict[str, Any]:
    """The answer to a request of the form `{"do": READ or ANALYSE, ...}`; raises `FailedError`.

    Not even SIGKILL ends a program that waits for a dead disk, and it cannot be started from one: it is left behind.
    """
    late = {"failed": f"it takes longer than {limit_s:.0f} s"}
    answer = within(limit_s + _ENDS_S, lambda: _asked(request, limit_s) or late, late)
    if "failed" in answer:
        raise FailedError(answer["failed"])
    return answer


def _asked(request: Dict[str, Any], limit_s: float) -> Optional[Dict[str, Any]]:
    """The answer, or why it failed; None if it takes too long."""
    places = map(os.path.abspath, sys.modules[__name__.partition(".")[0]].__path__)
    argv = [sys.executable, "-c", _START, __name__, *places]
    try:
        done = subprocess.run(
            argv, input=json.dumps(request).encode(), capture_output=True, timeout=limit_s, check=False
        )
        answer: Dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return None
    except (OSError, ValueError) as error:
        return {"failed": f"{type(error).__name__}: {error}"[:200]}
    return answer


def main() -> None:
    """Answer the request on stdin."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    request = json.load(sys.stdin)
    out, sys.stdout = sys.stdout, sys.stderr  # torch's analyser prints
    try:
        answer = _answer(request)
    except Exception as error:  # noqa: BLE001 - whatever is wrong is said by the one who asked
        answer = {"failed": f"{type(error).__name__}: {error}"[:200]}
    out.write(json.dumps(answer))
    out.flush()


def _answer(request: Dict[str, Any]) -> Dict[str, Any]:
    from . import analysis, dumps

    if request["do"] == READ:
        found = dumps.read(request["paths"])
        return {"dumps": dumps.packed(found["ranks"]) if found["ranks"] else "", "unreadable": found["unreadable"]}
    ranks: Dict[int, Dict[str, Any]] = {}
    for text in request["dumps"]:
        for rank, dump in dumps.unpacked(text).items():
            ranks[int(rank)] = dump
    try:
        return {"findings": analysis.analyse(ranks) if ranks else []}
    except analysis.NoAnalyserError:
        return {"failed": "this torch has no analyser"}
