"""Helpers that several probes use."""

import sys


class Point:
    def __init__(self, x):
        self.x = x


def square(number):
    return number * number


STATUS = (
    "SigBlk",
    "SigIgn",
    "SigCgt",
    "ShdPnd",
    "NoNewPrivs",
    "Seccomp",
    "CapEff",
    "CapBnd",
    "Cpus_allowed_list",
    "Mems_allowed_list",
    "Umask",
    "CoreDumping",
    "THP_enabled",
    "Groups",
    "Uid",
    "Gid",
    "Threads",
)


def status_of(pid="self"):
    with open(f"/proc/{pid}/status") as file:
        fields = {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
    return {name: fields[name] for name in STATUS if name in fields}


def value_error(function):
    try:
        return function()
    except Exception as error:
        return error


def finders():
    """Finders except the one by which distlaunch warns of hidden modules, which docs/architecture.md lists."""
    names = [getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path]
    return [name for name in names if name != "Hidden"]


def installed():
    """Packages that are imported, except private ones."""
    names = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
    return sorted(name for name in names if not name.startswith("_") and name != "cython_runtime")
