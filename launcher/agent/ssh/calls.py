"""The host's side of the launcher's calls: `python agent.pyz host CALL`, or a conversation; answers go to stdout.

A login shell may print something before an answer, so an answer is a line that starts with a mark: `ANSWER`, then JSON.
In a conversation each request is a line of JSON on stdin, until stdin ends: one login and one Python for all that
starting a run requires of a host.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Callable, Dict, List, Optional

ANSWER = "distlaunch-host-1 "
Request = Dict[str, Any]


def main(argv: List[str]) -> None:
    """Run one call."""
    call, rest = argv[0], argv[1:]
    if call == "tail":
        from . import stream

        answer({})
        stream.tail(rest[0], int(rest[1]), int(rest[2]), once="--once" in rest)
        return
    if call == "signal":
        from . import run

        answer(run.send_signal(rest[0], int(rest[1]), int(rest[2]), force="--force" in rest))
        return
    if call == "remove":
        from . import removal

        try:
            answer(removal.remove(rest[0]))
        except OSError as error:
            answer({"problem": f"{error.filename}: {error.strerror}"})
        return
    if call == "request":
        from . import run_files

        answer(run_files.request(rest[0], int(rest[1])))
        return
    if call == "outputs":
        from ..outputs import serve

        serve.main(rest[0])
        return
    if call == "attach":
        from ..terminal import attach

        attach.main(os.path.join(rest[0], "nodes", rest[1]), int(rest[2]))
    if call == "shell":
        from ..terminal import shell

        shell.main(os.path.join(rest[0], "nodes", rest[1]))
    sys.exit(f"agent.pyz host: no call {call!r}; tail, signal, remove, request, outputs, attach and shell are known")


def converse(request: Request) -> Optional[Callable[[], None]]:
    """Answer this request and those that follow on stdin; an error is an answer, too: `{"problem": ...}`.

    Returns what a forked child is to become once the caller has left its frames, as a worker exits like an interpreter.
    """
    # Imported here, as most calls need few of them.
    from ..forkserver import forks
    from ..lease.lock_files import LeaseError
    from . import leases, preflight, run, user_files, warm

    calls = {
        "preflight": preflight.preflight,
        "lease": leases.lease,
        "look": leases.look,
        "survey": leases.survey,
        "standing": warm.standing,
        "files": user_files.unpack,
        "environment": _environment,
        "start": run.start,
        "reach": run.reach,
        "ended": run.ended,
        "runs": run.runs,
    }
    task: Optional[Callable[[], None]] = None
    while request:
        if request["call"] == "tail":
            _tail(request)
            break
        try:
            answer(calls[request["call"]](request))
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            answer({"problem": f"{where}{error.strerror or error}"})
        except user_files.HostError as error:
            answer({"problem": str(error)})
        except LeaseError as error:
            answer({"problem": str(error), "lease": True})
        except forks.Child as child:
            task = child.task
            break
        request = json.loads(sys.stdin.buffer.readline() or b"null")
    return task


def _environment(request: Request) -> Request:
    from . import environment  # few runs bring one

    return environment.bring(request, answer)


def _tail(request: Request) -> None:
    """Send a node's stream, whose agent may be this process's child."""
    import signal

    from ..system import garbage
    from . import stream

    garbage.collect()  # off since the login's Python began
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # an agent that has ended must not stay as a zombie
    answer({})
    stream.tail(request["directory"], int(request["node_rank"]), 0, once=False)


def answer(value: Request) -> None:
    """Print the answer after a newline, as a banner may end without one."""
    os.write(1, b"\n" + ANSWER.encode() + json.dumps(value).encode("ascii") + b"\n")
