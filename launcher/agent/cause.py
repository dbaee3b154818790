"""Why workers ended: one cause with a class, out of exit codes, error files and what they wrote to stderr last."""

from __future__ import annotations

import json
import re
import signal
from typing import TYPE_CHECKING, Any, Callable, Collection, Dict, List, Optional, Tuple

from .failures import Failure
from .stream.tail import TRACEBACK
from .system import files

if TYPE_CHECKING:
    from .messages import ExitedWorker

Cause = Dict[str, Any]

_MAX_TRACE = 16 * 1024
"""A longer traceback is told without its middle."""

_MAX_ERROR_FILE = 64 << 20

# Compiled on first use: most agents end without a failure.
_OUT_OF_MEMORY = r"OutOfMemoryError|\bMemoryError\b|Cannot allocate memory|can't allocate memory|bad_alloc"
_PEER_LOST = (
    r"Connection closed by peer|Connection reset by peer|Broken pipe|ncclRemoteError|Remote peer|remote process exited"
    r"|Please check rank 0 logs for faulty rank"
    r"|failed to recv, got 0 bytes|Connection was likely closed|Socket is not connected|Connection refused"
)
_FABRIC = (
    r"DistNetworkError|DistStoreError|DistBackendError|ncclSystemError|ncclInternalError|NCCL error|gloo/[\w/]+\.(?:cc|h):"
    r"|Timed out waiting|No route to host|Network is unreachable|Name or service not known|EADDRINUSE"
)
_COLLECTIVE = (
    r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:send|recv) operation|monitoredBarrier"
    r"|waiting for clients\. \d+/\d+ clients joined"
)
"""NCCL's watchdog, gloo, and a rendezvous of torch's that somebody did not come to."""

_OWN_FAULTS = ("SIGSEGV", "SIGABRT", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS", "SIGPIPE", "SIGXCPU", "SIGXFSZ")
"""Signals by which a process ends through what itself does; all others are somebody's."""

_BY_SIGNAL = (Failure.KILLED, Failure.OUT_OF_MEMORY)

WAITED: Dict[str, Callable[[Cause], bool]] = {
    "timeout": lambda cause: bool(cause["class"] == Failure.COLLECTIVE and "monitoredBarrier" not in cause["message"]),
    "lost": lambda cause: bool(cause["secondary"]),
}
"""Who has waited in a collective: until that timed out, or until one that had waited with it ended. A monitored barrier names
the rank itself."""

_NAMED = 16
"""So many ranks are named in a message."""

_SYNTAX_ERROR = rb'(?m)^  File ".*", line \d+\n(?:    .*\n)*(?:SyntaxError|IndentationError|TabError): .*$'
"""What an interpreter says of the script itself, without a traceback."""

_FRAME = r'(?m)^  File ".*", line \d+.*\n(?:    .*\n)*'
"""A place in a traceback, with its text, which may name anything: what was raised counts."""

_RANK_PREFIX = rb"(?m)^\[rank\d+\]: "
"""torch's excepthook puts it before each line once a process group exists."""


def of_worker(
    *, host: str, node: int, about: ExitedWorker, error_file: str, stderr_tail: bytes, oom_kills: int, kept: str = ""
) -> Cause:
    """The cause for one worker that ended; `about` is the fork server's message, `oom_kills` counts since the start.

    `kept`: where the error file is for people.
    """
    code = about["code"]
    recorded = _read(error_file)
    whole = f"the log of rank {about['rank']}" + (f" and {kept or error_file}" if recorded else "")
    trace = recorded.get("traceback") or last_traceback(stderr_tail)
    sig = signal_name(-code) if code < 0 else None
    if sig and not recorded and sig != "SIGABRT":
        trace = None  # whatever it has written before, that has not ended it
    message = recorded.get("message") or (trace.rstrip().rpartition("\n")[2] if trace and not sig else "")
    if sig == "SIGABRT" and not message:
        message = _watchdogs(stderr_tail)
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


def of_node(*, host: str, node: int, message: str, kind: Failure = Failure.NODE, time: float, secondary: bool = False) -> Cause:
    """A cause for which no worker is to blame."""
    nobody = dict.fromkeys(("rank", "local_rank", "exit_code", "signal", "traceback"))
    return {
        "class": kind,
        "message": message,
        "host": host,
        "node": node,
        **nobody,
        "time": time,
        "secondary": secondary,
    }


def is_cause(said: Any) -> bool:
    """Whether what was read has the form of a cause."""
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
    """The earliest that is not the consequence of another, else the earliest."""
    return min(causes, key=lambda cause: (cause["secondary"], cause["time"]))


def classify(text: str, sig: Optional[str], oom_kills: int) -> Failure:
    """The class by what was raised, or by the signal that ended the worker."""
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
    """The last Python traceback in the end of a worker's stderr, with the chain of exceptions that led to it."""
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


def _watchdogs(tail: bytes) -> str:
    """What NCCL's watchdog wrote before it aborted the process: a collective has timed out."""
    found = re.findall(rb"(?m)^.*?(Watchdog caught collective operation timeout: .*)$", tail)
    return found[0].decode(errors="replace") if found else ""


def killed(what: str, sig: str, oom_kills: int) -> Tuple[str, Failure]:
    """Message and class for a process, in words or not, that was ended by a signal which nobody of us has sent."""
    by_kernel = sig == "SIGKILL" and oom_kills > 0
    who = "the kernel's out-of-memory killer" if by_kernel else "somebody else, not distlaunch"
    text = f"{what} was killed" if what else "killed"
    return f"{text} by {sig}, sent by {who}", Failure.OUT_OF_MEMORY if by_kernel else Failure.KILLED


def signal_name(number: int) -> str:
    """`SIGTERM`; a number where a signal has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def timed_out(waited: Cause, ranks: Collection[int], world: int) -> Cause:
    """The cause where these of all ranks have waited in a collective, and `waited` is the first of them to say so.

    Who did not is to blame: it had failed in silence, hung, or was somewhere else in the script.
    """
    others = [rank for rank in range(world) if rank not in ranks]
    if not others:
        return {**waited, "message": f"all {world} ranks timed out in a collective: {waited['message']}"}
    message = f"{_ranks(sorted(ranks))} timed out in a collective; {_ranks(others)} had not joined it"
    whose = f"rank {waited['rank']}, which waited for it: {waited['message']}\n"
    place = {"host": None, "node": None, "local_rank": None, "exit_code": None, "signal": None}
    return {**waited, **place, "rank": others[0], "message": message, "traceback": whose + (waited["traceback"] or "")}


def _ranks(ranks: List[int]) -> str:
    """`rank 2`; `ranks 0, 1, 3`; of many the first few."""
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:_NAMED]))}{more}"


def one_line(message: str) -> str:
    """The first line of a message, shortened."""
    return message.splitlines()[0][:500] if message.strip() else message[:500]


def shorten(text: str, *, whole: str) -> str:
    """The text without its middle where it is long: `whole` says where all of it is."""
    left_out = len(text) - _MAX_TRACE
    if left_out <= 0:
        return text
    half = _MAX_TRACE // 2
    lines = text.count("\n", half, half + left_out)
    return f"{text[:half]}\n[... {lines} lines, {left_out} characters left out; whole in {whole} ...]\n{text[-half:]}"


def _read(path: str) -> Cause:
    """What torchelastic's @record, or our worker, wrote about the exception."""
    try:
        data = json.loads(files.read_word(path, _MAX_ERROR_FILE))
        message = data["message"]
        if isinstance(message, str):
            return {"message": message}
        extra = message.get("extraInfo", {})
        raised_at = float(data.get("raised_at") or extra.get("timestamp", 0)) or None
        return {"message": str(message["message"]), "traceback": str(extra.get("py_callstack") or ""), "raised_at": raised_at}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}  # whatever is there, a worker has written it
