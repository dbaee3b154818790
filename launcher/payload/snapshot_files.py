"""Which files of a directory belong to the user's work: those that git lists, else all except known artifacts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from launcher.errors import CommandError, SpecError
from launcher.payload import ignore
from launcher.system import proc, trust

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

LIMIT_FILES = 100_000
"""Maximum number of files of a snapshot."""

_GIT_S = 60.0
_NO_PROGRAMS = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
_NEVER = (b".git", b"__pycache__", b".venv")


def listed(directory: Path, *, limit_files: int, leave_out: Sequence[Path]) -> tuple[set[bytes], list[str]]:
    """Paths of all files and links relative to the directory, and warnings. Raises `SpecError` above the limit."""
    found: set[bytes] = set()
    warnings: list[str] = []
    left_out = tuple(os.fsencode(os.path.relpath(path, directory)) for path in leave_out)
    root, rules = _work_tree(directory, warnings), ignore.Ignored(directory)
    every = _tracked(directory, root, b"", warnings) if root else _walked(os.fsencode(directory), left_out, rules)
    for path in every:
        if not _within(path, left_out) and not rules.file(path):
            found.add(path)
        if len(found) > limit_files:
            raise SpecError(
                f"there are more than {limit_files} files in {str(directory)!r}, too many to be sent with a run",
                hint="start in the script's directory; "
                ".distlaunchignore, and in a git repository .gitignore, leave out what the run does not need",
            )
    return found, [*warnings, *rules.warnings()]


def git_root(directory: Path) -> Path | None:
    """The top of the git worktree of the directory; None if there is none, or git ignores the directory."""
    return _work_tree(directory, [])


def _within(path: bytes, directories: Sequence[bytes]) -> bool:
    return any(path == directory or path.startswith(directory + b"/") for directory in directories)


# -- git --------------------------------------------------------------------------------------------------------------


def _work_tree(directory: Path, warnings: list[str]) -> Path | None:
    """The nearest worktree that the directory is in, unless git ignores the directory as a whole.

    A repository that others could change does not count: git runs programs that its settings name.
    """
    for root in (directory, *directory.parents):
        if not os.path.lexists(root / ".git"):
            continue
        if found := trust.found(root / ".git") or _elsewhere(root):
            warnings.append(f"ignoring an untrusted git repository: {found}")
            return None
        if _git(root, directory, "rev-parse", "--git-dir") is not None:  # else it is not a repository
            return None if _git(root, directory, "check-ignore", ".") is not None else root
    return None


def _elsewhere(root: Path) -> str:
    """Why the directories that the `.git` of a linked worktree or a submodule points to are not trusted."""
    places = (_git(root, root, "rev-parse", "--git-dir", "--git-common-dir") or b"").splitlines()
    return next(filter(None, (trust.found(root / os.fsdecode(place)) for place in places)), "")


def _tracked(directory: Path, root: Path, below: bytes, warnings: list[str]) -> Iterator[bytes]:
    """Files that git tracks, including submodules, and new ones that are not ignored, except bytecode and venvs."""
    for path in (_git(root, directory, "ls-files", "-z", "--cached") or b"").split(b"\0")[:-1]:
        if os.path.isdir(os.fsencode(directory) + b"/" + path) and not os.path.islink(
            os.fsencode(directory) + b"/" + path
        ):
            yield from _submodule(directory, root, path, below, warnings)
        else:
            yield below + path
    foreign: dict[bytes, bool] = {}
    for path in (_git(root, directory, "ls-files", "-z", "--others", "--exclude-standard") or b"").split(b"\0")[:-1]:
        if _is_foreign(os.fsencode(directory), os.path.dirname(path), foreign):
            continue
        if path.endswith(b"/"):  # a repository that is not a submodule
            yield from _submodule(directory, root, path.rstrip(b"/"), below, warnings)
        else:
            yield below + path


def _submodule(directory: Path, root: Path, path: bytes, below: bytes, warnings: list[str]) -> Iterator[bytes]:
    inner = directory / os.fsdecode(path)
    if (inner / ".git").exists():
        if _work_tree(inner, warnings) == inner:
            if (inner / ".git").is_file() and _shared(inner) == _shared(root):
                name = os.fsdecode(below + path)
                warnings.append(f"{name} is another worktree of the same repository: none of its files are sent")
                return
            yield from _tracked(inner, inner, below + path + b"/", warnings)
        else:
            rules = ignore.Ignored(inner)
            yield from (below + path + b"/" + each for each in _walked(os.fsencode(inner), (), rules))
            warnings += (f"in {os.fsdecode(below + path)}: {each}" for each in rules.warnings())
    else:
        name = os.fsdecode(below + path)
        warnings.append(f"the submodule {name} is not checked out here: none of its files are sent")


def _shared(root: Path) -> str:
    """The directory that all worktrees of a repository share."""
    found = _git(root, root, "rev-parse", "--git-common-dir") or b""
    return os.path.realpath(root / os.fsdecode(found.removesuffix(b"\n")))


def _is_foreign(root: bytes, path: bytes, known: dict[bytes, bool]) -> bool:
    """Whether a directory is, or is in, a bytecode cache or a virtual environment."""
    if not path:
        return False
    if path not in known:
        known[path] = _is_foreign(root, os.path.dirname(path), known) or _never(root + b"/" + path)
    return known[path]


def _git(root: Path, directory: Path, *args: str) -> bytes | None:
    """What git prints in a directory of that worktree; None if there is no git, no repository, or the answer is no.

    Raises `SpecError` if git refuses. Git does not search for a repository, and runs or fetches nothing that it names.
    """
    # If we run in a git hook, its variables name another repository.
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    env |= {"LC_ALL": "C", "GIT_ALLOW_PROTOCOL": "", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}
    argv = ("git", *_NO_PROGRAMS, "-C", str(directory), f"--git-dir={root}/.git", f"--work-tree={root}", *args)
    try:
        done = proc.run_bytes(argv, timeout_s=_GIT_S, env=env)
    except CommandError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode > 1 and "not a git repository" not in said:
        told = said.splitlines()[0] if said else f"code {done.returncode}"
        raise SpecError(f"git {args[0]} in {str(directory)!r}: {told}", hint="see what git status says there")
    return None if done.returncode else done.stdout


# -- without git ------------------------------------------------------------------------------------------------------


def _walked(root: bytes, left_out: Sequence[bytes], rules: ignore.Ignored) -> Iterator[bytes]:
    """All files and links, except bytecode, virtual environments, what is left out, and directories by the rules."""

    def refuse(error: OSError) -> None:
        if isinstance(error, FileNotFoundError):  # removed meanwhile
            return
        raise SpecError(
            f"{os.fsdecode(error.filename)!r} cannot be read: {error.strerror}",
            hint="make it readable, or start elsewhere",
        )

    for directory, directories, files in os.walk(root, onerror=refuse):
        below = b"" if directory == root else directory[len(root) + 1 :] + b"/"
        links = [name for name in directories if os.path.islink(directory + b"/" + name)]
        directories[:] = sorted(
            name
            for name in directories
            if name not in links
            and not _within(below + name, left_out)
            and not _never(directory + b"/" + name)
            and not rules.directory(below + name)
        )
        yield from (below + name for name in (*files, *links) if name != b".git")


def _never(path: bytes) -> bool:
    return os.path.basename(path) in _NEVER or os.path.exists(path + b"/pyvenv.cfg")
