"""Make the agent's job and the handling of workers' lines from torchrun's options, or leave them to torchrun itself."""

from __future__ import annotations

import os
import signal
import stat
from typing import TYPE_CHECKING

from launcher.agent.failures import Failure
from launcher.agent.job import LOOPBACK, Job
from launcher.agent.named_tuple import NamedTuple
from launcher.torchrun import rendezvous, workers
from launcher.torchrun.logs import STDERR, STDOUT, Wanted, streams
from launcher.torchrun.options import TorchrunUsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from launcher.agent.messages import LentTerminal

_BACKENDS = ("static", "c10d")
_HANDLERS = ("null", "console")
_KNOWN_SETTINGS = (
    "join_timeout",
    "timeout",
    "last_call_timeout",
    "keep_alive_interval",
    "keep_alive_max_attempt",
    "is_host",
    "store_type",
    "rank",
)
_NOT_NEEDED = ("read_timeout", "close_timeout", "heartbeat", "cas_backoff_max_seconds")
_JOIN_S = {"static": 900.0, "c10d": 600.0}
_SHUTDOWN_S = 30
_SAME_SIGNAL_S = 1.0


_LOOKED_AT_BYTES = 1 << 12


class Request(NamedTuple):
    """One node's part of a run, before the rendezvous."""

    job: Job
    wanted: Wanted
    backend: str
    host: str
    port: int
    node_rank: int
    host_is_us: bool | None


def theirs(args: argparse.Namespace, env: Mapping[str, str]) -> str:
    """The requested feature that only torchrun itself has; empty if there is none."""
    if args.logs_specs is not None:
        return f"--logs-specs {args.logs_specs}"
    if args.rdzv_backend not in _BACKENDS and not args.standalone:
        return f"--rdzv-backend {args.rdzv_backend}"
    if args.event_log_handler not in _HANDLERS:
        return f"--event-log-handler {args.event_log_handler}"
    if env.get("TORCHELASTIC_ENABLE_FILE_TIMER") == "1":
        return "TORCHELASTIC_ENABLE_FILE_TIMER"
    return (
        "a rendezvous in a file"
        if rendezvous.settings(args.rdzv_conf).get("store_type", "tcp").lower() == "file"
        else ""
    )


class _Meeting(NamedTuple):
    """Which nodes take part in the rendezvous, and where it is."""

    backend: str
    run: str
    host: str
    port: int
    fewest: int
    most: int


def _meeting(args: argparse.Namespace, say: Callable[[str], None]) -> _Meeting:
    fewest, most = _nodes(args.nnodes)
    backend, endpoint = args.rdzv_backend, args.rdzv_endpoint
    alone = args.standalone or (backend == "static" and not endpoint and args.master_port is None and most == 1)
    if backend != "static" and args.node_rank != 0 and not alone:
        say(f"--node-rank {args.node_rank} is ignored: {backend} assigns ranks in the order in which nodes arrive")
    if args.standalone and fewest > 1:
        hint = "use --rdzv-endpoint for several"
        raise TorchrunUsageError(f"--standalone is one node, and --nnodes says {args.nnodes}", hint=hint)
    if alone:
        import uuid

        return _Meeting("c10d", str(uuid.uuid4()), "localhost", 0, 1, 1)
    if backend == "static":
        fewest = most  # for a static rendezvous torchrun uses the larger number
        master_port = rendezvous.STATIC_PORT if args.master_port is None else args.master_port
        host, port = rendezvous.endpoint(endpoint or f"{args.master_addr}:{master_port}", -1)
    else:
        host, port = rendezvous.endpoint(endpoint, rendezvous.C10D_PORT)
    if port < 0:
        raise TorchrunUsageError(
            f"--rdzv-endpoint {endpoint}: a static rendezvous needs its port", hint="write HOST:PORT"
        )
    if most > 1 and port == 0:
        raise TorchrunUsageError("several nodes cannot find port 0", hint="name a port in --rdzv-endpoint")
    if not args.rdzv_id and most == 1:
        import uuid

        return _Meeting(backend, str(uuid.uuid4().int), host, port, 1, 1)
    return _Meeting(backend, args.rdzv_id, host, port, fewest, most)


def of(args: argparse.Namespace, env: Mapping[str, str], *, python: str, say: Callable[[str], None]) -> Request:
    """The request. `python` runs the workers unless the options say otherwise. Raises `TorchrunUsageError`."""
    backend, run, host, port, fewest, most = _meeting(args, say)
    conf = _settings(args.rdzv_conf, say)
    kind, command = _command(args, env, python)
    several, count, wanted = most > 1, workers.count(args.nproc_per_node, env, python), _wanted(args, env)
    replaceable = backend == "c10d" and several and args.max_restarts > 0
    own = args.local_addr or (None if several else LOOPBACK)
    job = Job(
        run=run,
        command=command,
        kind=kind,
        cwd=os.getcwd(),
        env={"TORCHELASTIC_SIGNALS_TO_HANDLE": args.signals_to_handle},
        directory="",
        rendezvous={"addr": host, "port": port, "any_order": True, "everywhere": True} if several else {},
        master_addr=host if backend == "static" else own,
        master_port=(port or None) if backend == "static" and not several else None,
        serves_store=backend == "static" or env.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1",
        min_nodes=fewest,
        max_nodes=most,
        replaceable=replaceable,
        workers=count,
        max_restarts=_count("--max-restarts", args.max_restarts),
        samples_s=0.0,
        grace_s=float(_grace(args.shutdown_timeout, env)),
        failed_grace_s=float(_SHUTDOWN_S),
        rdzv_timeout_s=_number(conf, "timeout" if backend == "static" else "join_timeout", _JOIN_S[backend]),
        last_call_s=_number(conf, "last_call_timeout", 30.0),
        hang_after_s=None,
        role=args.role,
        numa_binding=args.numa_binding or None,
        virtual_local_rank=args.virtual_local_rank,
        macros=True,
        terminal=_terminal(wanted, count),
        same_signal_s=_SAME_SIGNAL_S,
        stop_signals=_signals(args.signals_to_handle, say),
        tracking="off",
        sigterm_means=Failure.PREEMPTED if fewest != most or replaceable else Failure.CANCELLED,
        key=rendezvous.key(env, run, port) if several else os.urandom(32).hex(),
    )
    return Request(_patient(job, conf), wanted, backend, host, port, args.node_rank, _flag(conf, "is_host"))


def _settings(text: str, say: Callable[[str], None]) -> dict[str, str]:
    conf = rendezvous.settings(text)
    if more := sorted(set(conf) - {*_KNOWN_SETTINGS, *_NOT_NEEDED}):
        say(f"--rdzv-conf {', '.join(more)}: unknown, and ignored")
    return conf


def _patient(job: Job, conf: Mapping[str, str]) -> Job:
    """The job, with nodes that may be silent as long as torchrun's keep-alives allow, if that is longer."""
    limit_s = _number(conf, "keep_alive_interval", 5.0) * _number(conf, "keep_alive_max_attempt", 3.0)
    host_s, peer_s = max(job.host_timeout_s, limit_s), max(job.peer_timeout_s, limit_s * 4 / 3)
    return job._replace(host_timeout_s=host_s, peer_timeout_s=peer_s)


def _nodes(text: str) -> tuple[int, int]:
    try:
        fewest, *more = map(int, text.split(":"))
        (most,) = more or [fewest]
    except ValueError:
        raise TorchrunUsageError(f"--nnodes {text!r}: write a number, or MIN:MAX") from None
    if not 0 < fewest <= most:
        raise TorchrunUsageError(f"--nnodes {text!r}: MIN is 1 or more, and no more than MAX")
    return fewest, most


def _command(args: argparse.Namespace, env: Mapping[str, str], python: str) -> tuple[str, list[str]]:
    """Kind and command line of what the workers run."""
    command = [args.training_script, *args.training_script_args]
    module = args.module and not args.run_path
    if args.no_python and not args.run_path:
        if module:
            raise TorchrunUsageError("--no-python and --module exclude one another")
        return "program", command
    # With `$`, each worker has its own script.
    if "$" in args.training_script or not (module or _is_source(args.training_script)):
        return "program", [env.get("PYTHON_EXEC", python), "-u", *(["-m"] if module else []), *command]
    return "module" if module else "script", command


def _is_source(path: str) -> bool:
    """Whether the path is a source file, or missing. Only Python itself can run directories, archives and bytecode."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with open(path, "rb") as file:
            return b"\0" not in file.read(_LOOKED_AT_BYTES)
    except (OSError, ValueError):
        return True


def _wanted(args: argparse.Namespace, env: Mapping[str, str]) -> Wanted:
    shown = None
    if args.local_ranks_filter:
        try:
            shown = frozenset(map(int, args.local_ranks_filter.split(",")))
        except ValueError:
            raise TorchrunUsageError(
                f"--local-ranks-filter {args.local_ranks_filter!r}: write numbers, with commas between"
            ) from None
    return Wanted(
        log_dir=args.log_dir,
        redirects=streams("--redirects", args.redirects),
        tee=streams("--tee", args.tee),
        needs_files=args.redirects != "0"
        or args.tee != "0"
        or bool(args.duplicate_stdout_filters or args.duplicate_stderr_filters),
        shown=shown,
        template=args.log_line_prefix_template or env.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", ""),
        role=args.role,
        filters={STDOUT: args.duplicate_stdout_filters, STDERR: args.duplicate_stderr_filters},
    )


def _terminal(wanted: Wanted, count: int) -> LentTerminal:
    """How workers share our streams, as in torchrun: our own stdin, and our terminal if their lines go nowhere else.

    Otherwise they get pipes, so that their last lines can be reported as the cause of their end.
    """
    very = {}
    for name, fd in (("stdout", STDOUT), ("stderr", STDERR)):
        kept = any((wanted.tee(local) | wanted.redirects(local)) & fd for local in range(count))
        if not kept and wanted.shown is None and os.isatty(fd):
            path = _path(fd)
            very.update({name: path} if os.access(path, os.R_OK | os.W_OK) else {})
    return {"rank": None, "interactive": False, "stdin": "passed", "stdout": False, "stderr": False, "very": very}


def _path(fd: int) -> str:
    """The path of our terminal; in a container, it may have none but that of our descriptor."""
    try:
        return os.ttyname(fd)
    except OSError:
        return f"/proc/{os.getpid()}/fd/{fd}"


def _signals(text: str, say: Callable[[str], None]) -> list[str]:
    """The signals that exist. Others are only reported, as in torchrun."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in signal.Signals.__members__:
            say(f"--signals-to-handle {name}: there is no such signal")
    return [name for name in names if name in signal.Signals.__members__]


def _grace(given: int | None, env: Mapping[str, str]) -> int:
    if given is not None:
        return _count("--shutdown-timeout", given)
    text = env.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_SHUTDOWN_S))
    if not text.isdigit():
        raise TorchrunUsageError(f"TORCH_ELASTIC_SHUTDOWN_TIMEOUT={text}: write a number of seconds")
    return int(text)


def _count(option: str, number: int) -> int:
    if number < 0:
        raise TorchrunUsageError(f"{option} {number}: write 0 or more")
    return number


def _number(conf: Mapping[str, str], name: str, otherwise: float) -> float:
    try:
        return float(conf.get(name, otherwise))
    except ValueError:
        raise TorchrunUsageError(f"--rdzv-conf {name}={conf[name]}: write a number") from None


def _flag(conf: Mapping[str, str], name: str) -> bool | None:
    if name not in conf:
        return None
    text = conf[name].lower()
    if text not in ("1", "true", "t", "yes", "y", "0", "false", "f", "no", "n"):
        raise TorchrunUsageError(f"--rdzv-conf {name}={conf[name]}: write true or false")
    return text[0] in "1ty"
