"""Tries all that a worker may want to do, each thing in its own process, and writes what came of it to OUT/PROBE.RANK as JSON.

Run under torchrun and under distlaunch (`tests/agent/test_able.py`). A probe is a function whose value is compared. What is in
`able_ends.txt` are ends: a child that the script has forked ends as that text says, and its output and exit code are compared.
"""

import json
import os
import re
import signal
import sys

LIMIT_S = 200
PROBES = {}
"""Before torch is imported."""

TORCH = {}
"""After it."""

TOGETHER = {}
"""In the worker itself, in all of them at once, last of all."""


def probe(function):
    PROBES[function.__name__] = function
    return function


def torch_probe(function):
    TORCH[function.__name__] = function
    return function


def together(function):
    TOGETHER[function.__name__] = function
    return function


def write(name, value):
    path = f"{os.environ['ABLE_OUT']}/{name}.{os.environ['RANK']}"
    with open(path + ".new", "w") as file:
        json.dump(value, file, default=str)
    os.rename(path + ".new", path)


def value_of(function):
    import traceback

    try:
        return function()
    except BaseException as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)]
        return {"raised": "".join(traceback.format_exception_only(error)).strip(), "at": lines}


def try_alone(name, function):
    """In a child, which leaves nothing behind that another could see."""
    pid = os.fork()
    if not pid:
        signal.alarm(LIMIT_S)
        try:
            os.setpgid(0, 0)
            write(name, value_of(function))
            sys.stdout.flush()
        finally:
            os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if status:
        write(name, {"ended by": os.waitstatus_to_exitcode(status)})


def try_end(name, text):
    """True in a child, which is to end as the text says."""
    out = [f"{os.environ['ABLE_OUT']}/{name}.{stream}" for stream in ("stdout", "stderr")]
    fds = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) for path in out]
    pid = os.fork()
    if not pid:
        signal.alarm(LIMIT_S)
        os.dup2(fds[0], 1), os.dup2(fds[1], 2)
        os.close(fds[0]), os.close(fds[1])
        return True
    status = os.waitpid(pid, 0)[1]
    os.close(fds[0]), os.close(fds[1])
    said = []
    for path in out:
        with open(path, errors="backslashreplace") as file:
            said.append(re.sub(rf"(?<!\d){pid}(?!\d)", "PID", file.read()))
        os.remove(path)
    write(name, {"code": os.waitstatus_to_exitcode(status), "stdout": said[0].splitlines(), "stderr": said[1].splitlines()})
    return False


def mine(names):
    """Ranks share the work."""
    only = os.environ.get("ABLE_ONLY", "").split()
    shared = sorted(names)[int(os.environ["RANK"]) :: int(os.environ["WORLD_SIZE"])]
    return [name for name in shared if not only or name in only]


def try_ends(prefix):
    """Name and text of the end that this process is to have, in a child; None: all have been tried."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "able_ends.txt")) as file:
        _, *parts = file.read().split("\n--- ")
    ends = dict(part.split("\n", 1) for part in parts if part.startswith(prefix))
    return next(((name, ends[name]) for name in mine(ends) if try_end(name, ends[name])), None)


if __name__ == "__main__":
    sys.modules["able"] = sys.modules["__main__"]
    import able_children
    import able_python
    import able_system
    import able_together
    import able_torch  # none of these imports torch by itself

    whole = not os.environ.get("ABLE_WITHOUT_TORCH")
    for name in mine(PROBES):
        if whole or name != "import_of_torch":
            try_alone(name, PROBES[name])
    ending = try_ends("end_")
    if ending is None and whole:
        import torch

        for name in mine(TORCH):
            try_alone(name, TORCH[name])
        ending = try_ends("torch_end_")
    if ending is not None:
        exec(compile(ending[1], ending[0], "exec"))
    elif not os.environ.get("ABLE_ONLY"):
        for name, function in TOGETHER.items():
            write(name, value_of(function))
