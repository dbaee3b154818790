"""Accounting for a testbed's Slurm: slurmdbd and its database, both on the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed import slurm_conf
from testbed.errors import WaitError
from testbed.waiting import wait_until

if TYPE_CHECKING:
    from testbed.hosts import Host
    from testbed.slurm_conf import Files

SMALL = (
    "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M", "--innodb-flush-log-at-trx-commit=0",
    "--innodb-doublewrite=0", "--innodb-lock-wait-timeout=900", "--performance-schema=0",
)  # fmt: skip
"""Options for a throwaway database: small, and without durability."""


def start(controller: Host, files: Files) -> None:
    """Start both, and register the cluster with slurmdbd, as slurmctld expects."""
    own = {"SLURM_CONF": str(files.conf)}
    start_database(controller, files)
    conf = files.directory / "slurmdbd.conf"
    conf.write_text(slurm_conf.slurmdbd_conf(controller, files))
    conf.chmod(0o600)  # slurmdbd requires this
    controller.daemon(("slurmdbd", "-D"), files.logs / "slurmdbd.log", env=own)
    said: list[str] = []

    def known() -> bool:
        done = controller.run(("sacctmgr", "--immediate", "add", "cluster", slurm_conf.CLUSTER), env=own)
        said[:] = [done.stdout + done.stderr]
        return done.returncode == 0

    try:
        wait_until(f"slurmdbd to know the cluster (see {files.logs}/slurmdbd.log)", known, limit_s=120, every_s=0.3)
    except WaitError as error:
        raise WaitError(f"{error}; sacctmgr said: {said[0].strip()}") from None


def start_database(controller: Host, files: Files) -> None:
    """Start MariaDB with its own data directory. It takes anyone for its administrator, and runs as root.

    Its TCP port is on the controller's own loopback. A socket with a path would be reached from all of this machine, so
    its directory is closed. The server reads and writes files for statements in an empty directory only.
    """
    data, private = files.directory / "mariadb", files.state / "mariadb"
    socket, exchanged = private / "mariadb.socket", private / "files"
    for directory in (private, exchanged):
        directory.mkdir(mode=0o700)
    common = ("--no-defaults", f"--datadir={data}", "--user=root", f"--secure-file-priv={exchanged}")
    controller.run(
        ("mariadb-install-db", *common, "--auth-root-authentication-method=normal", "--skip-test-db", *SMALL),
        timeout_s=180, check=True,
    )  # fmt: skip
    argv = (
        "mariadbd", *common, *SMALL, f"--socket={socket}", f"--pid-file={data}/pid", "--bind-address=127.0.0.1",
        "--skip-grant-tables", "--skip-networking=0",
    )  # fmt: skip
    controller.daemon(argv, files.logs / "mariadb.log")
    wait_until(f"MariaDB's socket to be there (see {files.logs}/mariadb.log)", socket.exists, limit_s=120)
