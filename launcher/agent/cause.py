"""Why workers failed: one classified cause, derived from exit codes, error files and the end of stderr."""

from __future__ import annotations

import json
import re
import signal
from typing import TYPE_CHECKING, Any, Callable, Collection, Dict, List, Optional, Sequence, Tuple

from .failures import Failure
from .stream.tail import TRACEBACK
from .system import files

if TYPE_CHECKING:
    from .messages import Cause, ExitedWorker

_MAX_TRACE = 16 * 1024
"""A longer traceback is reported without its middle."""

_MAX_ERROR_FILE = 64 << 20

# Compiled on first use: most agents exit without a failure.
_OUT_OF_MEMORY = r"OutOfMemoryError|\bMemoryError\b|Cannot allocate memory|can't allocate memory|bad_alloc"
_PEER_LOST = (
    r"Connection closed by peer|Connection reset by peer|Broken pipe|ncclRemoteError|Remote peer|remote process exited"
    r"|Please check rank 0 logs for faulty rank"
    r"|failed to recv, got 0 bytes|Connection was likely closed|Socket is not connected|Connection refused"
    r"|An error occurred in Socket closed"
)
_FABRIC = (
    r"DistNetworkError|DistStoreError|DistBackendError|ncclSystemError|ncclInternalError|NCCL error"
    r"|gloo/[\w/]+\.(?:cc|h):"
    r"|Timed out waiting|No route to host|Network is unreachable|Name or service not known|EADDRINUSE"
)
_COLLECTIVE = (
    r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:send|recv) operation|monitoredBarrier"
    r"|waiting for clients\. \d+/\d+ clients joined|Received a dump signal due to a collective timeout"
)
"""NCCL's watchdog, gloo, and a rendezvous of torch's that a rank did not join."""

_OWN_FAULTS = ("SIGSEGV", "SIGABRT", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS", "SIGPIPE", "SIGXCPU", "SIGXFSZ")
"""Signals that a process raises by its own fault; all others were sent to it."""

_BY_SIGNAL = (Failure.KILLED, Failure.OUT_OF_MEMORY)

_NO_WAIT = r"monitoredBarrier|Received a dump signal"
"""A monitored barrier names the missing rank itself; NCCL's monitor ends a rank because another one has timed out."""

WAITED: Dict[str, Callable[[Cause], bool]] = {
    "timeout": lambda cause: bool(cause["class"] == Failure.COLLECTIVE and not re.search(_NO_WAIT, cause["message"])),
    "lost": lambda cause: bool(cause["secondary"]),
}
"""How a rank's wait in a collective ended: it timed out, or another waiting rank exited."""

"""Maximum number of ranks that a message names."""

_SYNTAX_ERROR = rb'(?m)^  File ".*", line \d+\n(?:    .*\n)*(?:SyntaxError|IndentationError|TabError): .*$'
"""What an interpreter prints about the script itself, without a traceback."""

_FRAME = r'(?m)^  File ".*", line \d+.*\n(?:    .*\n)*'
"""A traceback frame with its source lines. These may contain any word, so only the exception is classified."""

_RANK_PREFIX = rb"(?m)^\[rank\d+\]: "
"""Prefix that torch's excepthook puts before each line once a process group exists."""


def of_worker(
    *, host: str, node: int, about: ExitedWorker, error_file: str, stderr_tail: bytes, oom_kills: int, kept: str = ""
) -> Cause:
    """The cause for one worker that exited.

    `about` is the fork server's message, `oom_kills` the number of OOM kills lately, and `kept` the path of the error
    file that messages name.
    """
    code = about["code"]
    recorded = _read(error_file)
    whole = f"the log of rank {about['rank']}" + (f" and {kept or error_file}" if recorded else "")
    trace = recorded.get("traceback") or last_traceback(stderr_tail)
    sig = signal_name(-code) if code < 0 else None
    if sig and not recorded and sig != "SIGABRT":
        trace = None  # an earlier traceback is not what ended it
    message = recorded.get("message") or (trace.rstrip().rpartition("\n")[2] if trace and not sig else "")
    if sig == "SIGABRT" and not message:
        message = _watchdogs(stderr_tail)
    if not message and not sig:
        message = _open_mpi_error(stderr_tail)
    if not message:
        message = f"killed by {sig}" if sig else f"exited with code {code}"
    text = re.sub(_FRAME, "", f"{message}\n{trace or ''}")
    kind = classify(text, sig, oom_kills)
    return {
        "class": kind,
        "message": killed("", sig, oom_kills)[0] if sig and kind in _BY_SIGNAL else one_line(message),
        "host": host,
        "node": node,
        "rank": about["rank"],
        "local_rank": about["local_rank"],
        "exit_code": code if code >= 0 else None,
        "signal": sig,
        "traceback": trace and shorten(trace, whole=whole),
        "time": recorded.get("raised_at") or about["time"],
        "secondary": kind not in _BY_SIGNAL and bool(re.search(_PEER_LOST, text)),
    }


def of_node(
    *, host: str, node: int, message: str, kind: Failure = Failure.NODE, time: float, secondary: bool = False
) -> Cause:
    """A cause for which no worker is responsible."""
    return {
        "class": kind,
        "message": message,
        "host": host,
        "node": node,
        "rank": None,
        "local_rank": None,
        "exit_code": None,
        "signal": None,
        "traceback": None,
        "time": time,
        "secondary": secondary,
    }


def is_cause(said: Any) -> bool:
    """Whether a decoded JSON value is a valid cause."""
    texts = isinstance(said, dict) and all(isinstance(said.get(name), str) for name in ("class", "message", "host"))
    return (
        texts
        and Failure.named(said["class"]) is not None
        and isinstance(said.get("node"), int)
        and isinstance(said.get("time"), (int, float))
        and isinstance(said.get("secondary"), bool)
        and isinstance(said.get("traceback"), (str, type(None)))
    )


def first(causes: List[Cause]) -> Cause:
    """The earliest cause that is not a consequence of another, else the earliest."""
    return min(causes, key=lambda cause: (cause["secondary"], cause["time"]))


def classify(text: str, sig: Optional[str], oom_kills: int) -> Failure:
    """The class of a failure, by the exception or by the signal that ended the worker."""
    if sig == "SIGKILL":
        return Failure.OUT_OF_MEMORY if oom_kills else Failure.KILLED
    if re.search(_OUT_OF_MEMORY, text):
        return Failure.OUT_OF_MEMORY
    if sig == "SIGBUS":
        return Failure.NODE
    if sig is not None and sig not in _OWN_FAULTS:
        return Failure.KILLED
    if re.search(_COLLECTIVE, text):
        return Failure.COLLECTIVE
    return Failure.FABRIC if re.search(_FABRIC, text) or re.search(_PEER_LOST, text) else Failure.USER_CODE


def last_traceback(tail: bytes) -> Optional[str]:
    """The last Python traceback in the tail of a worker's stderr, with the exceptions chained to it."""
    tail = re.sub(_RANK_PREFIX, b"", tail)
    starts = [match.start() for match in re.finditer(re.escape(TRACEBACK), tail)]
    if not starts:
        found = re.findall(_SYNTAX_ERROR, tail)
        return bytes(found[-1]).decode("utf-8", "backslashreplace") + "\n" if found else None
    begin = starts[-1]
    for earlier in reversed(starts[:-1]):
        between = tail[earlier:begin]
        if b"direct cause of the following" in between or b"another exception occurred" in between:
            begin = earlier
        else:
            break
    lines = tail[begin:].decode("utf-8", "backslashreplace").splitlines()
    for index, line in enumerate(lines[1:], 1):
        indented = not line or line.startswith((" ", "\t", "Traceback (", "The above", "During hand"))
        if not indented and not any(later.startswith(("The above exc", "During hand")) for later in lines[index + 1 :]):
            return "\n".join(lines[: index + 1]) + "\n"
    return "\n".join(lines) + "\n"


def aborted_mpi(tail: bytes) -> int:
    """The exit code with which the process has called MPI_Abort; 0 if it has not. MPICH has it killed after that."""
    found = re.search(rb"(?m)^Abort\((\d+)\) on node \d+ \(rank \d+ in comm ", tail)
    return int(found[1]) & 255 if found else 0


def _open_mpi_error(tail: bytes) -> str:
    """The error for which Open MPI has aborted the process, in its words; an empty string if it has not."""
    place = rb"(?:\n.*\*\*\* (?:reported by|on) .*)*"
    found = re.search(rb"(?m)^.*\*\*\* (An error occurred in .+)$" + place + rb"\n.*\*\*\* (.+)$", tail)
    return b": ".join(found.groups()).decode(errors="replace") if found else ""


def _watchdogs(tail: bytes) -> str:
    """The message with which NCCL ends the process after a collective timed out here or elsewhere; else empty."""
    here, elsewhere = (
        rb"Watchdog caught collective operation timeout: ",
        rb"Received a dump signal due to a collective ",
    )
    found = [line for start in (here, elsewhere) for line in re.findall(rb"(?m)^.*?(" + start + rb".*)$", tail)]
    return bytes(found[0]).decode(errors="replace") if found else ""


def killed(what: str, sig: str, oom_kills: int) -> Tuple[str, Failure]:
    """Message and class for a process killed by a signal that distlaunch did not send; `what` names it or is empty."""
    by_kernel = sig == "SIGKILL" and oom_kills > 0
    who = "the kernel's out-of-memory killer" if by_kernel else "another process, not distlaunch"
    text = f"{what} was killed" if what else "killed"
    return f"{text} by {sig}, sent by {who}", Failure.OUT_OF_MEMORY if by_kernel else Failure.KILLED


def signal_name(number: int) -> str:
    """The signal's name, such as `SIGTERM`, or its number if it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def timed_out(waited: Cause, ranks: Collection[int], every: Sequence[int], where: str = "") -> Cause:
    """The cause if `ranks` of `every` rank waited in a collective that timed out; `waited` is the first report of it.

    The ranks that did not wait are to blame: they failed silently, hung, or were elsewhere in the script. `where`: what
    they do.
    """
    others = [rank for rank in every if rank not in ranks]
    if not others:
        return {**waited, "message": f"all {len(every)} ranks timed out in a collective: {waited['message']}"}
    message = f"{_ranks(sorted(ranks))} timed out in a collective; {_ranks(others)} had not joined it"
    message = "; ".join(filter(None, [message, where]))
    whose = f"rank {waited['rank']}, which waited for it: {waited['message']}\n"
    cause: Cause = {**waited, "rank": others[0], "message": message, "traceback": whose + (waited["traceback"] or "")}
    cause["host"] = cause["node"] = cause["local_rank"] = cause["exit_code"] = cause["signal"] = None
    return cause


def _ranks(ranks: List[int]) -> str:
    """`rank 2` or `ranks 0-3,7`."""
    from .system.folding import counted  # few runs end like this

    return counted(ranks, "rank")


def one_line(message: str) -> str:
    """The first line of a message, shortened."""
    return message.splitlines()[0][:500] if message.strip() else message[:500]


def shorten(text: str, *, whole: str) -> str:
    """The text, without its middle if it is long; `whole` names where all of it is."""
    left_out = len(text) - _MAX_TRACE
    if left_out <= 0:
        return text
    half = _MAX_TRACE // 2
    lines = text.count("\n", half, half + left_out)
    note = f"[... {lines} lines, {left_out} characters left out; full text in {whole} ...]"
    return f"{text[:half]}\n{note}\n{text[-half:]}"


def _read(path: str) -> Dict[str, Any]:
    """The exception that torchelastic's @record, or a forked worker, recorded in its error file."""
    try:
        data = json.loads(files.read_word(path, _MAX_ERROR_FILE))
        message = data["message"]
        if isinstance(message, str):
            return {"message": message}
        extra = message.get("extraInfo", {})
        raised_at = float(data.get("raised_at") or extra.get("timestamp", 0)) or None
        return {
            "message": str(message["message"]),
            "traceback": str(extra.get("py_callstack") or ""),
            "raised_at": raised_at,
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}  # a worker may have written anything there
