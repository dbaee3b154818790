"""Parameters of commands, declared once for the parser, the help and shell completion.

A command is a function. `Annotated[str, flag("--on", help="...")]` declares an option, `argument` a positional
argument. Options of launches are made from the fields of options dataclasses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional, get_args, get_type_hints

from launcher.agent.named_tuple import NamedTuple
from launcher.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

GROUPS = ("job", "resources", "scheduler", "network", "output", "files")
"""Groups of options, in the order of the help; `option(..., group=...)` names one."""


class Declared(NamedTuple):
    """What `Annotated` declares of a parameter besides its type."""

    flags: tuple[str, ...] = ()
    """If empty: `--name`. `--yes/--no` has two sides."""

    metavar: str | None = None
    help: str = ""
    group: str = ""
    aliases: tuple[str, ...] = ()
    """Further flags, which are not in the help."""

    default_text: str = ""
    hidden: bool = False
    is_argument: bool = False
    complete: Callable[[str], list[str]] | None = None


class Parameter(NamedTuple):
    """One parameter of a command."""

    name: str
    kind: type
    """`str`, `int`, `float` or `bool`; if `several`, of each value."""

    several: bool
    required: bool
    default: Any
    declared: Declared

    @property
    def flags(self) -> tuple[str, ...]:
        """All flags that turn it on or precede its value."""
        return (*(flag.partition("/")[0] for flag in self.declared.flags), *self.declared.aliases)

    @property
    def off(self) -> str:
        """The flag that turns it off; empty if there is none."""
        return next((flag.partition("/")[2] for flag in self.declared.flags if "/" in flag), "")


def flag(*flags: str, **about: Any) -> Declared:
    """An option; `about`: fields of `Declared`."""
    return Declared(flags, **about)


def argument(**about: Any) -> Declared:
    """A positional argument; `about`: fields of `Declared`."""
    return Declared(is_argument=True, **about)


def complete_run(incomplete: str) -> list[str]:
    """Run ids for shell completion, newest first; reads no run."""
    from launcher.runs import directories
    from launcher.settings import config

    try:
        directory = directories.root(config.load().resolve(config.GlobalOptions)["runs_dir"].value)
        return [name for name in reversed(directories.ids(directory)) if name.startswith(incomplete)]
    except LaunchError:
        return []


OutputOption = Annotated[Optional[str], flag("--output", metavar="human|json", help="Output format.", group="output")]
RunArgument = Annotated[
    str,
    argument(
        metavar="RUN",
        help="Run id as `distlaunch ls` prints it, a unique part of one, `last`, or its scheduler's id.",
        complete=complete_run,
    ),
]
OnOption = Annotated[
    Optional[str],
    flag("--on", metavar="NAME", help="If no run here has that id, look for it on this cluster or backend."),
]


def of(command: Callable[..., Any]) -> list[Parameter]:
    """The command's parameters: its own list, if it was made with one, else from its signature."""
    listed: list[Parameter] | None = getattr(command, "parameters", None)
    if listed is not None:
        return listed
    hints = get_type_hints(command, include_extras=True)
    count = command.__code__.co_argcount  # inspect takes 15 ms to import, and would find nothing else
    names, defaults = command.__code__.co_varnames[:count], command.__defaults__ or ()
    first = count - len(defaults)
    return [
        parameter(name, hints[name], *((defaults[number - first],) if number >= first else ()))
        for number, name in enumerate(names)
    ]


def parameter(name: str, annotation: Any, *default: Any) -> Parameter:
    """A parameter of this `Annotated` type, required if it has no default."""
    declared: Declared = annotation.__metadata__[0]
    kinds = [kind for kind in (get_args(annotation.__origin__) or (annotation.__origin__,)) if kind is not type(None)]
    several = (
        getattr(annotation.__origin__, "__origin__", None) is list or getattr(kinds[0], "__origin__", None) is list
    )
    if getattr(kinds[0], "__origin__", None) is list:
        kinds = list(get_args(kinds[0]))
    if not declared.flags and not declared.is_argument:
        declared = declared._replace(flags=(f"--{name.replace('_', '-')}",))
    return Parameter(name, kinds[0], several, not default, default[0] if default else None, declared)


def from_fields(cls: type, *, group: str, leave_out: tuple[str, ...] = ()) -> list[Parameter]:
    """One parameter per field of an options dataclass; None means "not given". `group`: of fields that name none."""
    from launcher.settings import config
    from launcher.system.dataclass import fields

    types = config.field_types(cls)
    return [
        _of_field(item.name, types[item.name], item.default, item.metadata, group)
        for item in fields(cls)
        if item.name not in leave_out
    ]


def _of_field(name: str, kind: type, default: Any, meta: Mapping[str, Any], group: str) -> Parameter:
    dashed = name.replace("_", "-")
    flags = meta["flags"] or (f"--{dashed}",)
    if kind is bool and not meta["flags"] and not dashed.startswith("no-"):
        flags = (f"--{dashed}/--no-{dashed}",)
    declared = Declared(
        flags, meta["metavar"], meta["help"], meta["group"] or group, default_text=_default(kind, default, flags, meta)
    )
    several = kind is tuple
    return Parameter(name, str if several else kind, several, False, None, declared)


def _default(kind: type, default: Any, flags: tuple[str, ...], meta: Mapping[str, Any]) -> str:
    """The default as the help shows it; empty if the option's text explains it."""
    if meta["default_text"] is not None:
        return str(meta["default_text"])
    if kind is bool:
        return ("on" if default else "off") if "/" in flags[0] else ""
    return "" if default in ("", (), None) else str(default)
