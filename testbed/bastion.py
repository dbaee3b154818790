"""A bastion: an sshd of its own on a host through which clients get to others, and a client that knows it."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed import packages
from testbed.ssh import hide_login_files, listens, make_key
from testbed.waiting import wait_until

if TYPE_CHECKING:
    import subprocess

    from testbed.hosts import Host

PORT = 2222


@dataclass
class Bastion:
    """Reached by `ssh NAME` with the client's own `ssh`, which is first on its PATH."""

    name: str
    host: Host
    directory: Path
    _daemon: subprocess.Popen[Any] | None = field(default=None, repr=False, kw_only=True)

    def start(self) -> None:
        """Make keys and settings in the directory, and start the daemon."""
        packages.require(packages.SSH)
        hide_login_files(self.host)
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self.client.mkdir(parents=True)
        make_key(self.directory / "id", "distlaunch-testbed")
        self.new_host_key()
        self.take_keys()
        self._write()
        self.up()

    @property
    def client(self) -> Path:
        """The directory for the client's PATH: its `ssh`."""
        return self.directory / "client"

    @property
    def config(self) -> Path:
        """The client's settings of ssh."""
        return self.directory / "config"

    @property
    def log(self) -> str:
        """What the daemon has logged."""
        return (self.directory / "sshd.log").read_text(errors="replace")

    def new_host_key(self) -> None:
        """Give the daemon another key; a client does not learn of it."""
        key = self.directory / "host_key"
        make_key(key, self.name)
        if not (self.directory / "known_hosts").exists():
            public = " ".join(key.with_suffix(".pub").read_text().split()[:2])
            (self.directory / "known_hosts").write_text(f"{self.name} {public}\n")

    def up(self) -> None:
        """Start the daemon; returns when it listens."""
        sshd = packages.program("sshd")
        assert sshd
        argv = (sshd, "-D", "-e", "-f", str(self.directory / "sshd_config"))
        self._daemon = self.host.daemon(argv, self.directory / "sshd.log")
        wait_until(f"the sshd of {self.name} to listen", lambda: listens(self.host, PORT), limit_s=60, every_s=0.02)

    def down(self) -> None:
        """End the daemon and all its connections."""
        if self._daemon is not None:
            self._daemon.terminate()
            self._daemon.wait(timeout=60)
            self._daemon = None
        self.cut()

    def cut(self) -> None:
        """End all connections, as if the network had broken them."""
        self._signal(signal.SIGKILL)

    def freeze(self) -> None:
        """Let no connection that is open carry anything any more, as if its packets were lost."""
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        for process in self.host.processes():
            if "sshd" in process.command()[:40] and (self._daemon is None or process.pid != self._daemon.pid):
                process.send(number)

    def change(self, *without: str, **values: str) -> None:
        """Change settings of the daemon, which is started again; settings in `without` get their defaults."""
        kept = [line for line in self._settings() if line.partition(" ")[0] not in (*values, *without)]
        text = "".join(f"{line}\n" for line in (*kept, *(f"{key} {value}" for key, value in values.items())))
        (self.directory / "sshd_config").write_text(text)
        self.down()
        self.up()

    def configure(self, **values: str) -> None:
        """As `change`; an empty value removes a setting."""
        self.change(*(key for key, value in values.items() if not value), **{k: v for k, v in values.items() if v})

    def _settings(self) -> list[str]:
        return (self.directory / "sshd_config").read_text().splitlines()

    def refuse_keys(self) -> None:
        """Let no key in from now on, as a site does that wants a second factor."""
        (self.directory / "authorized_keys").write_text("")

    def take_keys(self) -> None:
        """Let the client's key in."""
        (self.directory / "authorized_keys").write_text((self.directory / "id.pub").read_text())

    def settings(self) -> dict[str, str]:
        """The first settings of the daemon."""
        return {
            "Port": str(PORT),
            "ListenAddress": "0.0.0.0",
            "HostKey": str(self.directory / "host_key"),
            "PidFile": "none",
            "AuthorizedKeysFile": str(self.directory / "authorized_keys"),
            "StrictModes": "no",
            "PermitRootLogin": "yes",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "UsePAM": "no",
            "UseDNS": "no",
            "PrintMotd": "no",
            "LogLevel": "VERBOSE",
        }

    def _write(self) -> None:
        """Write the settings of both sides."""
        text = "".join(f"{key} {value}\n" for key, value in self.settings().items())
        (self.directory / "sshd_config").write_text(text)
        known = {
            "HostName": self.host.address,
            "Port": str(PORT),
            "User": "root",
            "HostKeyAlias": self.name,
            "IdentityFile": str(self.directory / "id"),
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": str(self.directory / "known_hosts"),
            "GlobalKnownHostsFile": "none",
            "StrictHostKeyChecking": "yes",
        }
        lines = "".join(f"    {key} {value}\n" for key, value in known.items())
        self.config.write_text(f"Host {self.name}\n{lines}")
        script(self.client / "ssh", f'exec {packages.program("ssh")} -F {self.config} "$@"')


def script(path: Path, line: str) -> None:
    """Write a program in shell."""
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
