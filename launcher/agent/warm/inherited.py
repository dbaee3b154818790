"""What a process inherits: from a fork server that was left standing, a run must get all of it as from its own parent.

`fixed` cannot be changed later, or was read when torch was imported: if it differs, the server is not used. `settable`
is set in the new agent.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from typing import Any, Dict, List

_STATUS = {
    "Uid": "user", "Gid": "group", "Groups": "groups", "CapInh": "capabilities", "CapPrm": "capabilities",
    "CapEff": "capabilities", "CapBnd": "capabilities", "CapAmb": "capabilities", "NoNewPrivs": "no_new_privs",
    "Seccomp": "system call filter", "Seccomp_filters": "system call filter", "Cpus_allowed": "CPUs",
    "Mems_allowed": "memory nodes", "THP_enabled": "huge pages",
}  # fmt: skip
"""Fields of /proc/self/status, and what they are called in a reason."""

_FILES = {"cgroup": "cgroup", "attr/current": "security label", "personality": "personality"}
_CALLS = {"x86_64": {"memory policy": 239, "priority of disk accesses": 252}, "aarch64": {"memory policy": 236}}
"""Numbers of system calls without a function in Python or the C library: get_mempolicy, ioprio_get."""

_LIMITS = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
_PR_GET_SECUREBITS = 27
_NODES = 1024


def fixed() -> Dict[str, Any]:
    """By what it is called: values that the process cannot change, or that were read when torch was imported."""
    found: Dict[str, Any] = {}
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in _STATUS:
                found[_STATUS[name]] = f"{found.get(_STATUS[name], '')} {' '.join(value.split())}".strip()
    for path, called in _FILES.items():
        with contextlib.suppress(OSError), open(f"/proc/self/{path}", encoding="ascii", errors="replace") as file:
            found[called] = file.read()
    spaces = sorted(name for name in os.listdir("/proc/self/ns") if not name.endswith("_for_children"))
    found["namespaces"] = {name: os.readlink(f"/proc/self/ns/{name}") for name in spaces}
    root = os.stat("/")
    found["root directory"] = [root.st_dev, root.st_ino]
    found["scheduling policy"] = [os.sched_getscheduler(0), os.sched_getparam(0).sched_priority]
    # The C library takes the size of threads' stacks from it when a process starts.
    found["limit of stacks"] = list(resource.getrlimit(resource.RLIMIT_STACK))
    found["securebits"] = ctypes.CDLL(None).prctl(_PR_GET_SECUREBITS, 0, 0, 0, 0)
    return {**found, **_by_system_calls()}


def _by_system_calls() -> Dict[str, Any]:
    libc, found = ctypes.CDLL(None, use_errno=True), {}
    numbers = _CALLS.get(os.uname().machine, {})
    if "memory policy" in numbers:
        mode, nodes = ctypes.c_int(0), (ctypes.c_ulong * (_NODES // 64))()
        failed = libc.syscall(numbers["memory policy"], ctypes.byref(mode), nodes, ctypes.c_ulong(_NODES), None, 0)
        found["memory policy"] = None if failed else [mode.value, *nodes]
    if "priority of disk accesses" in numbers:
        found["priority of disk accesses"] = libc.syscall(numbers["priority of disk accesses"], 1, 0)
    return found


def settable() -> Dict[str, Any]:
    """What `adopt` sets in another process; the environment and the working directory are not part of it."""
    umask = os.umask(0o077)
    os.umask(umask)
    ignored = [int(number) for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN]
    found: Dict[str, Any] = {
        "umask": umask,
        "limits": {name: list(resource.getrlimit(kind)) for name, kind in _LIMITS.items()},
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "ignored": ignored,
        "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    }
    for name in ("oom_score_adj", "coredump_filter"):
        with contextlib.suppress(OSError), open(f"/proc/self/{name}", encoding="ascii") as file:
            found[name] = file.read().strip()
    return found


def adopt(wanted: Dict[str, Any]) -> List[str]:
    """Set all of that in this process; returns what could not be set."""
    os.umask(wanted["umask"])
    _set_signals(wanted)
    return [*_set_limits(wanted["limits"]), *_set_nice(wanted["nice"]), *_set_files(wanted)]


def _set_limits(limits: Dict[str, List[int]]) -> List[str]:
    wrong: List[str] = []
    for name, (soft, hard) in limits.items():
        try:
            resource.setrlimit(_LIMITS[name], (soft, hard))
        except (OSError, ValueError, KeyError):
            wrong.append(name)
    return wrong


def _set_nice(value: int) -> List[str]:
    try:
        if os.getpriority(os.PRIO_PROCESS, 0) != value:
            os.setpriority(os.PRIO_PROCESS, 0, value)
    except OSError:
        return ["nice value"]
    return []


def _set_files(wanted: Dict[str, Any]) -> List[str]:
    wrong: List[str] = []
    for name, base in (("oom_score_adj", 10), ("coredump_filter", 16)):
        try:
            with open(f"/proc/self/{name}", "r+", encoding="ascii") as file:
                if name in wanted and int(file.read(), base) != int(wanted[name], base):
                    file.write(wanted[name] if base == 10 else f"0x{wanted[name]}")
        except (OSError, ValueError):
            wrong += [name] * (name in wanted)
    return wrong


def _set_signals(wanted: Dict[str, Any]) -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        ignores = signal.getsignal(number) == signal.SIG_IGN
        if number in wanted["ignored"] and not ignores:
            signal.signal(number, signal.SIG_IGN)
        elif ignores and number not in wanted["ignored"]:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, wanted["blocked"])
