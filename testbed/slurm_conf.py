"""Options of a testbed's Slurm, and its configuration files. Pure: text from options."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from testbed.errors import TestbedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from testbed.hosts import Host

CLUSTER = "testbed"


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """Options of a Slurm; the defaults are a small cluster without accounting, as many are."""

    cpus_per_host: int = 2
    """CPUs that each host claims to have, real or not: nothing is confined."""

    memory_per_host_mb: int = 2000
    gpus_per_host: int = 0
    """Fake GPUs per host: they are scheduled, and CUDA_VISIBLE_DEVICES is set."""

    gpu_type: str = ""
    """As in `--gres=gpu:TYPE:2`."""

    hosts: int = 0
    """How many of the testbed's hosts are its nodes, from the first one; 0 for all."""

    accounting: bool = False
    """slurmdbd with MariaDB. Without it `sacct` fails."""

    switches: tuple[int, ...] = ()
    """Number of hosts below each leaf switch, for topology/tree; empty for no topology."""

    kill_wait_s: int = 3
    """Seconds between SIGTERM and SIGKILL."""

    grace_time_s: int = 0
    """How long a job of partition `low` may continue after the SIGTERM of its preemption, before KillWait starts."""

    dead_after_s: int = 15
    """SlurmdTimeout: how long a node may be silent before it is DOWN."""

    cred_expire_s: int = 10
    """Minimum seconds before a requeued job starts again; Slurm's own default is 120."""

    inactive_limit_s: int = 0
    """Seconds after which Slurm ends an allocation whose salloc or srun has exited; 0 for never."""

    conf: Mapping[str, str] = field(default_factory=dict)
    """Additional lines of slurm.conf, which override those here."""

    def __post_init__(self) -> None:
        if self.cpus_per_host < 1 or self.gpus_per_host < 0:
            raise TestbedError(f"a host cannot have {self.cpus_per_host} CPUs and {self.gpus_per_host} GPUs")


@dataclass(frozen=True)
class Files:
    """Paths of one Slurm's files."""

    directory: Path
    state: Path
    """The directory of sockets; its path is short."""

    @property
    def conf(self) -> Path:
        """The file that SLURM_CONF names."""
        return self.directory / "slurm.conf"

    @property
    def logs(self) -> Path:
        """One log per daemon."""
        return self.directory / "logs"

    @property
    def munge_socket(self) -> Path:
        """munged's socket, for daemons and commands."""
        return self.state / "munge.socket"

    @property
    def munge_key(self) -> Path:
        """The cluster's secret."""
        return self.directory / "munge/key"

    def gpu(self, index: int) -> Path:
        """A file that stands for a GPU."""
        return self.directory / f"gpus/gpu{index}"


def slurm_conf(options: SlurmOptions, hosts: Sequence[Host], controller: Host, files: Files) -> str:
    """The whole slurm.conf."""
    values = general(options, controller, files) | accounting(options, controller, files)
    if options.gpus_per_host:
        values["GresTypes"] = "gpu"
    if options.switches:
        values["TopologyPlugin"] = "topology/tree"
    values |= options.conf
    gres = f" Gres={gpus(options)}" if options.gpus_per_host else ""
    size = f"CPUs={options.cpus_per_host} RealMemory={options.memory_per_host_mb}{gres} State=UNKNOWN"
    lines = [f"{key}={value}" for key, value in values.items()]
    lines += [f"NodeName={host.name} NodeAddr={host.address} {size}" for host in hosts]
    return "\n".join((*lines, *partitions(options))) + "\n"


def general(options: SlurmOptions, controller: Host, files: Files) -> dict[str, str]:
    """The settings that do not depend on the hosts."""
    return {
        "ClusterName": CLUSTER,
        "SlurmctldHost": f"{controller.name}({controller.address})",
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={files.munge_socket},cred_expire={options.cred_expire_s}",
        "CredType": "cred/munge",
        "StateSaveLocation": f"{files.directory}/state",
        "SlurmdSpoolDir": f"{files.directory}/spool/%n",
        "TmpFS": f"{files.directory}/spool/%n",  # where PMIx makes a directory per job on each host
        "SlurmctldPidFile": f"{files.directory}/slurmctld.pid",
        "SlurmdPidFile": f"{files.directory}/slurmd.%n.pid",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "SwitchType": "switch/none",
        "MpiDefault": "none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "SlurmdParameters": "config_overrides",  # hosts may claim more than this machine has
        "SchedulerParameters": "bf_interval=1,sched_interval=5,sched_min_interval=100000,batch_sched_delay=0",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        "JobRequeue": "1",
        "ReturnToService": "2",
        "KillWait": str(options.kill_wait_s),
        "InactiveLimit": str(options.inactive_limit_s),
        "SlurmdTimeout": str(options.dead_after_s),
        "SlurmctldTimeout": "30",
        "MessageTimeout": "10",
    }


def accounting(options: SlurmOptions, controller: Host, files: Files) -> dict[str, str]:
    """Where finished jobs are recorded, if anywhere."""
    if not options.accounting:
        return {"AccountingStorageType": "accounting_storage/none", "JobCompType": "jobcomp/none"}
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": controller.address,
        # Unknown accounts are refused; root has an association of its own.
        "AccountingStorageEnforce": "associations,qos",
        # With munge, the password for slurmdbd is munged's socket.
        "AccountingStoragePass": str(files.munge_socket),
    }


def partitions(options: SlurmOptions) -> list[str]:
    """`main` is never preempted, and `high` preempts `low`. `short` has a limit of a minute, Slurm's shortest."""
    shared = "Nodes=ALL State=UP OverSubscribe=NO"
    return [
        f"PartitionName=main Default=YES MaxTime=INFINITE PriorityTier=1 PreemptMode=OFF {shared}",
        f"PartitionName=short MaxTime=1 DefaultTime=1 PriorityTier=1 PreemptMode=OFF {shared}",
        (
            "PartitionName=low MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE "
            f"GraceTime={options.grace_time_s} {shared}"
        ),
        f"PartitionName=high MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF {shared}",
    ]


def gpus(options: SlurmOptions) -> str:
    """A host's GPUs in Slurm's syntax."""
    return ":".join(filter(None, ("gpu", options.gpu_type, str(options.gpus_per_host))))


def gres_conf(options: SlurmOptions, hosts: Sequence[Host], files: Files) -> str:
    """Which file is which GPU; all hosts have the same files."""
    kind = f" Type={options.gpu_type}" if options.gpu_type else ""
    devices = ",".join(str(files.gpu(index)) for index in range(options.gpus_per_host))
    return "AutoDetect=off\n" + "".join(f"NodeName={host.name} Name=gpu{kind} File={devices}\n" for host in hosts)


def wiring(options: SlurmOptions, hosts: Sequence[Host]) -> tuple[tuple[str, ...], ...]:
    """The hosts below each leaf switch, in their order."""
    if options.switches and sum(options.switches) != len(hosts):
        raise TestbedError(
            f"switches {options.switches} have {sum(options.switches)} hosts below them; there are {len(hosts)}"
        )
    names = iter([host.name for host in hosts])
    return tuple(tuple(islice(names, count)) for count in options.switches)


def leaves(wired: Sequence[Sequence[str]]) -> list[str]:
    """The leaf switches' names."""
    return [f"s{number}" for number in range(1, len(wired) + 1)]


def topology_conf(wired: Sequence[Sequence[str]]) -> str:
    """A tree of two levels: the leaves s1, s2, ... below `root`."""
    names = leaves(wired)
    lines = [f"SwitchName={name} Nodes={','.join(hosts)}" for name, hosts in zip(names, wired, strict=True)]
    return "\n".join((*lines, f"SwitchName=root Switches={','.join(names)}")) + "\n"


def slurmdbd_conf(controller: Host, files: Files) -> str:
    """slurmdbd.conf; the database listens on the controller's own loopback address, which nothing else uses."""
    values = {
        "DbdHost": controller.name, "DbdAddr": controller.address, "SlurmUser": "root",
        "AuthType": "auth/munge", "AuthInfo": f"socket={files.munge_socket}",
        "StorageType": "accounting_storage/mysql", "StorageHost": "127.0.0.1", "StoragePort": "3306",
        "StorageUser": "slurm", "StoragePass": "slurm", "StorageLoc": "slurm_acct_db",
        "PidFile": f"{files.directory}/slurmdbd.pid",
    }  # fmt: skip
    return "".join(f"{key}={value}\n" for key, value in values.items())
