"""torchrun's command line, without torch: the same options, spellings, defaults and PET_ variables.

`tests/torchrun/test_options.py` compares all of it with the parser of the installed torch, so new options there fail.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from launcher.agent.fabric.numa import MODES
from launcher.agent.named_tuple import NamedTuple
from launcher.errors import RequestError
from launcher.system import names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class TorchrunUsageError(RequestError):
    """A command line that torchrun itself would refuse with exit code 1."""

    code = "usage"
    exit_code = 1


class UnreadableError(TorchrunUsageError):
    """A command line that torchrun's parser cannot read, which exits with 2."""

    exit_code = 2


class CompletionAskedError(Exception):
    """A request to only print a completion script; the message names the shell."""


class TorchrunOption(NamedTuple):
    """One of torchrun's options. All spellings are made from the name: `--rdzv-id` and `--rdzv_id`."""

    name: str
    default: Any
    meaning: str
    """Its effect here, for `--help` and the table in docs/torchrun.md."""

    kind: Any = str
    short: str = ""
    choices: tuple[str, ...] = ()
    variable: bool = True
    """Whether PET_NAME sets its default, as for most options."""


def words(text: str) -> list[str]:
    """The parts between commas; two commas stand for a literal one."""
    return [part.replace("\0", ",") for part in text.replace(",,", "\0").split(",")]


OPTIONS = (
    TorchrunOption("nnodes", "1:1", "number of nodes; MIN:MAX makes the run elastic"),
    TorchrunOption("nproc-per-node", "1", "workers per node: a number, auto, gpu, xpu or cpu, with torchrun's meaning"),
    TorchrunOption(
        "rdzv-backend",
        "static",
        "static: each node has the rank it is given; c10d: ranks in the order of arrival, not of addresses; "
        "others: torchrun itself is started",
    ),
    TorchrunOption("rdzv-endpoint", "", "HOST[:PORT] where the nodes meet, in distlaunch's own store"),
    TorchrunOption("rdzv-id", "none", "the run's name, the same on all nodes"),
    TorchrunOption(
        "rdzv-conf",
        "",
        "join_timeout, timeout, last_call_timeout, keep_alive_interval, keep_alive_max_attempt and is_host apply; "
        "others of torchrun's are not needed, and unknown ones are reported and ignored",
    ),
    TorchrunOption("standalone", False, "one node, on a free port", bool),
    TorchrunOption("max-restarts", 0, "maximum restarts of all workers after a worker fails", int),
    TorchrunOption("monitor-interval", 0.1, "not needed: distlaunch notices at once when a worker exits", float),
    TorchrunOption(
        "start-method",
        "spawn",
        "not needed: it applies to functions, not to commands",
        choices=("spawn", "fork", "forkserver"),
    ),
    TorchrunOption(
        "event-log-handler", "null", "null and console are not needed; for any other, torchrun itself is started"
    ),
    TorchrunOption("role", "default", "value of ROLE_NAME for workers"),
    TorchrunOption("module", False, "the script is the name of a module, as with python -m", bool, short="-m"),
    TorchrunOption("no-python", False, "the script is a program", bool),
    TorchrunOption(
        "run-path",
        False,
        "run the script as runpy.run_path does; workers are always forked from a running Python",
        bool,
    ),
    TorchrunOption("log-dir", None, "directory for the workers' output, by RDZV-ID, attempt and local rank"),
    TorchrunOption(
        "redirects", "0", "streams to write to files instead of the terminal: 0 to 3, or by local rank", short="-r"
    ),
    TorchrunOption("tee", "0", "streams to write to files as well as to the terminal", short="-t"),
    TorchrunOption("log-line-prefix-template", "", "prefix of each line of a teed stream"),
    TorchrunOption("local-ranks-filter", "", "local ranks whose lines to show"),
    TorchrunOption("duplicate-stdout-filters", [], "copy lines that contain these words to a file of their own", words),
    TorchrunOption("duplicate-stderr-filters", [], "the same for stderr", words),
    TorchrunOption("node-rank", 0, "this node's rank (static only)", int),
    TorchrunOption("master-addr", "127.0.0.1", "address of node 0 (static)"),
    TorchrunOption("master-port", None, "port of node 0 (static); 29500", int),
    TorchrunOption("local-addr", None, "address at which other nodes reach this one"),
    TorchrunOption("logs-specs", None, "a class that decides on log files: torchrun itself is started", variable=False),
    TorchrunOption("numa-binding", None, "CPUs to bind each worker to", choices=MODES, variable=False),
    TorchrunOption(
        "signals-to-handle",
        "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "signals that shut the run down gracefully; others are passed on",
    ),
    TorchrunOption(
        "shutdown-timeout",
        None,
        "seconds between SIGTERM and SIGKILL once a signal ends the run; 30, and always 30 after a failure",
        int,
    ),
    TorchrunOption(
        "virtual-local-rank", False, "LOCAL_RANK is 0 for all workers, and each sees only its own GPU", bool
    ),
)

_WIDTH = 110
_SHELLS = ("bash", "zsh", "tcsh")
"""Those of torchrun without the package shtab."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        hint = "distlaunch torchrun --help lists torchrun's options"
        unknown = message.partition("unrecognized arguments: ")[2].partition(" ")[0].partition("=")[0]
        if close := names.nearest(unknown, (f"--{option.name}" for option in OPTIONS)):
            hint = f"did you mean {close}? {hint}"
        raise UnreadableError(message, hint=hint)


class _Completion(argparse.Action):
    """An option that requires no script."""

    def __call__(self, _parser: Any, _found: Any, shell: Any, _flag: str | None = None) -> None:
        raise CompletionAskedError(shell)


class _Help(argparse.HelpFormatter):
    """Does not query the terminal's width, which argparse does for every option, with a slow import."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=40, width=_WIDTH)


def parser(env: Mapping[str, str]) -> argparse.ArgumentParser:
    """A parser like torchrun's, with defaults from PET_ variables. Raises `TorchrunUsageError`."""
    found = _Parser(
        prog="distlaunch torchrun", description="Run a script as torchrun does, on this node.", formatter_class=_Help
    )
    for option in OPTIONS:
        given = env.get(f"PET_{option.name.replace('-', '_').upper()}") if option.variable else None
        flags = [option.short] * bool(option.short) + list(
            dict.fromkeys((f"--{option.name}", f"--{option.name.replace('-', '_')}"))
        )
        if option.kind is bool:
            found.add_argument(*flags, action="store_true", default=_flag(option.name, given), help=option.meaning)
        else:
            default = option.default if given is None else given  # argparse converts text, as in torchrun
            choices = option.choices or None
            found.add_argument(*flags, type=option.kind, default=default, choices=choices, help=option.meaning)
    flags = ["--print-completion", "--print_completion"]
    found.add_argument(*flags, action=_Completion, choices=_shells(), help="print a completion script for a shell")
    found.add_argument("training_script", type=str, help="the script, or the module or program")
    found.add_argument("training_script_args", nargs=argparse.REMAINDER, help="its own arguments")
    return found


def _shells() -> Sequence[str]:
    try:
        import shtab  # type: ignore[import-not-found]
    except ImportError:
        return _SHELLS
    return tuple(shtab.SUPPORTED_SHELLS)


def _flag(name: str, given: str | None) -> bool:
    try:
        return bool(int(given or "0"))
    except ValueError:
        raise TorchrunUsageError(f"PET_{name.replace('-', '_').upper()}={given}: write 0 or 1") from None


def parse(args: Sequence[str], env: Mapping[str, str]) -> argparse.Namespace:
    """Parse a command line into options, by torchrun's names."""
    return parser(env).parse_args(list(args))
