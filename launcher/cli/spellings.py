"""torchrun's options on the backends: equivalents are translated, unneeded ones noted, others refused with a hint.

Those with the same name are our options anyway; `token_normalize_func` turns underscores into dashes.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any

from launcher.cli.parameters import flag, parameter
from launcher.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.backends._plan import Plan
    from launcher.cli.parameters import Parameter
    from launcher.runs.reader import Wanted

_NODES = "the nodes of a run find one another"

NOTED = {
    "rdzv-backend": _NODES,
    "standalone": _NODES,
    "monitor-interval": "distlaunch notices at once when a worker exits",
    "event-log-handler": "events are kept in the run's directory",
    "run-path": "workers are always forked from a running Python",
    "redirects": "every rank's output is kept in the run's directory; --log-ranks selects what is shown",
    "log-line-prefix-template": "lines of several ranks are marked [node:rank]",
    "signals-to-handle": "SIGTERM, SIGINT and SIGHUP end the run; SIGUSR1 and SIGUSR2 are passed on",
}
"""Options that are not needed here, and why."""

_PER_NODE = (
    "distlaunch determines it itself",
    "leave it out, or use distlaunch torchrun, which is started once per node",
)
_ONE_FILE = (
    "each rank's output is kept in one place",
    "distlaunch logs RUN | grep -E 'A|B'; or use distlaunch torchrun",
)

REFUSED = {
    "rdzv-endpoint": _PER_NODE,
    "node-rank": _PER_NODE,
    "master-addr": _PER_NODE,
    "local-addr": _PER_NODE,
    "log-dir": (
        "every rank's output is kept in the run's directory; distlaunch logs prints it",
        "leave it out; DISTLAUNCH_RUNS_DIR sets the parent of the run directories",
    ),
    "duplicate-stdout-filters": _ONE_FILE,
    "duplicate-stderr-filters": _ONE_FILE,
    "logs-specs": ("it applies only to torchrun's own logs", "use distlaunch torchrun"),
    "print-completion": ("it applies only to torchrun's own options", "distlaunch --install-completion"),
}
"""Options that do not apply here: why, and what to do."""


def _seconds(name: str, text: str) -> str:
    try:
        return f"{float(text):g}s"
    except ValueError:
        raise SpecError(f"{name} {text!r} is not a number of seconds", hint=f"write --{name} 30") from None


def _rdzv_timeout(_: str, text: str) -> str:
    """The first of `join_timeout=600,timeout=900`, else the second, which is the same if nodes are numbered."""
    pairs = dict(part.strip().partition("=")[::2] for part in text.split(",") if part.strip())
    if unknown := [key for key in pairs if key not in ("join_timeout", "timeout")]:
        raise SpecError(f"--rdzv-conf {unknown[0]}: {_PER_NODE[0]}", hint=_PER_NODE[1])
    given = pairs.get("join_timeout", pairs.get("timeout"))
    if given is None:
        raise SpecError(f"--rdzv-conf {text!r} sets nothing", hint="write --rdzv-timeout 10m")
    return _seconds("rdzv-conf", given)


BECOMES: dict[str, tuple[str, Callable[[str, str], str | None]]] = {
    "nnodes": ("nodes", lambda _, text: text),
    "rdzv-id": ("name", lambda _, text: text),
    "rdzv-conf": ("rdzv_timeout", _rdzv_timeout),
    "shutdown-timeout": ("grace", _seconds),
    "tee": ("log_ranks", lambda _, text: None if text == "0" else "all"),
}
"""Our equivalent option, and the conversion of the value."""

LOCAL_RANKS = "local-ranks-filter"
_SHORT = {"redirects": "-r", "tee": "-t"}
_FLAGS = ("standalone", "run-path")


def parameters() -> list[Parameter]:
    """Hidden options for all of these."""
    found = []
    for name in (*BECOMES, LOCAL_RANKS, *NOTED, *REFUSED):
        shown = flag(*filter(None, (_SHORT.get(name), f"--{name}")), hidden=True)
        found.append(parameter(_key(name), Annotated[bool | None if name in _FLAGS else str | None, shown], None))
    return found


def _key(name: str) -> str:
    return "torchrun_" + name.replace("-", "_")


def translated(values: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The values as if our own options had been given, and notes to print. Raises `SpecError` for refused options."""
    given = {name: values[_key(name)] for name in (*BECOMES, *NOTED, *REFUSED) if values.get(_key(name)) is not None}
    for name in given:
        if name in REFUSED:
            why, instead = REFUSED[name]
            raise SpecError(f"--{name}: {why}", hint=instead)
    found = dict(values)
    if values[_key(LOCAL_RANKS)] is not None:
        if values["log_ranks"] is not None:
            raise SpecError(f"--{LOCAL_RANKS} and --log-ranks exclude each other")
        found["log_ranks"] = "all"  # until the plan says which ranks these are
    for name, (ours, value) in BECOMES.items():
        if name not in given:
            continue
        if values[ours] is not None and name != "tee":
            raise SpecError(f"--{name} and --{ours.replace('_', '-')} are the same: give one of them")
        if found[ours] is None:
            found[ours] = value(name, given[name])
    return found, [f"--{name} is not needed: {NOTED[name]}" for name in given if name in NOTED]


def local_ranks(values: dict[str, Any], plan: Plan) -> Wanted | None:
    """The run's ranks whose local ranks are in `--local-ranks-filter`; None if it was not given."""
    text = values[_key(LOCAL_RANKS)]
    if text is None:
        return None
    try:
        wanted = {int(part) for part in text.split(",")}
    except ValueError:
        raise SpecError(f"{LOCAL_RANKS} {text!r} is not a list of local ranks", hint="write 0,1") from None
    counts = [node.workers for node in plan.nodes]
    if len(counts) == 1:
        return frozenset(wanted)
    if None in counts:
        hint = "--log-ranks takes ranks of the run; or give --nproc-per-node a number"
        raise SpecError(f"--{LOCAL_RANKS}: which ranks these are is only known at the start", hint=hint)
    firsts = accumulate((count or 0 for count in counts), initial=0)
    return frozenset(
        first + rank for first, count in zip(firsts, counts, strict=False) for rank in wanted if rank < (count or 0)
    )
