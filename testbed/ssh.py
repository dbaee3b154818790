"""sshd in every host, and what a client needs to connect to them without prompts."""

from __future__ import annotations

import shlex
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from testbed import packages, processes
from testbed.waiting import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from testbed.hosts import Host

LOGIN_FILES = (".bashrc", ".bash_profile", ".bash_login", ".profile", ".zshenv", ".ssh/rc")
"""Files below a home directory that shells or sshd itself run at login."""


@dataclass(frozen=True)
class SshHosts:
    """Hosts with an sshd each, on port 22 of their own addresses, reachable from this machine and from one another."""

    hosts: tuple[Host, ...]
    directory: Path

    @property
    def config(self) -> Path:
        """For `ssh -F`: names, addresses, the key, and the hosts' keys."""
        return self.directory / "ssh_config"

    @property
    def key(self) -> Path:
        """The client's private key, which all hosts accept for root."""
        return self.directory / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """The hosts' public keys, by name and by address."""
        return self.directory / "known_hosts"

    @property
    def inventory(self) -> Path:
        """For `ansible-playbook --inventory`: the hosts in a group `nodes`."""
        return self.directory / "inventory.ini"

    def argv(self, host: Host, *argv: str) -> tuple[str, ...]:
        """The command on this machine that runs `argv` on a host over ssh."""
        return ("ssh", "-F", str(self.config), host.name, shlex.join(argv))

    def run(
        self, host: Host, argv: Sequence[str], *, timeout_s: float = 120, check: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on a host over ssh."""
        return processes.run(self.argv(host, *argv), timeout_s=timeout_s, check=check)

    def start_sshd(self, host: Host) -> None:
        """Start a host's sshd, as on `Testbed.up`, or again after `host.kill()`; returns when it listens."""
        sshd = packages.program("sshd")  # it requires an absolute path
        assert sshd
        host.daemon(
            (sshd, "-D", "-e", "-f", str(self.directory / f"{host.name}.sshd_config")),
            self.directory / f"{host.name}.log",
        )
        wait_until(f"the sshd of {host.name} to listen", lambda: listens(host, 22), limit_s=120, every_s=0.02)

    @classmethod
    def start(cls, hosts: Sequence[Host], directory: Path) -> SshHosts:
        """Make keys and configuration, and start all daemons."""
        made = cls(tuple(hosts), directory / "ssh")
        made.directory.mkdir(exist_ok=True)
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        make_key(made.key, "distlaunch-testbed")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(hide_login_files, hosts))
            list(pool.map(made._write_host, hosts))
            made._write_client()
            list(pool.map(made.start_sshd, hosts))
        return made

    def _host_key(self, host: Host) -> Path:
        return self.directory / f"{host.name}.key"

    def _write_host(self, host: Host) -> None:
        """Write a host's key and its sshd's configuration."""
        make_key(self._host_key(host), host.name)
        values = {
            "ListenAddress": "0.0.0.0",
            "HostKey": str(self._host_key(host)),
            "PidFile": "none",
            "AuthorizedKeysFile": f"{self.key}.pub",
            "StrictModes": "no",
            "PermitRootLogin": "prohibit-password",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "UsePAM": "no",
            "UseDNS": "no",
            "PrintMotd": "no",
            "MaxStartups": "100",
            "AcceptEnv": "LANG LC_*",
            "Subsystem": "sftp internal-sftp",
        }
        text = "".join(f"{key} {value}\n" for key, value in values.items())
        (self.directory / f"{host.name}.sshd_config").write_text(text)

    def _write_client(self) -> None:
        """Write the files that a client needs."""
        keys = {host: self._host_key(host).with_suffix(".key.pub").read_text().split()[:2] for host in self.hosts}
        self.known_hosts.write_text("".join(f"{h.name},{h.address} {' '.join(key)}\n" for h, key in keys.items()))
        blocks = [f"Host {host.name} {host.address}\n    HostName {host.address}\n" for host in self.hosts]
        common = {
            "User": "root",
            "IdentityFile": str(self.key),
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": str(self.known_hosts),
            "GlobalKnownHostsFile": "none",
            "StrictHostKeyChecking": "yes",
            "BatchMode": "yes",
            "ConnectTimeout": "10",
            "LogLevel": "ERROR",
        }
        blocks += ["Host *\n", *(f"    {key} {value}\n" for key, value in common.items())]
        self.config.write_text("".join(blocks))
        lines = [f"{host.name} ansible_host={host.address}\n" for host in self.hosts]
        options = f"[nodes:vars]\nansible_user=root\nansible_ssh_common_args=-F {self.config}\n"
        self.inventory.write_text("".join(("[nodes]\n", *lines, "\n", options)))


def hide_login_files(host: Host) -> None:
    """Hide this user's login files from the hosts: pyenv's, for one, takes a lock that all hosts would share."""
    files = [str(path) for name in LOGIN_FILES if (path := Path.home() / name).exists()]
    host.run(
        ("sh", "-c", 'for path; do mount --bind /dev/null "$path" || exit; done', "hide", *files), check=True, cwd="/"
    )


def make_key(path: Path, comment: str) -> None:
    """Create a key without a passphrase."""
    processes.run(
        ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)),
        timeout_s=120,
        stdin="y\n",
        check=True,
    )


def listens(host: Host, port: int) -> bool:
    """Whether a process in the host listens on a TCP port, checked without connecting."""
    lines = Path(f"/proc/{host.anchor.pid}/net/tcp").read_text().splitlines()[1:]
    sockets = (line.split() for line in lines)
    return any(fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port for fields in sockets)
