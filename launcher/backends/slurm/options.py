"""What `distlaunch slurm` takes beside the options of every backend."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.settings.options import duration, not_below, one_of, option


def _array(text: str) -> None:
    from launcher.backends.slurm import script  # it is needed for a launch only

    if text:
        script.indices(text)


def _sbatch(texts: tuple[str, ...]) -> None:
    from launcher.backends.slurm import script

    script.pairs(texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """What sbatch takes, by sbatch's names; `--sbatch KEY=VALUE` for whatever is missing here."""

    partition: str = option("", help="Partition.", flags=("-p", "--partition"))
    account: str = option("", help="Account to charge.", flags=("-A", "--account"))
    qos: str = option("", help="Quality of service.")
    gpus_per_node: str = option("", metavar="[TYPE:]N", help="GPUs per node; one worker each.", group="resources")
    gres: str = option("", help="Generic resources per node.", group="resources")
    cpus_per_task: int = option(
        0,
        metavar="N",
        help="Processors per node's task; reaches the step, too.",
        check=not_below("cpus-per-task"),
        group="resources",
    )
    mem: str = option("", metavar="SIZE", help="Memory per node.", group="resources")
    constraint: str = option("", help="Features that nodes must have.")
    nodelist: str = option("", help="Nodes that must be among the job's.")
    exclude: str = option("", help="Nodes that must not be.")
    reservation: str = option("", help="Reservation to run in.")
    dependency: str = option("", help="Jobs to wait for, as afterok:ID.")
    exclusive: bool = option(False, help="No other job on the nodes.", group="resources")
    nice: str = option("", metavar="N", help="Lower the priority by so much.")
    mail_type: str = option("", help="When to send mail.")
    mail_user: str = option("", help="Whom to send it to.")
    licenses: str = option("", help="Licences to take.", group="resources")
    wckey: str = option("", help="Workload key.")
    switches: str = option("", metavar="N[@TIME]", help="Most leaf switches to spread over.", group="network")
    sbatch: tuple[str, ...] = option(
        (), metavar="KEY=VALUE", help="Any other sbatch option; KEY alone for a flag.", executes=True, check=_sbatch
    )
    container_image: str = option(
        "", metavar="IMAGE", help="Container that the agents and workers run in.", executes=True, path="dots", group="job"
    )
    container_mounts: tuple[str, ...] = option(
        (),
        metavar="SRC:DST",
        help="Folder to mount into it, besides the working folder and the run's own.",
        adds_up=True,
        executes=True,
        group="files",
    )
    container_runtime: str = option(
        "pyxis",
        metavar="pyxis|apptainer|singularity",
        help="What runs it: the pyxis plugin of srun, or a program on the nodes.",
        executes=True,
        check=one_of("container-runtime", "pyxis", "apptainer", "singularity"),
        group="job",
    )
    setup: tuple[str, ...] = option(
        (),
        metavar="LINE|@FILE",
        help="Shell line, or file of such lines, to run before the step: module load ...",
        adds_up=True,
        executes=True,
        path="at",
        group="job",
    )
    new_job: bool = option(False, help="Submit a job even inside an allocation, where the run would be a step of it.")
    array: str = option(
        "", metavar="0-9%2", help="A job array: one run per index, which SLURM_ARRAY_TASK_ID tells the script.", check=_array
    )
    snapshot: bool = option(
        False, help="Run a copy of the working folder as it is now; later changes do not reach the run.", group="files"
    )
    template: str = option(
        "", metavar="FILE", help="Jinja2 template of the job file instead of ours.", executes=True, path="whole", group="files"
    )
    lead: str = option(
        "90s", metavar="DURATION", help="How long before the time limit workers get SIGTERM.", check=duration("lead")
    )
    max_requeues: int = option(
        -1,
        metavar="N",
        help="How often the run starts again after preemption, a lost node or its time limit;"
        " without this as the cluster does it, and never after the time limit.",
        check=not_below("max-requeues", -1),
        default_text="as the cluster does it",
    )
