"""Why workers ended: one cause with a class, out of exit codes, error files and what they wrote to stderr last."""

from __future__ import annotations

import json
import re
import signal
from typing import Any, Dict, List, Optional

Cause = Dict[str, Any]

TAIL_BYTES = 32 * 1024
"""How much of a worker's stderr is kept to find its traceback in."""

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

_TRACEBACK = rb"Traceback \(most recent call last\):\n"


def of_worker(*, host: str, node: int, about: Dict[str, Any], error_file: str, stderr_tail: bytes, oom_kills: int) -> Cause:
    """The cause for one worker that ended; `about` is the fork server's message, `oom_kills` counts since the start."""
    code = about["code"]
    recorded = _read(error_file)
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
        "traceback": trace,
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
    starts = [match.start() for match in re.finditer(_TRACEBACK, tail)]
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
    return message.splitlines()[0][:500] if message else message


def _read(path: str) -> Cause:
    """What torchelastic's @record, or our worker, wrote about the exception."""
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        message = data["message"]
        if isinstance(message, str):
            return {"message": message}
        extra = message.get("extraInfo", {})
        raised_at = data.get("raised_at") or float(extra.get("timestamp", 0)) or None
        return {"message": message.get("message"), "traceback": extra.get("py_callstack"), "raised_at": raised_at}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
