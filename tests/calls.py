"""`distlaunch.call` on a cluster: a script that calls functions, and what it has to print."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.command import Result

SCRIPT = """
import json, sys
import distlaunch
import helper

options = json.loads(sys.argv[1])

def place(more, *, times):
    import os
    value = helper.ADDED + more * times
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["DISTLAUNCH_RUN_ID"], value

def large():
    import os
    return os.environ["RANK"] * 3_000_000

def fails():
    import os, time
    if os.environ["RANK"] == "1":
        raise LookupError("not here")
    time.sleep(600)

found = distlaunch.call(place, (20,), {"times": 2}, **options)
sizes = [len(value) for value in distlaunch.call(large, by="source", **options)]
try:
    distlaunch.call(fails, **options)
except distlaunch.WorkerError as error:
    failed = [error.rank, type(error.__cause__).__name__, str(error.__cause__), "in fails" in error.traceback]
print(json.dumps([found, sizes, failed]))
"""


def check(write: Callable[[str, str], object], run: Callable[..., Result], options: Mapping[str, Any]) -> None:
    """Call functions on two ranks with these options: values return by rank, large ones too, and so does an exception.

    `write` writes a file to the working directory, in which `run` runs a Python script.
    """
    write("helper.py", "ADDED = 2\n")
    write("calls.py", SCRIPT)

    done = run("calls.py", json.dumps(options))

    assert done.exit_code == 0, done.stderr[-3000:]
    found, sizes, failed = json.loads(done.stdout)
    assert [(rank, world, value) for rank, world, _, value in found] == [(0, 2, 42), (1, 2, 42)]
    assert len({run for _, _, run, _ in found}) == 1
    assert sizes == [3_000_000] * 2
    assert failed == [1, "LookupError", "not here", True]
