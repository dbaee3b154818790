"""Settings as dataclass fields, which define both the command line and the TOML files.

A field's name is the TOML key and, with dashes, the flag; its type (`str`, `int`, `float`, `bool` or `tuple[str, ...]`)
is what both accept. A backend adds its own options by declaring a dataclass like `JobOptions` here.
"""

from __future__ import annotations

from launcher import spec
from launcher.settings import job_checks
from launcher.settings.option import duration, not_below, one_of, option
from launcher.system.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Options of every backend; `job_spec.from_options` turns them into a `JobSpec`."""

    nodes: str = option(
        "",
        metavar="N|MIN:MAX",
        help="Number of nodes [default: 1, or all of an inventory or Slurm allocation]; MIN:MAX makes the run elastic.",
        check=lambda text: text and spec.NodeRange.parse(text),
        group="resources",
    )
    nproc_per_node: str = option(
        "auto",
        metavar="M|auto",
        help="Workers per node; auto: one per GPU, or one on a node without GPUs.",
        check=spec.parse_workers,
        group="resources",
    )
    workers: int = option(
        0,
        metavar="N",
        help="Number of all workers, instead of --nodes: each cluster has its own number of workers per node.",
        check=not_below("workers"),
        group="resources",
    )
    claim: str = option(
        "",
        metavar="DIR|ssh://HOST/DIR",
        help="Where a run that is queued on several clusters is claimed by the first; else this command decides.",
        executes=True,
        check=job_checks.claim,
        group="job",
    )
    claim_wait: str = option(
        "5m",
        metavar="DURATION",
        help="How long such a run waits for the claim once it could start.",
        check=duration("claim-wait"),
        group="job",
    )
    name: str = option("", help="Run name [default: the script's].")
    python: str = option(
        "", metavar="PATH", help="Python with torch that runs the workers.", executes=True, path="dots"
    )
    env: tuple[str, ...] = option(
        (),
        metavar="K=V|K",
        flags=("-e", "--env"),
        help="Variable for the workers; K alone copies the value from the current environment.",
        adds_up=True,
        executes=True,
        check=spec.check_variables,
    )
    secret: tuple[str, ...] = option(
        (),
        metavar="NAME",
        help="Variable to pass without its value in any rendered file, argument or log.",
        adds_up=True,
        executes=True,
        check=spec.check_secrets,
    )
    ship_secrets: bool = option(
        False, help="Also send files and variables that look like credentials.", executes=True, group="files"
    )
    links: str = option(
        "keep",
        metavar="keep|follow|refuse",
        help="Links that lead out of the working directory: send them as links, what they lead to, or nothing at all.",
        executes=True,
        check=one_of("links", "keep", "follow", "refuse"),
        group="files",
    )
    env_ship: str = option(
        "",
        metavar="auto|FOLDER|FILE",
        help="Bring this Python environment to each node's local disk, from node to node; auto: that of the Python.",
        executes=True,
        path="dots",
        group="files",
    )
    env_ship_dir: str = option(
        "",
        metavar="DIR",
        help="Where nodes keep environments; may name their variables.",
        executes=True,
        default_text="distlaunch-USER in /var/tmp",
        group="files",
    )
    env_ship_quota: str = option(
        "50GB",
        metavar="SIZE",
        help="How much of them a node keeps; the least recently used are removed.",
        check=lambda text: spec.parse_size(text, "env-ship-quota"),
        group="files",
    )
    start_method: str = option(
        "fork",
        metavar="fork|spawn",
        help="fork: torch is imported once per node; spawn: once per worker, like torchrun.",
        check=one_of("start-method", "fork", "spawn", "forkserver"),
    )
    preload: tuple[str, ...] = option(
        (),
        metavar="MODULE",
        help="Additional module to import once per node before the fork.",
        adds_up=True,
        executes=True,
        check=job_checks.check_modules,
    )
    max_restarts: int = option(
        0,
        metavar="K",
        help="Maximum restarts of all workers after a worker fails.",
        check=not_below("max-restarts"),
        job="max_restarts",
    )
    time: str = option(
        "",
        metavar="DURATION",
        help="Time limit: 90s, 10m, 2h, 1-12:00:00. Then SIGTERM, later SIGKILL.",
        check=lambda text: text and spec.parse_duration(text, "time"),
    )
    grace: str = option("30s", metavar="DURATION", help="Time between SIGTERM and SIGKILL.", check=duration("grace"))
    rdzv_timeout: str = option(
        "10m",
        metavar="DURATION",
        help="Maximum time that nodes wait for one another at the start.",
        check=duration("rdzv-timeout"),
        job="rdzv_timeout_s",
        group="network",
    )
    peer_timeout: str = option(
        "5m",
        metavar="DURATION",
        help="How long a node may be silent while its host answers, before it counts as lost.",
        check=duration("peer-timeout"),
        job="peer_timeout_s",
        group="network",
    )
    master_port: int = option(
        0,
        metavar="PORT",
        help="MASTER_PORT; 0: a free port, chosen at start.",
        check=spec.parse_port,
        job="master_port",
        group="network",
    )
    log_limit: str = option(
        "4GB",
        metavar="SIZE|none",
        help="Maximum size of each rank's output to keep: the first half, and the latest lines of the rest.",
        check=spec.parse_log_limit,
        job="log_limit_bytes",
        group="output",
    )
    samples: int = option(
        10,
        metavar="SECONDS",
        help="Interval of the samples of what each node and rank uses, for top and status; 0: none.",
        check=not_below("samples"),
        job="samples_s",
        group="output",
    )
    warm: str = option(
        "none",
        metavar="DURATION|none",
        help="Keep what is imported for this long after the run: the next one on the node starts without the import.",
        check=job_checks.warm,
        job="warm_s",
    )
    hang_after: str = option(
        "5m",
        metavar="DURATION|none",
        help="Silence of all ranks after which their stacks are compared; if they hang, the odd rank is named.",
        check=job_checks.hang_after,
        job="hang_after_s",
    )
    on_hang: str = option(
        "warn",
        metavar="warn|end|restart",
        help="What follows from a hang: a warning, the end of the run, or a restart as after a failure.",
        check=job_checks.on_hang,
        job="on_hang",
    )
    role: str = option(
        "default", metavar="NAME", help="Value of ROLE_NAME for the workers.", check=job_checks.parse_role, job="role"
    )
    numa_binding: str = option(
        "",
        metavar="MODE",
        help="Bind each worker to CPUs near its GPU: node, socket, exclusive or core-complex, as torchrun does.",
        check=job_checks.numa_binding,
        job="numa_binding",
        group="resources",
    )
    near_nics: bool = option(
        False, help="Use only the RDMA ports nearest to each worker's GPU.", group="network", job="near_nics"
    )
    tty: str = option(
        "auto",
        metavar="auto|never",
        help="auto: a worker that runs alone, or is shown alone, gets a terminal if you have one.",
        check=one_of("tty", "auto", "never"),
        group="output",
    )
    virtual_local_rank: bool = option(
        False,
        help="LOCAL_RANK is 0 for all workers, and each sees only its own GPU.",
        group="resources",
        job="virtual_local_rank",
    )
    on_hangup: str = option(
        "",
        metavar="detach|cancel",
        help="What happens to the run when the terminal that follows it is closed.",
        check=lambda text: text and one_of("on-hangup", "detach", "cancel")(text),
        default_text="detach; with local: cancel",
    )
    fetch: tuple[str, ...] = option(
        (),
        metavar="PATTERN",
        flags=("--fetch",),
        help="At the end, fetch these files, such as 'results/**', as the command fetch does.",
        check=job_checks.patterns,
        group="files",
    )
    fetch_node: str = option(
        "0",
        metavar="N|all",
        help="Fetch from this node, at the end and with the command fetch; all: of every node.",
        check=job_checks.fetch_node,
        group="files",
    )
    contract: str = option(
        "torchrun",
        metavar="NAME",
        help="What workers get: torchrun, mpi, jax, tensorflow, horovod, or env for any other program.",
        check=job_checks.contract,
        job="contract",
        group="job",
    )
    tracking: str = option(
        "continue",
        metavar="continue|group|off",
        help="What Weights & Biases and MLflow get: an id by which attempts continue one curve, a group, or nothing.",
        check=job_checks.tracking,
        job="tracking",
        group="job",
    )
    notify: tuple[str, ...] = option(
        (),
        metavar="URL|env:NAME",
        flags=("--notify",),
        help="Tell this webhook, or a service by its apprise URL, of the run's start, first failure, hangs and end.",
        adds_up=True,
        executes=True,
        check=job_checks.notify,
        group="job",
    )
    notify_secret: str = option(
        "",
        metavar="NAME",
        help="Variable with the secret that signs what webhooks get.",
        group="job",
        executes=True,
        check=job_checks.notify_secret,
    )
    stragglers: str = option(
        "report",
        metavar="report|quarantine",
        help="What follows if hosts were slow for most of it; quarantine: later runs on this cluster exclude them.",
        check=one_of("stragglers", "report", "quarantine"),
        group="job",
    )
    ps: int = option(
        0,
        metavar="K",
        help="With --contract tensorflow: the last K ranks are parameter servers, and rank 0 is the chief.",
        check=not_below("ps"),
        job="ps",
        group="job",
    )
    no_python: bool = option(False, help="SCRIPT is a program, not a Python script.", executes=True)
