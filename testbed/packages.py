"""Debian packages for the testbed: missing ones are installed, and their services are not started."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from testbed import processes
from testbed.errors import NotAvailableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

NETWORK: Mapping[str, str] = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "mount": "mount",
    "setpriv": "util-linux",
}
SLURM: Mapping[str, str] = {
    "slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge", "mungekey": "munge",
    "libpmix.so": "libpmix-dev",
}  # fmt: skip
ACCOUNTING: Mapping[str, str] = {
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
}
SSH: Mapping[str, str] = {"sshd": "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client"}
SECOND_FACTOR: Mapping[str, str] = {"pam_oath.so": "libpam-oath"}
QUOTAS: Mapping[str, str] = {"mkfs.btrfs": "btrfs-progs", "btrfs": "btrfs-progs", "losetup": "mount"}
NETWORK_DIRECTORY: Mapping[str, str] = {"sshfs": "sshfs"}
KUBERNETES: Mapping[str, str] = {"openssl": "openssl"}
KUBERNETES_NODE: Mapping[str, str] = {
    "containerd": "containerd", "ctr": "containerd", "runc": "runc",
    "/usr/lib/cni/host-local": "containernetworking-plugins",
}  # fmt: skip
KUBERNETES_POLICIES: Mapping[str, str] = {"iptables": "iptables", "ipset": "ipset"}
BROWSER: Mapping[str, str] = {"chromium": "chromium"}
MONITORING: Mapping[str, str] = {"prometheus": "prometheus"}

SERVICES: Mapping[str, str] = {
    "slurmctld": "slurmctld", "slurmd": "slurmd", "munge": "munge", "slurmdbd": "slurmdbd", "mariadb-server": "mariadb",
    "openssh-server": "ssh", "containerd": "containerd", "prometheus": "prometheus",
}  # fmt: skip
"""The service that a package would start, at once or at boot."""

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
POLICY = Path("/usr/sbin/policy-rc.d")
STATUS = Path("/proc/self/status")
RIGHTS = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
"""What hosts need of the kernel's rights, with their bits."""

OURS = "# the testbed's, of process "
LOCK = Path("/run/lock/distlaunch-testbed-packages.lock")

_failed: dict[tuple[str, ...], str] = {}
"""Packages that could not be installed, and why; they are not tried again."""


def program(name: str) -> str | None:
    """The path of a program; daemons are not on every user's PATH."""
    if name.endswith(".so"):  # a module of PAM, or a library
        return next(map(str, (found for at in ("security/", "") for found in Path("/lib").glob(f"*/{at}{name}"))), None)
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{PATH}")


def missing(programs: Mapping[str, str]) -> tuple[str, ...]:
    """The packages whose programs are missing."""
    return tuple(sorted({package for name, package in programs.items() if program(name) is None}))


def why_no_hosts() -> str:
    """Why no hosts can be made here, whatever is installed; empty if they can. Root in a container may lack rights."""
    if os.geteuid() != 0:
        return "the testbed needs root: no network namespaces can be made here"
    with suppress(OSError):
        told = dict(line.partition(":")[::2] for line in STATUS.read_text().splitlines())
        rights = int(told.get("CapEff", "0").strip(), 16)
        if lacks := [name for name, bit in RIGHTS.items() if not rights >> bit & 1]:
            return f"the testbed needs {' and '.join(lacks)}, as in a privileged container: no hosts can be made here"
    return ""


def require(*groups: Mapping[str, str], limit_s: float = 170) -> None:
    """Install these programs if they are missing, or raise `NotAvailableError`."""
    if reason := why_no_hosts():
        raise NotAvailableError(reason)
    wanted = {name: package for group in groups for name, package in group.items()}
    packages = missing(wanted)
    if not packages:
        return
    if packages in _failed:
        raise NotAvailableError(_failed[packages])
    try:
        have(packages, wanted, limit_s)
    except NotAvailableError as error:
        _failed[packages] = str(error)
        raise


def have(packages: Sequence[str], wanted: Mapping[str, str], limit_s: float) -> None:
    """Install what is missing, unless another process does."""
    if program("apt-get") is None:
        raise NotAvailableError(f"the testbed needs {', '.join(packages)}, and there is no apt-get to install that")
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        packages = missing(wanted)  # another process may have installed them meanwhile
        if packages:
            install(packages, limit_s)
    if missing(wanted):
        raise NotAvailableError(
            f"the testbed needs {', '.join(missing(wanted))}: installed, but its programs are not there"
        )


def install(packages: Sequence[str], limit_s: float) -> None:
    """Install packages without their services; the limit is for what comes from the network."""
    quiet = ("-qq", "-o", "Dpkg::Use-Pty=0", "-o", "DPkg::Lock::Timeout=60", "-o", "Acquire::Retries=2")
    wanted = ("apt-get", "install", "--yes", "--no-install-recommends", *quiet, *packages)
    apt(packages, ("apt-get", "update", *quiet), limit_s)
    apt(packages, (*wanted, "--download-only"), limit_s)
    with no_services():
        apt(packages, wanted, None)
    if program("systemctl"):
        for service in filter(None, map(SERVICES.get, packages)):
            subprocess.run(("systemctl", "disable", service), capture_output=True, timeout=30, check=False)


def apt(packages: Sequence[str], argv: Sequence[str], limit_s: float | None) -> None:
    """Run apt-get; its output is the reason if it fails. Without a limit, it is not ended by Ctrl-C, either.

    dpkg in the middle of an installation must not be killed: later ones would fail until it is repaired by hand.
    """
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "PATH": f"{os.environ.get('PATH', '')}:{PATH}"}
    needs = f"the testbed needs {', '.join(packages)}: {' '.join(argv[:2])}"
    with tempfile.TemporaryFile() as said:  # and no pipe, which would end it with us
        pipes = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": subprocess.STDOUT}
        with subprocess.Popen(list(argv), env=env, start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
            try:
                if limit_s is None:
                    keep_policy(process.pid)
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the pid is still its own
                raise NotAvailableError(f"{needs} did not end within {limit_s:g} s") from None
            except BaseException:
                if limit_s is None:
                    process.wait()
                else:
                    os.killpg(process.pid, signal.SIGKILL)
                raise
        said.seek(0)
        text = said.read().decode(errors="replace").strip()
    if process.returncode:
        raise NotAvailableError(f"{needs} failed: {text[-400:]}")


@contextmanager
def no_services() -> Iterator[None]:
    """Keep services from starting, by Debian's policy-rc.d, unless this machine has its own."""
    forget_policy()
    mine = not POLICY.exists()
    if mine:
        POLICY.write_text(f"#!/bin/sh\n{mark(os.getpid())}exit 101\n")
        POLICY.chmod(0o755)
    try:
        yield
    finally:
        if mine:
            POLICY.unlink(missing_ok=True)
        else:  # perhaps that of an installation whose process was killed, and which has ended by now
            forget_policy()


def mark(pid: int) -> str:
    """The line of the policy that names a process of its installation."""
    return f"{OURS}{pid} {processes.start_ticks(pid)}\n"


def keep_policy(pid: int) -> None:
    """Keep our policy until this process, too, has ended: apt-get continues if we are killed."""
    with suppress(OSError), POLICY.open("r+") as policy:
        if OURS in policy.read():
            policy.write(mark(pid))  # behind `exit`


def forget_policy() -> bool:
    """Remove the policy of an installation whose processes have ended, or were killed: no service would start.

    Returns whether it did.
    """
    with suppress(OSError, ValueError):
        lines = [line for line in POLICY.read_text().splitlines() if line.startswith(OURS)]
        named = [processes.Process(*map(int, line.removeprefix(OURS).split())) for line in lines]
        if named and not any(process.alive() for process in named):
            POLICY.unlink()
            return True
    return False
