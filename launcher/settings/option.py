"""Makes the fields of options dataclasses, and common checks of their values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar

from launcher import spec
from launcher.errors import SpecError
from launcher.system import names
from launcher.system.dataclass import field

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def option(
    default: T,
    *,
    help: str,
    metavar: str | None = None,
    flags: tuple[str, ...] = (),
    adds_up: bool = False,
    repeats: bool = False,
    executes: bool = False,
    path: Literal["", "whole", "list", "at", "dots"] = "",
    check: Callable[[Any], object] | None = None,
    group: str = "",
    default_text: str | None = None,
    job: str = "",
) -> T:
    """A dataclass field with what the command line needs to know about it.

    `flags` replaces the flag derived from the field's name, for short forms: `("-e", "--env")`. `adds_up`: the list has
    the values of all layers (files, environment, flags); otherwise the last layer that sets one wins. `repeats`: such a
    list keeps a value that is in it twice. `executes`: it changes what is executed, or with what; a project file that
    sets it is reported. `path`: in a settings file it is relative to that file: as a "whole", as a "list" with colons,
    "at" what follows an `@`, or "dots": only if it begins with `./` or `../`. `check` raises a `SpecError` for a value
    that is invalid whatever other options are. The message begins with the name. `group`: where the help lists it
    (`launcher.cli.parameters.GROUPS`). `default_text`: shown instead of the default. `job`: the field of the agents'
    `Job` that gets the value, as returned by `check` if there is one.
    """
    meta: dict[str, Any] = {"help": help, "metavar": metavar, "flags": flags}
    meta |= {"group": group, "default_text": default_text}
    meta |= {"adds_up": adds_up, "repeats": repeats, "executes": executes, "path": path, "check": check, "job": job}
    return field(default=default, metadata=meta)


def one_of(what: str, *known: str) -> Callable[[str], object]:
    """A check that the value is one of these words."""

    def check(text: str) -> None:
        if text not in known:
            raise SpecError(f"{what} {text!r} is not known", hint=names.hint(text, known))

    return check


def not_below(what: str, least: int = 0) -> Callable[[int], int]:
    """A check that the number is not below `least`."""

    def check(number: int) -> int:
        if number < least:
            raise SpecError(f"{what} {number} is below {least}")
        return number

    return check


def duration(what: str) -> Callable[[str], object]:
    """A check that the text is a duration."""
    return lambda text: spec.parse_duration(text, what)
