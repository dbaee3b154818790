"""Tries what a worker may do, each thing in its own process, and writes the outcomes to $ABLE_OUT/PROBE.RANK as JSON.

It is run under torchrun and under distlaunch (`tests/agent/test_able.py`). A probe is a function whose value is
compared. `able_ends.txt` has ends: a child that the script has forked ends as that text says, and its output and exit
code are compared.
"""

import json
import os
import re
import signal
import sys

LIMIT_S = 200
PROBES = {}
"""Run before torch is imported."""

TORCH = {}
"""Run after it."""

TOGETHER = {}
"""Run last, in the workers themselves, in all of them at once."""


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
    """Try it in a child, which leaves nothing behind that other probes could see."""
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
    outputs = []
    for path in out:
        with open(path, errors="backslashreplace") as file:
            outputs.append(re.sub(rf"(?<!\d){pid}(?!\d)", "PID", file.read()))
        os.remove(path)
    write(
        name,
        {
            "code": os.waitstatus_to_exitcode(status),
            "stdout": outputs[0].splitlines(),
            "stderr": outputs[1].splitlines(),
        },
    )
    return False


def mine(names):
    """The names that this rank tries, as ranks share the work."""
    only = os.environ.get("ABLE_ONLY", "").split()
    shared = sorted(names)[int(os.environ["RANK"]) :: int(os.environ["WORLD_SIZE"])]
    return [name for name in shared if not only or name in only]


def try_ends(prefix):
    """In a child: the name and text of the end that it is to have. In the parent: None, once all were tried."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "able_ends.txt")) as file:
        _, *parts = file.read().split("\n--- ")
    ends = dict(part.split("\n", 1) for part in parts if part.startswith(prefix))
    return next(((name, ends[name]) for name in mine(ends) if try_end(name, ends[name])), None)


if __name__ == "__main__":
    sys.modules["able"] = sys.modules["__main__"]
    import able_children
    import able_python
    import able_system
    import able_threads
    import able_together
    import able_torch
    import able_torch_processes  # none of these imports torch at its top

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
