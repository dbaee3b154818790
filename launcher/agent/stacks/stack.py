"""Python stacks as faulthandler writes them, in a form that can be compared, sent and shown."""

from __future__ import annotations

import json
import re
from typing import Dict, Iterable, List, Optional, Sequence, Set, Tuple, TypedDict

_THREAD = re.compile(r"^(?:Current thread|Thread|Stack) ?.*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_CUT = re.compile(r"^(?:  \.\.\.|\.\.\.|plus \d+ frames|  <truncated .*>)$")
"""The last line of a main thread that has more than 100 frames, and the one instead of threads after the hundredth."""

MAX_FRAMES, MAX_THREADS, MAX_NAME = 40, 16, 200
MOST_BYTES = 512 * 1024
"""Of groups as JSON. An event may have twice as much, and the answer of a node to the others four times."""

_FEW_FRAMES = 8
MAX_GROUPS = 64
"""So many are worth reading; there may be as many as ranks."""

_OURS = re.compile(r"(?:distlaunch_agent|launcher/agent)/forkserver/(?:worker|child)\.py$")
"""Frames below the script's own: those of the fork server, which runs it."""

_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3|/lib64/python3|^<frozen|^<string>")
_IDLE = re.compile(r"/(?:threading|selectors|queue|concurrent/futures/thread)\.py$")


class Frame(TypedDict, total=False):
    """One call, innermost first in a stack."""

    function: str
    file: str
    line: int
    text: str
    """The line of the script, in the innermost of its own frames."""


class Stack(TypedDict, total=False):
    """What one rank does, or several that do the same."""

    ranks: List[int]
    frames: List[Frame]
    """Of the main thread; empty if the process could not answer."""

    threads: List[List[Frame]]
    """Of the other threads, of the first of these ranks."""

    state: Optional[str]
    """In the kernel's words, of a process that could not answer; else None."""


def parse(text: str) -> List[List[Frame]]:
    """The stacks of all threads in one dump; the main thread's is the last, unless it `is_crowded`."""
    threads: List[List[Frame]] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            threads.append([])
        elif (found := _FRAME.match(line)) and threads and len(threads[-1]) < MAX_FRAMES:
            number = int(found[2]) if found[2].isdigit() else 0
            threads[-1].append({"function": found[3][-MAX_NAME:], "file": found[1][-MAX_NAME:], "line": number})
    return threads


def of_rank(rank: int, text: str) -> Optional[Stack]:
    """The stack of a rank from its dump; None if that has none of the main thread."""
    threads = [_without_ours(frames) for frames in parse(text)]
    if not threads or not threads[-1] or is_crowded(text):
        return None
    others = [frames for frames in threads[:-1] if frames]
    return {"ranks": [rank], "frames": threads[-1], "threads": others[:MAX_THREADS], "state": None}


def without_answer(rank: int, state: str) -> Stack:
    """The same for a process that could not answer."""
    return {"ranks": [rank], "frames": [], "threads": [], "state": state}


def is_whole(text: str) -> bool:
    """Whether a dump may be complete: the main thread's frames come last, and end with a newline."""
    last = text.rstrip("\n").rpartition("\n")[2]
    return text.endswith("\n") and bool(_FRAME.match(last) or _CUT.match(last))


def is_crowded(text: str) -> bool:
    """Whether a complete dump lacks the main thread, as there are more than 100: the oldest ones are left out."""
    return text.endswith("\n...\n")


def is_library(frame: Frame) -> bool:
    """Whether the frame belongs to Python or an installed package."""
    return _LIBRARY.search(frame["file"]) is not None


def own_frame(frames: List[Frame]) -> int:
    """The index of the innermost frame of the user's own code, else of the outermost frame; -1 without frames."""
    return next((at for at, frame in enumerate(frames) if not is_library(frame)), len(frames) - 1)


def _without_ours(frames: List[Frame]) -> List[Frame]:
    """The frames up to the script's outermost one."""
    last = next((at for at, frame in enumerate(frames) if _OURS.search(frame["file"])), len(frames))
    kept = frames[:last]
    while last < len(frames) and kept and (kept[-1]["file"].startswith("<frozen runpy") or _is_runpy(kept[-1])):
        kept.pop()
    return kept


def _is_runpy(frame: Frame) -> bool:
    return frame["file"].endswith("/runpy.py")


def is_idle(frames: List[Frame]) -> bool:
    """Whether a thread only waits for work."""
    return not frames or _IDLE.search(frames[0]["file"]) is not None


def _key(stack: Stack) -> Tuple[object, ...]:
    frames = tuple((frame["function"], frame["file"], frame["line"]) for frame in stack["frames"])
    return (*frames, stack["state"])


def grouped(stacks: Iterable[Stack]) -> List[Stack]:
    """Stacks that are the same as one, the largest group first."""
    groups: Dict[Tuple[object, ...], Stack] = {}
    ranks: Dict[Tuple[object, ...], Set[int]] = {}
    for stack in stacks:
        key = _key(stack)
        groups.setdefault(key, stack)
        ranks.setdefault(key, set()).update(stack["ranks"])
    found: List[Stack] = [{**stack, "ranks": sorted(ranks[key])} for key, stack in groups.items()]
    return sorted(found, key=lambda group: (-len(group["ranks"]), group["ranks"]))


def fitting(groups: Sequence[Stack], most_bytes: int) -> List[Stack]:
    """All groups; if they are too large as JSON, without other threads, and then with the frames around the own one."""
    found = list(groups)
    if len(json.dumps(found)) > most_bytes:
        found = [{**group, "threads": []} for group in groups]
    if len(json.dumps(found)) > most_bytes:
        found = [{**group, "frames": _around_own(group["frames"])} for group in found]
    return found


def _around_own(frames: List[Frame]) -> List[Frame]:
    end = own_frame(frames) + 1
    return frames[max(0, end - _FEW_FRAMES) : end]
