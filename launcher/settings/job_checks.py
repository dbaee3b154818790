"""Checks of single options of a job."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from launcher.errors import SpecError
from launcher.spec import parse_duration
from launcher.system import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

ON_HANG = ("warn", "end", "restart")
_MOST_WARM_S = 86400.0
_LEAST_HANG_S = 2.0
"""Workers are looked at a few times in that time."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\Z")


def numa_binding(text: str) -> str | None:
    """The mode of `--numa-binding`; None: workers are not bound."""
    from launcher.agent.fabric.numa import MODES

    if text and text not in MODES:
        raise SpecError(f"numa-binding {text!r} is not known", hint=f"known: {', '.join(MODES)}")
    return text or None


def hang_after(text: str) -> float | None:
    """Seconds; None for `none`."""
    seconds = None if text.strip() == "none" else parse_duration(text, "hang-after")
    if seconds is not None and seconds < _LEAST_HANG_S:
        raise SpecError(f"hang-after {text!r} is below {_LEAST_HANG_S:.0f}s", hint="write 10m, or none")
    return seconds


def warm(text: str) -> float:
    """Seconds; 0 for `none`."""
    seconds = 0.0 if text.strip() == "none" else parse_duration(text, "warm")
    if seconds > _MOST_WARM_S:
        raise SpecError(f"warm {text!r} is longer than a day", hint="write 10m: each run begins that time anew")
    return seconds


def on_hang(text: str) -> str:
    """Check that the text is what may follow from a hang, and return it."""
    if text not in ON_HANG:
        raise SpecError(f"on-hang {text!r} is not known", hint=names.hint(text, ON_HANG))
    return text


def contract(text: str) -> str:
    """Check that there is a contract of that name, and return it."""
    from launcher.agent import contracts

    if not contracts.has(text):
        raise SpecError(f"contract {text!r} is not known", hint=names.hint(text, contracts.names()))
    return text


def tracking(text: str) -> str:
    """Check that the text says what trackers get, and return it."""
    known = ("continue", "group", "off")
    if text not in known:
        raise SpecError(f"tracking {text!r} is not known", hint=names.hint(text, known))
    return text


def patterns(texts: tuple[str, ...]) -> None:
    """Check the patterns of files to fetch."""
    if not texts:
        return
    from launcher.agent.outputs import tree

    for pattern in texts:
        try:
            tree.matcher(pattern)
        except tree.TreeError as error:
            raise SpecError(f"fetch: {error}") from None


def claim(text: str) -> None:
    """Check that the text is a place where runs can be claimed, or empty."""
    from launcher.agent.node import claim

    if text.startswith(claim.SCHEME):
        try:
            claim.split(text)
        except ValueError as error:
            raise SpecError(f"claim {error}", hint="write ssh://me@host/scratch/claims") from None
    elif text and not text.startswith("/"):
        raise SpecError(
            f"claim {text!r} is no absolute path", hint="write /scratch/claims, or ssh://HOST/scratch/claims"
        )


def fetch_node(text: str) -> None:
    """Check that the text is a node rank, or all."""
    if text != "all" and not (text.isascii() and text.isdecimal() and len(text) < 8):
        raise SpecError(f"fetch-node {text!r} is neither a node rank nor all", hint="write --fetch-node all")


def check_modules(modules: Iterable[str]) -> None:
    """Raise `SpecError` unless all are names that can be imported."""
    for name in modules:
        if not _MODULE.match(name):
            raise SpecError(f"preload {name!r} is not a module name", hint="write --preload package.module")


def parse_role(text: str) -> str:
    """The name; raises `SpecError` if it cannot be a variable's value."""
    if not text or "\0" in text:
        raise SpecError(f"role {text!r} is not a name")
    return text


def check_here(every: Iterable[str]) -> Callable[[Iterable[str]], None]:
    """A check of a part of these pairs: a `K` without a value is set in the environment, if no later pair names it."""
    last = {pair.partition("=")[0]: pair for pair in every}

    def check(pairs: Iterable[str]) -> None:
        for name in pairs:
            if "=" not in name and last[name] == name and name not in os.environ:
                hint = f"set it first, or write --env {name}=VALUE"
                raise SpecError(f"env {name}: not set in the current environment", hint=hint)

    return check


def check_secrets_here(secrets: Iterable[str]) -> None:
    """Raise `SpecError` for a secret that is not set in the environment."""
    for name in secrets:
        if name not in os.environ:
            raise SpecError(f"secret {name}: not set in the current environment", hint=f"export {name} first")


def parse_env(pairs: Iterable[str], here: Mapping[str, str]) -> dict[str, str]:
    """The variables that `K=V` and `K` name; `K` takes its value from `here`."""
    last = {name: (given, value) for name, given, value in (pair.partition("=") for pair in pairs)}
    return {name: value if given else here[name] for name, (given, value) in last.items()}


def notify(texts: tuple[str, ...]) -> None:
    """Check who is to be told."""
    if texts:
        from launcher.settings import notify as receivers  # few runs tell anybody

        receivers.check(texts)


def notify_secret(name: str) -> None:
    """Raise `SpecError` unless the text is a variable's name, or empty."""
    if name and not _VARIABLE.match(name):
        hint = "the secret itself belongs into a variable: export NAME=..., then --notify-secret NAME"
        raise SpecError("notify-secret is not the name of a variable", hint=hint)
