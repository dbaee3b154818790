"""The options of `distlaunch slurm`, besides those of every backend."""

from __future__ import annotations

import re
from typing import ClassVar

from launcher.backends.slurm import words
from launcher.errors import SpecError
from launcher.login import address
from launcher.settings.option import duration, not_below, one_of, option
from launcher.spec import parse_size
from launcher.system.dataclass import dataclass

OF_SBATCH = (
    "partition", "account", "qos", "gpus_per_node", "gres", "cpus_per_task", "mem", "constraint", "nodelist", "exclude",
    "clusters", "reservation", "dependency", "exclusive", "nice", "mail_type", "mail_user", "licenses", "wckey",
    "switches",
)  # fmt: skip
"""Options that are sbatch's own, in the order of their lines in the job file."""


def _clusters(text: str) -> None:
    if text and not re.fullmatch(r"[\w.-]+(,[\w.-]+)*", text, re.ASCII):
        hint = "write north,south, as `sacctmgr list clusters` has them"
        raise SpecError(f"clusters {text!r} is no list of names", hint=hint)


def _array(text: str) -> None:
    if text:
        words.indices(text)


def _remote_dir(text: str) -> None:
    if text and not re.fullmatch(r"/[^\n\0]*", text):
        raise SpecError(f"remote-dir {text!r} is not an absolute path", hint="name a directory that all nodes see")


def _node_dir(text: str) -> None:
    if not re.fullmatch(r"/[^\n\0]*", text):
        raise SpecError(f"node-dir {text!r} is not an absolute path", hint="name a directory that each node has: /tmp")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """Options of sbatch, by its own names; `--sbatch KEY=VALUE` sets any other."""

    per_role: ClassVar[tuple[str, ...]] = (
        *("partition", "qos", "gpus_per_node", "gres", "cpus_per_task", "mem", "constraint", "nodelist", "exclude"),
        *("reservation", "exclusive", "switches", "sbatch"),
    )
    """Options that each role may have of its own."""

    partition: str = option("", help="Partition.", flags=("-p", "--partition"))
    account: str = option("", help="Account to charge.", flags=("-A", "--account"))
    qos: str = option("", help="Quality of service.")
    gpus_per_node: str = option("", metavar="[TYPE:]N", help="GPUs per node; one worker each.", group="resources")
    gres: str = option("", help="Generic resources per node.", group="resources")
    cpus_per_task: int | None = option(
        None,
        metavar="N",
        help="CPUs per task (one task per node); also passed to the step.",
        check=not_below("cpus-per-task", 1),
        group="resources",
    )
    mem: str = option("", metavar="SIZE", help="Memory per node.", group="resources")
    constraint: str = option("", help="Features that nodes must have.")
    nodelist: str = option("", help="Nodes that the job must include.")
    exclude: str = option("", help="Nodes to exclude.")
    reservation: str = option("", help="Reservation to run in.")
    dependency: str = option("", help="Jobs to wait for: afterok:ID.")
    exclusive: bool = option(False, help="Allow no other job on the nodes.", group="resources")
    nice: str = option("", metavar="N", help="Lower the priority by N.")
    mail_type: str = option("", help="When to send mail.")
    mail_user: str = option("", help="Who to send mail to.")
    licenses: str = option("", help="Licences to reserve.", group="resources")
    wckey: str = option("", help="Workload key.")
    switches: str = option("", metavar="N[@TIME]", help="Maximum number of leaf switches.", group="network")
    sbatch: tuple[str, ...] = option(
        (),
        metavar="KEY=VALUE",
        help="Any other sbatch option; KEY alone sets a flag.",
        executes=True,
        check=words.pairs,
    )
    container_image: str = option(
        "", metavar="IMAGE", help="Container image for the agents and workers.", executes=True, path="dots", group="job"
    )
    container_mounts: tuple[str, ...] = option(
        (),
        metavar="SRC:DST",
        help="Directory to mount in the container, besides the working directory and the run's.",
        adds_up=True,
        executes=True,
        group="files",
    )
    container_runtime: str = option(
        "pyxis",
        metavar="pyxis|apptainer|singularity",
        help="Container runtime: srun's pyxis plugin, or a program on the nodes.",
        executes=True,
        check=one_of("container-runtime", "pyxis", "apptainer", "singularity"),
        group="job",
    )
    setup: tuple[str, ...] = option(
        (),
        metavar="LINE|@FILE",
        help="Shell line, or file of such lines, to run before the step: module load ...",
        adds_up=True,
        repeats=True,
        executes=True,
        path="at",
        group="job",
    )
    clusters: str = option(
        "",
        metavar="A,B",
        help="Clusters of one slurmdbd, by Slurm's names: Slurm starts the job on the first that can, in its opinion.",
        check=_clusters,
    )
    login: str = option(
        "",
        metavar="[USER@]HOST",
        help="Login node of the cluster, as ssh takes it; otherwise Slurm's commands are here.",
        executes=True,
        check=address.check,
    )
    login_shell: str = option(
        "sh",
        metavar="sh|none",
        help="With --login: `none` if the login node takes single commands of Slurm only.",
        check=one_of("login-shell", "sh", "none"),
    )
    remote_dir: str = option(
        "",
        metavar="DIR",
        help="With --login: directory for files and runs, on a file system that all nodes see.",
        executes=True,
        check=_remote_dir,
        group="files",
    )
    project_dir: bool = option(
        True,
        help="With --login: start in a directory that stays the same for launches from this directory.",
        group="files",
    )
    in_place: bool = option(
        False,
        help="With --login: use the working directory, which the cluster sees under the same path; send no files.",
        executes=True,
        group="files",
    )
    snapshot_limit: str = option(
        "200MB",
        metavar="SIZE",
        help="With --login: maximum size of the files to send.",
        check=lambda text: parse_size(text, "snapshot-limit"),
        group="files",
    )
    new_job: bool = option(False, help="Submit a new job even inside an allocation, instead of a step of it.")
    het_group: str = option(
        "",
        metavar="0,1",
        help="Groups of the heterogeneous job to use, inside its allocation [default: all].",
        check=_array,
    )
    array: str = option(
        "",
        metavar="0-9%2",
        help="Job array: one run per index; the script finds it in SLURM_ARRAY_TASK_ID.",
        check=_array,
    )
    snapshot: bool = option(
        False, help="Run a copy of the working directory; later changes do not affect the run.", group="files"
    )
    template: str = option(
        "", metavar="FILE", help="Jinja2 template for the job file.", executes=True, path="whole", group="files"
    )
    sbcast_above: int = option(
        64,
        metavar="N",
        help="With more nodes than this, send the agent to their own disks with sbcast; they do not read it all at once"
        " from the shared one.",
        check=not_below("sbcast-above"),
    )
    node_dir: str = option(
        "/tmp",  # noqa: S108 - a directory of the job's own is made in it, with mode 0700
        metavar="DIR",
        help="Directory on each node's own disk, for what sbcast sends.",
        executes=True,
        check=_node_dir,
        group="files",
    )
    lead: str = option(
        "90s",
        metavar="DURATION",
        help="Send SIGTERM to the workers this long before the time limit.",
        check=duration("lead"),
    )
    max_requeues: int | None = option(
        None,
        metavar="N",
        help="Maximum restarts of the run after preemption, a lost node or its time limit."
        " Without it, the cluster decides, and a run is not restarted after its time limit.",
        check=not_below("max-requeues"),
        default_text="the cluster decides",
    )
