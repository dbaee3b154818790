"""Why workers ended: one cause with a class, out of exit codes, error files and what they wrote to stderr last."""

from __future__ import annotations

import json
import re
import signal
from typing import Any, Dict, List, Optional

from .tail import TRACEBACK

Cause = Dict[str, Any]

_MAX_TRACE = 16 * 1024
"""A longer traceback is told without its middle."""

_MAX_ERROR_FILE = 64 << 20

# Compiled on first use: most agents end without a failure.
_OUT_OF_MEMORY = r"OutOfMemoryError|\bMemoryError\b|Cannot allocate memory|can't allocate memory|bad_alloc"
_PEER_LOST = (
    r"Connection closed by peer|Connection reset by peer|Broken pipe|ncclRemoteError|Remote peer|remote process exited"
    r"|failed to recv, got 0 bytes|Connection was likely closed|Socket is not connected|Connection refused"
)
_FABRIC = (
    r"DistNetworkError|DistStoreError|DistBackendError|ncclSystemError|ncclInternalError|NCCL error|gloo|Gloo"
    r"|Timed out waiting|No route to host|Network is unreachable|Name or service not known|EADDRINUSE"
)
_RANK_PREFIX = rb"(?m)^\[rank\d+\]: "
"""torch's excepthook puts it before each line once a process group exists."""


def of_worker(*, host: str, node: int, about: Dict[str, Any], error_file: str, stderr_tail: bytes, oom_kills: int) -> Cause:
    """The cause for one worker that ended; `about` is the fork server's message, `oom_kills` counts since the start."""
    code = about["code"]
    recorded = _read(error_file)
    whole = f"the log of rank {about['rank']}" + (f" and {error_file}" if recorded else "")
    trace = recorded.get("traceback") or last_traceback(stderr_tail)
    sig = signal.Signals(-code).name if code < 0 and -code in signal.valid_signals() and -code < 32 else None
    if code < 0 and sig is None:
        sig = f"signal {-code}"
    message = recorded.get("message") or (trace.rstrip().rpartition("\n")[2] if trace and not sig else "")
    if not message:
        message = f"killed by {sig}" if sig else f"exited with code {code}"
    text = f"{message}\n{trace or ''}"
    return {
        "class": classify(text, sig, oom_kills),
        "message": _explain(message, sig, oom_kills),
        "host": host,
        "node": node,
        "rank": about["rank"],
        "local_rank": about["local_rank"],
        "exit_code": code if code >= 0 else None,
        "signal": sig,
        "traceback": trace and shorten(trace, whole=whole),
        "time": recorded.get("raised_at") or about["time"],
        "secondary": bool(re.search(_PEER_LOST, text)) and not re.search(_OUT_OF_MEMORY, text),
    }


def of_node(*, host: str, node: int, message: str, kind: str = "node", time: float, secondary: bool = False) -> Cause:
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


def first(causes: List[Cause]) -> Cause:
    """The earliest that is not the consequence of another, else the earliest."""
    return min(causes, key=lambda cause: (cause["secondary"], cause["time"]))


def classify(text: str, sig: Optional[str], oom_kills: int) -> str:
    """The class by what was raised, or by the signal that ended the worker."""
    if sig == "SIGKILL":
        return "out_of_memory" if oom_kills else "node"
    if re.search(_OUT_OF_MEMORY, text):
        return "out_of_memory"
    if sig == "SIGBUS":
        return "node"
    return "fabric" if re.search(_FABRIC, text) or re.search(_PEER_LOST, text) else "user_code"


def last_traceback(tail: bytes) -> Optional[str]:
    """The last Python traceback in the end of a worker's stderr, with the chain of exceptions that led to it."""
    tail = re.sub(_RANK_PREFIX, b"", tail)
    starts = [match.start() for match in re.finditer(re.escape(TRACEBACK), tail)]
    if not starts:
        return None
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


def _explain(message: str, sig: Optional[str], oom_kills: int) -> str:
    if sig == "SIGKILL":
        who = "the kernel's out-of-memory killer" if oom_kills else "somebody else, not distlaunch"
        return f"killed by SIGKILL, sent by {who}"
    return one_line(message)


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
        with open(path, encoding="utf-8") as file:
            data = json.loads(file.read(_MAX_ERROR_FILE))
        message = data["message"]
        if isinstance(message, str):
            return {"message": message}
        extra = message.get("extraInfo", {})
        raised_at = float(data.get("raised_at") or extra.get("timestamp", 0)) or None
        return {"message": str(message["message"]), "traceback": str(extra.get("py_callstack") or ""), "raised_at": raised_at}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}  # whatever is there, a worker has written it
