"""One shared connection of ssh per login node: opened by keys, or by the user at a terminal, and used by all commands.

Nothing asks for a password but `open_at_terminal`. Host keys are always checked, by the user's own settings of ssh.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import tempfile
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.agent.system import flock
from launcher.errors import BackendUnavailableError, CommandError, NotLoggedInError, SpecError
from launcher.login import address as addresses
from launcher.login.hints import LOGIN_HINTS, NO_SESSION, hints, last_line
from launcher.system import proc, trust
from launcher.system.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_CONNECT_S = 10
_OPENS_S = 14.0
_ASKS_S = 5.0
_UNUSED_S = {"keys": 600, "terminal": 8 * 3600}
"""How long a connection stays open while nothing uses it, by how it was opened."""

_BY_USER = "user"
"""The ending of a file beside the socket: the connection was opened at a terminal."""

_LEFT = "left"
"""The ending of another: a connection was left when it was last written."""

_LEAVES_EVERY_S = 600

_ALIVE = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
_BATCH = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_S}", "-o", "ForwardAgent=no", *_ALIVE)
_LONGEST_SOCKET = 88
"""A socket's path has 107 characters at most, and ssh adds 17 while it makes one."""

_REFUSED = ("Permission denied", "Too many authentication failures", "No more authentication methods")


@dataclass(frozen=True)
class Login:
    """A login node."""

    address: str
    """What ssh takes: `me@juno.example.org`, or a `Host` of its settings."""

    cluster: str = ""
    """The cluster's name in the settings, if it has one."""

    @classmethod
    def of(cls, address: str, cluster: str) -> Login | None:
        """The login node that an option names, if it does."""
        return cls(address, cluster) if address else None

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.cluster or self.address

    @property
    def user(self) -> str:
        """The account there."""
        return _settings(self.address).get("user", "")

    def words(self) -> list[str]:
        """The ssh command for it, without what is to be run there, over the open connection.

        Opens one by keys if there is none. Raises `NotLoggedInError` or `BackendUnavailableError`, within 15 s.
        """
        ours = self._ours()
        if ours is not None:
            with _alone(ours):
                if not self._open(ours):
                    ours.unlink(missing_ok=True)
                    self._begin(ours)
                    self._require(ours)
        return ["ssh", "-T", *_BATCH, *self._checks_keys(), *(() if ours is None else ("-S", str(ours))), self.address]

    def proxy_command(self) -> str:
        """A `ProxyCommand` of ssh by which it reaches hosts over the connection. It opens none, and reports that."""
        ours = self._ours()
        # Each of the two programs expands per cent signs once.
        none = f"echo {shlex.join(self._not_logged_in().split())} >&2".replace("%", "%%")
        socket = () if ours is None else ("-S", str(ours))
        words = ["ssh", "-T", *_BATCH, "-o", f"ProxyCommand={none}", *socket, self.address]
        return shlex.join(words).replace("%", "%%") + " -W '[%h]:%p'"

    def forward(self, word: str, here: str, there: str) -> str:
        """Have the connection `forward` from a socket here to HOST:PORT there, or `cancel` that. Returns why not."""
        where = here.replace("\\", "\\\\").replace(":", "\\:")
        return self._control(self._ours(), word, "-L", f"{where}:{there}")

    def socket(self, ending: str) -> Path:
        """A path for another socket, beside that of the connection."""
        path = _socket(self.address)
        return path.with_name(f"{path.name}.{ending}")

    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._open(self._ours())

    def close(self) -> None:
        """End our connection; the user's own stays."""
        if (ours := self._ours()) is not None and ours.exists():
            self._control(ours, "exit")

    def leave(self) -> None:
        """Have the next command open another connection, as ours may hang, by keys; what uses it continues.

        One that the user has opened stays: ssh itself ends it if it carries nothing. So does one soon after another
        was left, which lasts as long as what hangs there: a host that is ill would get more of them with each command.
        """
        if (ours := self._ours()) is None or not ours.exists() or self.socket(_BY_USER).exists():
            return
        note = self.socket(_LEFT)
        if not note.exists() or not 0 <= time.time() - note.stat().st_mtime < _LEAVES_EVERY_S:
            note.touch()
            self._control(ours, "stop")

    def open_at_terminal(self) -> str:
        """Open the connection; ssh asks the user whatever it needs. Returns how long it lasts, in words."""
        theirs = _settings(self.address).get("controlpath", "none")
        ours = self._ours()
        if ours is None:
            return f"it is your own connection ({theirs}), and lasts as its settings say"
        with _alone(ours):
            if not self._open(ours):
                ours.unlink(missing_ok=True)
                argv = ["ssh", *_ALIVE, *self._checks_keys(), *_master(ours, "terminal"), self.address]
                if code := subprocess.run(argv, check=False).returncode:
                    raise NotLoggedInError(f"ssh {self.address} ended with code {code}", hint=self._way_in())
                self.socket(_BY_USER).touch()
                self._require(ours)
        hours = _UNUSED_S["terminal"] // 3600
        return f"the connection lasts until it is unused for {hours} hours, or the network between breaks"

    def unreachable(self, said: str) -> BackendUnavailableError:
        """The error for what ssh has said."""
        why = last_line(said)
        if NO_SESSION not in said and any(words in said for words in _REFUSED):
            return NotLoggedInError(self._not_logged_in(), hint=why or None)
        hint = "; ".join(hints([why, said], LOGIN_HINTS)[:1]) or None
        return BackendUnavailableError(f"{self.name} is not reached: {why or 'the connection ended'}", hint=hint)

    def _not_logged_in(self) -> str:
        return f"not logged in to {self.name}: distlaunch login {self.name}"

    def _way_in(self) -> str:
        return f"try it yourself: ssh {self.address}"

    def _ours(self) -> Path | None:
        """The socket of our connection; None if the user's own settings have one that is open."""
        if _settings(self.address).get("controlpath", "none") != "none" and self._open(None):
            return None
        return _socket(self.address)

    def _begin(self, ours: Path) -> None:
        """Open the connection by keys."""
        self.socket(_BY_USER).unlink(missing_ok=True)
        with tempfile.TemporaryFile() as said:
            argv = ["ssh", *_BATCH, *self._checks_keys(), *_master(ours, "keys"), self.address]
            try:
                code = subprocess.run(
                    argv, stdin=subprocess.DEVNULL, stdout=said, stderr=said, timeout=_OPENS_S, check=False
                ).returncode
            except subprocess.TimeoutExpired:
                raise self.unreachable(f"no answer within {_OPENS_S:.0f} s: timed out") from None
            except OSError as error:
                raise CommandError(f"ssh cannot be started: {error.strerror}") from error
            said.seek(0)
            if code:
                raise self.unreachable(said.read(proc.LAST_BYTES).decode(errors="replace"))

    def _require(self, ours: Path) -> None:
        """Refuse a connection of which ssh says that it has begun, and that nothing can use."""
        if not self._open(ours):
            raise self.unreachable(f"ssh does not share its connection in {ours}")

    def _open(self, socket: Path | None) -> bool:
        return (socket is None or socket.exists()) and not self._control(socket, "check")

    def _control(self, socket: Path | None, word: str, *more: str) -> str:
        """Ask the process that has the connection; returns why it has not done that."""
        argv = ("ssh", "-O", word, *more, *(() if socket is None else ("-S", str(socket))), self.address)
        try:
            done = proc.run(argv, timeout_s=_ASKS_S)
        except CommandError as error:
            return error.message
        return (proc.last_words(done.stderr) or f"ssh ended with code {done.returncode}") if done.returncode else ""

    def _checks_keys(self) -> tuple[str, ...]:
        """An option of ssh if the user's settings would let any host pose as this one."""
        lax = _settings(self.address).get("stricthostkeychecking") in ("no", "off", "false")
        return ("-o", "StrictHostKeyChecking=accept-new") if lax else ()


def _master(ours: Path, opened_by: str) -> tuple[str, ...]:
    persist = f"ControlPersist={_UNUSED_S[opened_by]}"
    return ("-M", "-S", str(ours), "-o", "ControlMaster=yes", "-o", persist, "-o", "ForwardAgent=no", "-f", "-N")


@cache
def _settings(address: str) -> Mapping[str, str]:
    """The user's settings of ssh for this address. Raises `SpecError` if ssh cannot make sense of them."""
    addresses.check(address or " ")
    done = proc.run(("ssh", "-G", address), timeout_s=_ASKS_S)
    if done.returncode:
        raise SpecError(f"login {address!r}: {last_line(done.stderr)}", hint="see man ssh_config")
    pairs = (line.partition(" ") for line in done.stdout.splitlines())
    return {name: value for name, _, value in pairs}


def _socket(address: str) -> Path:
    """Where the socket of our connection is: the same for all names of one account on one host.

    Hosts that share a home directory have one each, as a socket reaches only processes of its own host.
    """
    settings = _settings(address)
    who = "{user}@{hostname}:{port}".format_map({"user": "", "hostname": address, "port": "", **settings})
    about = f"{who} {settings.get('proxyjump', '')} {os.uname().nodename}"
    name = hashlib.sha256(about.encode()).hexdigest()[:16]
    directory = Path.home() / ".distlaunch" / "login"
    if len(str(directory / name)) > _LONGEST_SOCKET:
        directory = Path(tempfile.gettempdir(), f"distlaunch-login-{os.getuid()}")
    trust.make("directory", directory)
    trust.require("the directory of connections", directory, searched=True)
    return directory / name


@contextmanager
def _alone(socket: Path) -> Iterator[None]:
    """While one process looks for the connection and opens it, others wait, and no longer than ssh itself would.

    A socket that nothing answers may then be removed: ssh shares no connection where a killed one has left its socket.
    """
    limit = time.monotonic() + _OPENS_S
    with open(f"{socket}.lock", "ab") as lock:
        while not flock.taken(lock):
            if time.monotonic() > limit:
                raise NotLoggedInError("someone is just logging in there", hint="wait for it")
            time.sleep(0.05)
        yield
