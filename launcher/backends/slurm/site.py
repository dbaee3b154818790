"""Where Slurm's commands and the runs' directories are: on this host, or behind a login node."""

from __future__ import annotations

import copy
import os
import shlex
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from launcher.agent.system import users
from launcher.backends.slurm import inherited
from launcher.errors import CommandError, SpecError
from launcher.system import input_file, proc

if TYPE_CHECKING:
    from collections.abc import Sequence
    from subprocess import CompletedProcess

    from launcher.login.connection import Login

_NOT_FOUND, _SSH_FAILED = 127, 255
_ASKS = ("squeue", "scancel", "sacct", "sinfo", "scontrol", "srun")
_BAR = "@@"


class Site:
    """This host, which sees the runs' directories as the nodes do."""

    login: Login | None = None
    clusters: str = ""
    """The clusters to ask, by Slurm's names, if several belong to one slurmdbd; empty for the one that is there."""

    has_shell: ClassVar[bool] = True
    """Whether programs in shell run there, not only single commands."""

    @property
    def user(self) -> str:
        """Who the user is there."""
        return users.name_of(os.getuid())

    def run(
        self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"", without: Sequence[str] = ()
    ) -> CompletedProcess[str]:
        """Run one of Slurm's commands. Raises `CommandError` if it cannot be started or takes too long.

        `without`: more variables that it is not to see.
        """
        env = inherited.without_them(os.environ, [*inherited.hiding(argv[0]), *without])
        return proc.run(self.words(argv), timeout_s=timeout_s, stdin=stdin, env={**env, **inherited.PRINTED})

    def words(self, argv: Sequence[str]) -> Sequence[str]:
        """The command, for these clusters. A job's own are in its file, as its steps would inherit a variable."""
        if not self.clusters or argv[0] not in _ASKS:
            return argv
        return (argv[0], f"--clusters={self.clusters}", *argv[1:])

    def has(self, program: str) -> bool:
        """Whether the program is there."""
        return shutil.which(program) is not None

    def directory(self, run_dir: Path) -> Path:
        """The run's directory as the nodes see it."""
        return run_dir

    def read(self, paths: Sequence[str]) -> dict[str, bytes]:
        """The contents of those of these files that can be read."""
        found = {}
        for path in paths:
            with suppress(OSError):
                found[path] = input_file.read(Path(path))
        return found


class LoginSite(Site):
    """A login node. `run` also raises `BackendUnavailableError`, if it is not reached."""

    login: Login

    def __init__(self, login: Login, top: str) -> None:
        """`top`: the directory for files and runs."""
        self.login, self.top = login, top

    @property
    def user(self) -> str:
        """As `Site.user`."""
        return self.login.user

    def run(
        self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"", without: Sequence[str] = ()
    ) -> CompletedProcess[str]:
        """As `Site.run`."""
        from subprocess import CompletedProcess

        from launcher.login import remote

        try:
            body = f"{inherited.unset([*inherited.hiding(argv[0]), *without])}{shlex.join(self.words(argv))}"
            code, out, said = remote.run(self.login, body, timeout_s=timeout_s, stdin=stdin)
        except remote.UnfinishedError as error:
            raise CommandError(f"{argv[0]} has not ended on {self.login.name} within {timeout_s:.0f} s") from error
        if code == _NOT_FOUND:
            raise CommandError(f"{argv[0]} cannot be started on {self.login.name}: {proc.last_words(said)}")
        return CompletedProcess(list(argv), code, out.decode(errors="replace"), said)

    def has(self, program: str) -> bool:  # noqa: ARG002 - a command that is missing says so itself
        """Assumed."""
        return True

    def directory(self, run_dir: Path) -> Path:
        """As `Site.directory`."""
        return Path(self.top, "runs", run_dir.name)

    def read(self, paths: Sequence[str]) -> dict[str, bytes]:
        """As `Site.read`."""
        from launcher.login import remote

        return remote.read(self.login, paths) if paths else {}


class CommandSite(LoginSite):
    """A login node that takes single commands of Slurm only: no shell, no pipes, no quotes."""

    has_shell: ClassVar[bool] = False

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        without: Sequence[str] = (),  # noqa: ARG002 - only a shell could unset them
    ) -> CompletedProcess[str]:
        """As `LoginSite.run`; a bar between fields is replaced on the way, as it needs quotes."""
        words = shlex.join(word.replace("|", _BAR) for word in self.words(argv))
        try:
            done = proc.run([*self.login.words(), words], timeout_s=timeout_s, stdin=stdin)
        except CommandError as error:
            raise CommandError(f"{argv[0]} did not end on {self.login.name} within {timeout_s:.0f} s") from error
        if done.returncode == _SSH_FAILED:
            raise self.login.unreachable(done.stderr)
        if done.returncode == _NOT_FOUND:
            raise CommandError(f"{argv[0]} cannot be started on {self.login.name}: {proc.last_words(done.stderr)}")
        done.stdout = done.stdout.replace(_BAR, "|")
        return done

    def read(self, paths: Sequence[str]) -> dict[str, bytes]:  # noqa: ARG002 - there is nothing to read with
        """Nothing."""
        return {}


@cache
def on(site: Site, clusters: str) -> Site:
    """The site, to ask these clusters only."""
    if site.clusters == clusters:
        return site
    found = copy.copy(site)
    found.clusters = clusters
    return found


@cache
def of(login: str, cluster: str, top: str, *, shell: bool = True) -> Site:
    """The site of these options; `login` is empty for this host."""
    if not login:
        return Site()
    from launcher.login.connection import Login

    if not top:
        hint = "name a directory on a file system that all nodes see: remote_dir = '/scratch/me/distlaunch'"
        raise SpecError(f"login {login}: remote-dir is missing", hint=hint)
    kind = LoginSite if shell else CommandSite
    return kind(Login(login, cluster), top.rstrip("/") or "/")
