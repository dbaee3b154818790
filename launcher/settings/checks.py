"""Checks of settings: whether options accept their values, and whether variables that look like settings exist."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from launcher.errors import RequestError, SpecError
from launcher.settings.config import ENV_PREFIX
from launcher.system.dataclass import Field, fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from launcher.settings.config import Setting

_NOT_SETTINGS = {
    "SYSTEM_CONFIG",
    "WARM_DIR",
    "RUN_ID",
    "RUN_DIR",
    "DEADLINE_FILE",
    "PROGRESS_FILE",
    "ROUND",
    "ATTEMPT",
    "ATTEMPT_REASON",
    "FACTS",
    "HOST",
    "POD",
    "REPLICA",
    "TIMES_LOST",
    "TIMES_DISRUPTED",
    "KEY",
    "RANK",
    "LOCAL_RANK",
    "NODE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "HOSTS",
    "ROLE",
    "GIVEN",
}
"""Variables that distlaunch itself sets for agents and workers, or that name its system file."""

_MAX_INT = 1 << 31
_OTHERS = ("SLURM_", "TEST_", "MPI", "ROLE_")
"""Prefixes of further such variables."""


def check(cls: type, settings: Mapping[str, Setting], *, every: bool = False) -> None:
    """Raise the error of the first invalid value, with its source. `every`: check overridden values, too."""
    for item in fields(cls):
        for test in filter(None, (item.metadata.get("check"), _not_empty(item), _bounded(item.name))):
            setting = settings[item.name]
            blame(item.name, setting.layers if every or item.metadata["adds_up"] else setting.layers[-1:], test)


def _not_empty(item: Field[Any]) -> Callable[[Any], None]:
    """A check that neither the text nor a part of the list is empty, unless empty is the default."""

    def check(value: Any) -> None:
        if "" in (value if isinstance(value, tuple) else (value,)) and value != item.default:
            raise SpecError(f"{item.name.replace('_', '-')} '' is empty")

    return check


def _bounded(name: str) -> Callable[[Any], None]:
    """A check that an integer is not too large for the programs that receive it."""

    def check(value: Any) -> None:
        if isinstance(value, int) and abs(value) >= _MAX_INT:
            raise SpecError(f"{name.replace('_', '-')} {str(value)[:40]} is too large")

    return check


def blame(name: str, given: Iterable[Setting], test: Callable[[Any], object]) -> None:
    """Apply the test to each layer's value of a setting. Its error names the bad value's file, variable or flag."""
    for setting in given:
        try:
            test(setting.value)
        except RequestError as error:
            flag, place = f"--{name.replace('_', '-')}", f"{setting.source}: "
            if setting.source == "flag":
                place = "--" if error.message.startswith(flag[2:]) else f"{flag}: "
            raise type(error)(f"{place}{error.message}", hint=error.hint) from None


@contextmanager
def placed(settings: Mapping[str, Setting]) -> Iterator[None]:
    """Prefix errors that begin with a setting's name with the file and line, or the variable, that set it."""
    try:
        yield
    except RequestError as error:
        for name, setting in settings.items():
            dashed = name.replace("_", "-")
            if setting.layers and setting.source != "flag" and error.message.startswith((f"{dashed} ", f"{dashed}: ")):
                raise type(error)(f"{setting.source}: {error.message}", hint=error.hint) from error
        raise


def unknown_variables(env: Mapping[str, str], options: Iterable[type]) -> list[str]:
    """Variables with our prefix that are neither settings of these classes nor used otherwise by distlaunch."""
    known = {item.name.upper() for cls in options for item in fields(cls)}.union(_NOT_SETTINGS)
    given = (name.removeprefix(ENV_PREFIX) for name in env if name.startswith(ENV_PREFIX))
    return sorted(ENV_PREFIX + name for name in given if name not in known and not name.startswith(_OTHERS))
