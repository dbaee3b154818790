"""A login node: an sshd of its own on a host of a Slurm, with that Slurm's commands, and a client that knows it."""

from __future__ import annotations

import hmac
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from testbed import packages
from testbed.bastion import Bastion, script

if TYPE_CHECKING:
    from pathlib import Path

    from testbed.slurm import Slurm

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
class LoginNode(Bastion):
    """A bastion on which Slurm's commands run."""

    slurm: Slurm

    @classmethod
    def of(cls, name: str, slurm: Slurm, directory: Path) -> LoginNode:
        """One on the controller, started."""
        made = cls(name, slurm.controller, directory, slurm)
        there = directory / "there"
        there.mkdir(parents=True)
        for program in (*SHELL_PROGRAMS, *SLURM_PROGRAMS):
            if path := packages.program(program):
                (there / program).symlink_to(path)
        made.new_sbatch('exec "$sbatch" "$@"')
        made.start()
        for program in SLURM_PROGRAMS:
            script(made.client / program, f"echo {program} is not on this host >&2; exit 99")
        return made

    def settings(self) -> dict[str, str]:
        """The commands are on PATH, and know their Slurm."""
        path = self.directory / "there"
        return {**super().settings(), "MaxStartups": "100", "SetEnv": f"SLURM_CONF={self.slurm.files.conf} PATH={path}"}

    def new_sbatch(self, line: str) -> None:
        """Give the node this sbatch; `$sbatch` is the real one. Jobs do not inherit the short PATH."""
        (self.directory / "there" / "sbatch").unlink(missing_ok=True)
        first = f"sbatch={packages.program('sbatch')}; PATH={packages.PATH}"
        script(self.directory / "there" / "sbatch", f"{first}; {line}")

    def stand_in(self, program: str, line: str = "") -> None:
        """Give the node this program; `$real` is the real one, which is back without a line."""
        path, real = self.directory / "there" / program, packages.program(program)
        assert real
        path.unlink(missing_ok=True)
        if line:
            script(path, f"real={real}; PATH={packages.PATH}; {line}")
        else:
            path.symlink_to(real)

    def take_commands_only(self) -> None:
        """From now on, run single commands of Slurm only: no shell, and no character that one would interpret."""
        path = self.directory / "commands-only"
        script(path, _COMMANDS_ONLY)
        self.change(ForceCommand=str(path))

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
        methods = "publickey,keyboard-interactive"
        self.change(KbdInteractiveAuthentication="yes", UsePAM="yes", AuthenticationMethods=methods)

    def ask_no_more(self) -> None:
        """Undo `ask_for_code`."""
        self.change("AuthenticationMethods", KbdInteractiveAuthentication="no", UsePAM="no")
        self.host.run(("umount", "--lazy", "/etc/pam.d/sshd"), check=True, cwd="/")

    def code(self) -> str:
        """The code that is asked for now (RFC 6238)."""
        digest = hmac.new(bytes.fromhex(_SECRET), int(time.time() // 30).to_bytes(8, "big"), "sha1").digest()
        at = digest[-1] & 15
        return f"{(int.from_bytes(digest[at : at + 4], 'big') & 0x7FFFFFFF) % 10**6:06}"
