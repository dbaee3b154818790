"""A login node: an sshd of its own on a host of a Slurm, with that Slurm's commands, and a client that knows it."""

from __future__ import annotations

import hmac
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed import packages
from testbed.ssh import hide_login_files, listens, make_key
from testbed.waiting import wait_until

if TYPE_CHECKING:
    import subprocess

    from testbed.hosts import Host
    from testbed.slurm import Slurm

PORT = 2222
_SECRET = "00112233445566778899aabbccddeeff00112233"
SHELL_PROGRAMS = (
    "cat", "cp", "dd", "find", "grep", "head", "id", "ln", "ls", "mkdir", "mv", "readlink", "rm", "sed", "sh", "sleep",
    "stat", "tail", "tar", "touch", "wc",
)  # fmt: skip
"""What is on PATH there: no Python, no bash."""

_COMMANDS_ONLY = r"""
case $SSH_ORIGINAL_COMMAND in
*[!A-Za-z0-9@%+=:,./_\ -]*) echo "refused: $SSH_ORIGINAL_COMMAND" >&2; exit 77 ;;
"sbatch "*|sbatch|"squeue "*|"scancel "*|"sacct "*|"sinfo "*) set -f; exec $SSH_ORIGINAL_COMMAND ;;
*) echo "refused: $SSH_ORIGINAL_COMMAND" >&2; exit 77 ;;
esac
"""
SLURM_PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun", "sacct")


@dataclass
class LoginNode:
    """Reached by `ssh NAME` with the client's own `ssh`, which is first on its PATH."""

    name: str
    host: Host
    slurm: Slurm
    directory: Path
    _daemon: subprocess.Popen[Any] | None = field(default=None, repr=False)

    @classmethod
    def start(cls, name: str, slurm: Slurm, directory: Path) -> LoginNode:
        """Make keys and settings in the directory, and start the daemon."""
        packages.require(packages.SSH)
        made = cls(name, slurm.controller, slurm, directory)
        hide_login_files(slurm.controller)
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        for inner in ("there", "client"):
            (directory / inner).mkdir(parents=True)
        for program in (*SHELL_PROGRAMS, *SLURM_PROGRAMS):
            if path := packages.program(program):
                (directory / "there" / program).symlink_to(path)
        made.new_sbatch('exec "$sbatch" "$@"')
        make_key(directory / "id", "distlaunch-testbed")
        made.new_host_key()
        made._write()
        made.up()
        return made

    @property
    def client(self) -> Path:
        """The directory for the client's PATH: its `ssh`, and stand-ins for Slurm's commands, which fail."""
        return self.directory / "client"

    @property
    def config(self) -> Path:
        """The client's settings of ssh."""
        return self.directory / "config"

    def new_sbatch(self, line: str) -> None:
        """Give the node this sbatch; `$sbatch` is the real one. Jobs do not inherit the short PATH."""
        (self.directory / "there" / "sbatch").unlink(missing_ok=True)
        first = f"sbatch={packages.program('sbatch')}; PATH={packages.PATH}"
        _script(self.directory / "there" / "sbatch", f"{first}; {line}")

    def stand_in(self, program: str, line: str = "") -> None:
        """Give the node this program; `$real` is the real one, which is back without a line."""
        path, real = self.directory / "there" / program, packages.program(program)
        assert real
        path.unlink(missing_ok=True)
        if line:
            _script(path, f"real={real}; PATH={packages.PATH}; {line}")
        else:
            path.symlink_to(real)

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

    def configure(self, **values: str) -> None:
        """Change settings of the daemon, which is restarted; an empty value removes one."""
        kept = [line for line in self._settings() if line.partition(" ")[0] not in values]
        kept += [f"{key} {value}" for key, value in values.items() if value]
        (self.directory / "sshd_config").write_text("".join(f"{line}\n" for line in kept))
        self.down()
        self.up()

    def take_commands_only(self) -> None:
        """From now on, run single commands of Slurm only: no shell, and no character that one would interpret."""
        script = self.directory / "commands-only"
        _script(script, _COMMANDS_ONLY)
        self.configure(ForceCommand=str(script))

    def ask_for_code(self) -> None:
        """Ask for a one-time code besides the key from now on: `code` is the present one."""
        packages.require(packages.SECOND_FACTOR)
        users, pam = self.directory / "oath", self.directory / "pam"
        users.write_text(f"HOTP/T30/6 root - {_SECRET}\n")
        users.chmod(0o600)
        pam.write_text(
            f"auth required pam_oath.so usersfile={users} window=20 digits=6\n"
            "account required pam_permit.so\nsession required pam_permit.so\n"
        )
        self.host.run(("mount", "--bind", str(pam), "/etc/pam.d/sshd"), check=True, cwd="/")
        self._ask(yes=True)

    def ask_no_more(self) -> None:
        """Undo `ask_for_code`."""
        self._ask(yes=False)
        self.host.run(("umount", "--lazy", "/etc/pam.d/sshd"), check=True, cwd="/")

    def code(self) -> str:
        """The code that is asked for now (RFC 6238)."""
        digest = hmac.new(bytes.fromhex(_SECRET), int(time.time() // 30).to_bytes(8, "big"), "sha1").digest()
        at = digest[-1] & 15
        return f"{(int.from_bytes(digest[at : at + 4], 'big') & 0x7FFFFFFF) % 10**6:06}"

    def _ask(self, *, yes: bool) -> None:
        word = "yes" if yes else "no"
        methods = "publickey,keyboard-interactive" if yes else ""
        self.configure(KbdInteractiveAuthentication=word, UsePAM=word, AuthenticationMethods=methods)

    def _settings(self) -> list[str]:
        return (self.directory / "sshd_config").read_text().splitlines()

    def refuse_keys(self) -> None:
        """Let no key in from now on, as a site does that wants a second factor."""
        (self.directory / "authorized_keys").write_text("")

    def take_keys(self) -> None:
        """Let the client's key in."""
        (self.directory / "authorized_keys").write_text((self.directory / "id.pub").read_text())

    def _write(self) -> None:
        """Write the settings of both sides."""
        self.take_keys()
        there = self.directory / "there"
        values = {
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
            "MaxStartups": "100",
            "SetEnv": f"SLURM_CONF={self.slurm.files.conf} PATH={there}",
        }
        text = "".join(f"{key} {value}\n" for key, value in values.items())
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
        ssh = packages.program("ssh")
        _script(self.client / "ssh", f'exec {ssh} -F {self.config} "$@"')
        for program in SLURM_PROGRAMS:
            _script(self.client / program, f"echo {program} is not on this host >&2; exit 99")


def _script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
