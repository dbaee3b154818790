"""Stacks of workers that were not forked, as py-spy reads them: if the user has it, and the kernel allows that."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import time
from typing import Any, Dict, List, Sequence, Tuple, Union

from . import kernel
from .stack import MAX_FRAMES, MAX_NAME, MAX_THREADS, Frame, Stack, without_answer

LIMIT_S = 3.0
"""How long all of them may take together."""

_JOINS_S = 0.5
_NO_PYTHON = "Failed to find python version from target process"
_REFUSED = re.compile("permission denied|operation not permitted", re.IGNORECASE)
_MAX_WHY = 100

Spied = Union[Stack, str]
"""A stack, or why there is none; empty if the process is no Python."""


def of(workers: Sequence[Tuple[int, int]]) -> List[Stack]:
    """What these workers, by rank and pid, do: py-spy's stacks, or the kernel's words and why py-spy has none."""
    spy = shutil.which("py-spy")
    found: Dict[int, Spied] = {rank: "" for rank, _ in workers}
    asked = [(rank, pid) for rank, pid in workers if spy and kernel.runs(pid)]
    threads = [
        threading.Thread(target=_spy, args=(spy, rank, pid, found), daemon=True, name="py-spy") for rank, pid in asked
    ]
    for thread in threads:
        thread.start()
    limit = time.monotonic() + LIMIT_S + _JOINS_S
    for thread in threads:
        thread.join(max(0.0, limit - time.monotonic()))
    return [_stack(rank, pid, found[rank]) for rank, pid in workers]


def _stack(rank: int, pid: int, found: Spied) -> Stack:
    if isinstance(found, str):
        return without_answer(rank, kernel.words(pid) + (f"; py-spy: {found}" if found else ""))
    return found


def _spy(spy: str, rank: int, pid: int, found: Dict[int, Spied]) -> None:
    found[rank] = f"no answer within {LIMIT_S:.0f} s"
    argv = [spy, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False)
        found[rank] = _parsed(rank, pid, done.stdout) if done.returncode == 0 else _why(done)
    except subprocess.TimeoutExpired:
        pass
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        found[rank] = f"an answer that is none ({type(error).__name__})"


def _why(done: subprocess.CompletedProcess[bytes]) -> str:
    said = done.stderr.decode(errors="replace")
    if _NO_PYTHON in said:
        return ""
    if _REFUSED.search(said):
        return "the kernel does not let it read the process (ptrace)"
    causes = [line.partition(": ")[2] for line in said.splitlines() if line.strip()[:2] in ("0:", "1:")]
    first = causes[0] if causes else said.strip().partition("\n")[0]
    how = f"exit code {done.returncode}" if done.returncode > 0 else f"ended by signal {-done.returncode}"
    return (first or how)[:_MAX_WHY]


def _parsed(rank: int, pid: int, text: bytes) -> Spied:
    """The stack in `py-spy dump --json`; the thread with the pid's number is the main one."""
    threads: List[Dict[str, Any]] = json.loads(text)
    stacks = [_frames(thread) for thread in sorted(threads, key=lambda thread: thread["os_thread_id"] != pid)]
    if not stacks or not stacks[0]:
        return "no stack of the main thread"
    others = [each for each in stacks[1:] if each]
    return {"ranks": [rank], "frames": stacks[0], "threads": others[:MAX_THREADS], "state": None}


def _frames(thread: Dict[str, Any]) -> List[Frame]:
    return [
        {"function": str(at["name"])[-MAX_NAME:], "file": str(at["filename"])[-MAX_NAME:], "line": int(at["line"])}
        for at in thread["frames"][:MAX_FRAMES]
    ]
