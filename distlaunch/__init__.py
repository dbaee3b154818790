"""distlaunch from Python: start distributed PyTorch anywhere, follow it, and read how it ended. Reference: docs/api.md.

Nothing is printed, no signals are handled, and no state is kept between calls. Messages go to the logger `distlaunch`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from distlaunch import _inside

if TYPE_CHECKING:
    from distlaunch._call import WorkerError, call
    from distlaunch._clusters import adopt, cluster_hosts, cluster_overviews, cluster_runs, doctor, logins, settings
    from distlaunch._events import CauseKnown, Event, NodeEvent, Progress, StateChanged, WorkerLine
    from distlaunch._metrics import metrics
    from distlaunch._plan import Plan, plan, submit
    from distlaunch._result import Cause, Result
    from distlaunch._run import Run, get, prune, runs
    from distlaunch._serve import serve
    from distlaunch._torchrun import torchrun
    from distlaunch._warm import end_warm_servers, warm_servers
    from launcher import __version__
    from launcher.errors import (
        BackendUnavailableError,
        CommandError,
        ConfigError,
        LaunchError,
        NotLoggedInError,
        RequestError,
        RunContinuesError,
        RunNotFoundError,
        SpecError,
        StorageError,
        UntrustedError,
    )

__all__ = [
    "BackendUnavailableError",
    "Cause",
    "CauseKnown",
    "CommandError",
    "ConfigError",
    "Event",
    "LaunchError",
    "NodeEvent",
    "NotLoggedInError",
    "Plan",
    "Progress",
    "RequestError",
    "Result",
    "Run",
    "RunContinuesError",
    "RunNotFoundError",
    "SpecError",
    "StateChanged",
    "StorageError",
    "UntrustedError",
    "WorkerError",
    "WorkerLine",
    "__version__",
    "adopt",
    "call",
    "cluster_hosts",
    "cluster_overviews",
    "cluster_runs",
    "doctor",
    "end_warm_servers",
    "get",
    "logins",
    "metrics",
    "plan",
    "prune",
    "runs",
    "serve",
    "settings",
    "submit",
    "torchrun",
    "warm_servers",
]

_MODULES = {
    "distlaunch._call": ("WorkerError", "call"),
    "distlaunch._clusters": (
        "adopt",
        "cluster_hosts",
        "cluster_overviews",
        "cluster_runs",
        "doctor",
        "logins",
        "settings",
    ),
    "distlaunch._events": ("CauseKnown", "Event", "NodeEvent", "Progress", "StateChanged", "WorkerLine"),
    "distlaunch._metrics": ("metrics",),
    "distlaunch._plan": ("Plan", "plan", "submit"),
    "distlaunch._result": ("Cause", "Result"),
    "distlaunch._run": ("Run", "get", "prune", "runs"),
    "distlaunch._serve": ("serve",),
    "distlaunch._torchrun": ("torchrun",),
    "distlaunch._warm": ("end_warm_servers", "warm_servers"),
    "launcher": ("__version__",),
}
"""Modules of names; all others are in `launcher.errors`. Imported on use, so that `import distlaunch` is fast."""

_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'distlaunch' has no attribute {name!r}")
    _inside.check()
    value = getattr(importlib.import_module(_HOMES.get(name, "launcher.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
