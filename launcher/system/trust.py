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
    """Trust these exceptions from now on, instead of the previous ones."""
    _words[:] = given


def require(what: str, path: str | os.PathLike[str], *, searched: bool = False, more: str = "") -> None:
    """Raise `UntrustedError` about `what` if others than us and root could change the path; `more` ends the hint."""
    _refuse(what, path, rule.problem(os.fspath(path), _words, searched=searched), more)


def make(what: str, directory: str | os.PathLike[str], mode: int = 0o700, *, more: str = "") -> None:
    """Create the directory and its parents, writable only by us. Raises `UntrustedError` if others can change one."""
    _refuse(what, directory, rule.make(os.fspath(directory), mode, _words), more)


def read(
    what: str, path: str | os.PathLike[str], *, more: str = "", limit_bytes: int = input_file.LIMIT_BYTES,
    words: Sequence[str] = _words,
) -> bytes:  # fmt: skip
    """The file's content. The opened file is checked, so replacing the path meanwhile has no effect.

    `words`: the exceptions, if they are others than the user's so far.

    Raises `UntrustedError` as `require` does, `OSError` as `input_file.read` does.
    """
    try:
        fd = input_file.open_fd(path)
    except OSError:
        if os.path.lexists(path):
            _refuse(what, path, rule.problem(os.fspath(path), words), more)
        raise
    try:
        _refuse(what, path, rule.problem(os.fspath(path), words, opened=os.fstat(fd)), more)
        return input_file.read_fd(fd, path, limit_bytes=limit_bytes)
    finally:
        os.close(fd)


def read_text(what: str, path: str | os.PathLike[str]) -> str:
    """The file as text. Raises what `read` and `input_file.read_text` raise."""
    return input_file.text(read(what, path), path)


def found(path: str | os.PathLike[str]) -> str:
    """Why a path is not trusted and how to fix that, for paths that are merely skipped; empty if it is trusted."""
    wrong = rule.problem(os.fspath(path), _words)
    return f"{wrong.message} ({wrong.hint})" if wrong else ""


def _refuse(what: str, path: str | os.PathLike[str], found: rule.Problem | None, more: str) -> None:
    if found is not None:
        raise UntrustedError(f"{what} {os.fspath(path)!r}: {found.message}", hint=found.hint + more)
