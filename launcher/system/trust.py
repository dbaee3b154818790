"""The rule of `launcher.agent.system.trust` as the launcher applies it: a path that others could change is refused."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from launcher.agent.system import trust as rule
from launcher.errors import UntrustedError
from launcher.system import input_file

if TYPE_CHECKING:
    from collections.abc import Sequence

_words: list[str] = []


def words() -> tuple[str, ...]:
    """The user's exceptions: `@GROUP`, or a directory."""
    return tuple(_words)


def except_for(given: Sequence[str]) -> None:
    """Trust these from now on, instead of those before."""
    _words[:] = given


def require(what: str, path: str | os.PathLike[str], *, searched: bool = False, more: str = "") -> None:
    """Raise `UntrustedError`, which says of what, where others than we and root could change the path; `more` ends the hint."""
    _refuse(what, path, rule.problem(os.fspath(path), _words, searched=searched), more)


def make(what: str, directory: str | os.PathLike[str], mode: int = 0o700, *, more: str = "") -> None:
    """Make the directory and those above it, for nobody else to write to. `UntrustedError` if others could change one of them."""
    _refuse(what, directory, rule.make(os.fspath(directory), mode, _words), more)


def read(what: str, path: str | os.PathLike[str], *, more: str = "", limit_bytes: int = input_file.LIMIT_BYTES) -> bytes:
    """The file, which is seen to be fine once it is open: what lies at that name before or after does not count.

    `UntrustedError` as `require`, `OSError` as `input_file.read`.
    """
    try:
        fd = input_file.open_fd(path)
    except OSError:
        if os.path.lexists(path):
            require(what, path, more=more)
        raise
    try:
        _refuse(what, path, rule.problem(os.fspath(path), _words, opened=os.fstat(fd)), more)
        return input_file.read_fd(fd, path, limit_bytes=limit_bytes)
    finally:
        os.close(fd)


def read_text(what: str, path: str | os.PathLike[str]) -> str:
    """The file as text; raises what `read` and `input_file.read_text` raise."""
    return input_file.text(read(what, path), path)


def found(path: str | os.PathLike[str]) -> str:
    """What is wrong with a path that is not refused, but not used either, and what mends it; empty: nothing."""
    wrong = rule.problem(os.fspath(path), _words)
    return f"{wrong.message} ({wrong.hint})" if wrong else ""


def _refuse(what: str, path: str | os.PathLike[str], found: rule.Problem | None, more: str) -> None:
    if found is not None:
        raise UntrustedError(f"{what} {os.fspath(path)!r}: {found.message}", hint=found.hint + more)
