"""One call to a host's agent, which runs only after a check that it is the one that its name says.

The launcher sends this program on the command line after the text of `system/trust.py`, whose function is then a
global here. Its arguments: a JSON list of the agent's path, of what to print if neither the agent nor the run's
directory is there any more, of where their disk was mounted, and of what is trusted; then the call as `calls.main`
takes it.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, List, Sequence

if TYPE_CHECKING:
    from ..system.trust import agent_problem, problem


def _is_gone(path: str) -> bool:
    try:
        os.stat(path)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False


def _unmounted(places: Sequence[str]) -> List[str]:
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
        mounts = [line.split(" ")[1:3] for line in file]
    return [place for place in places if place not in [there for there, kind in mounts if kind != "autofs"]]


if __name__ == "__main__":
    path, gone, places, *trusted = json.loads(sys.argv[1])
    found = agent_problem(path, trusted)
    if found and gone and not problem(path, trusted) and all(map(_is_gone, (path, sys.argv[3]))):
        missing = _unmounted(places)
        if missing:  # as for a while after a reboot, and what is on that disk is not lost
            place = import_module("re").sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), missing[0])
            sys.exit(f"{sys.argv[3]} is on {place}, which is not mounted")
        sys.stdout.write(gone)
        sys.exit()
    if found:
        sys.exit(f"{found.message}; fix it there: {found.hint}")
    sys.path.insert(0, path)
    import_module("distlaunch_agent.bytecode").use()
    import_module("distlaunch_agent.ssh.calls").main(sys.argv[2:])
