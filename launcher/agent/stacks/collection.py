"""Collects what the workers of one node do: their dumps, py-spy's for other interpreters, or the kernel's words."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Dict, List, Sequence, Set

from ..named_tuple import NamedTuple
from ..system.scratch import within
from . import dump, kernel, spied
from .stack import MOST_BYTES, Stack, fitting, grouped, is_crowded, is_whole, of_rank, own_frame, without_answer

LIMIT_S = 1.5
"""How long workers may take to write their stacks; a node that is short of CPU takes a while."""

_SETTLED_S, _LOOK_S = 0.05, 0.01
_SOURCE_S = 0.5
_MAX_TEXT = 120
_MOST_THREADS = 100
"""faulthandler writes no more, the newest ones; the main thread is the oldest."""


class Asked(NamedTuple):
    """A worker that was asked for its stacks."""

    rank: int
    pid: int
    answers: bool
    """Whether it has a handler."""

    path: str
    """Its file."""

    size: int
    """The size of that before it was asked."""


def about_to_ask(workers: Dict[int, int], scratch: str) -> List[Asked]:
    """What is known of the workers, pids by rank, before the fork server asks them."""
    found = []
    for rank, pid in sorted(workers.items()):
        answers, path, size = dump.answers(pid, scratch), dump.path_of(scratch, pid), 0
        with contextlib.suppress(OSError):
            size = os.path.getsize(path) if answers else 0
        found.append(Asked(rank, pid, answers, path, size))
    return found


def collect(asked: Sequence[Asked]) -> List[Stack]:
    """What they do, grouped. Waits up to `LIMIT_S`, and for py-spy up to `spied.LIMIT_S` more."""
    texts = _dumps(asked)
    known = [(each, of_rank(each.rank, texts.get(each.pid, ""))) for each in asked]
    stacks = [stack for _, stack in known if stack]
    crowded = {each.rank for each in asked if is_crowded(texts.get(each.pid, ""))}
    others = [(each.rank, each.pid) for each in asked if not each.answers or each.rank in crowded]
    silent = [each for each, stack in known if not stack and each.answers and each.rank not in crowded]
    stacks += [without_answer(each.rank, kernel.words(each.pid)) for each in silent]
    stacks += [_explained(stack, crowded) for stack in (spied.of(others) if others else [])]
    groups = grouped(stacks)
    within(_SOURCE_S, lambda: _quote(groups), None)
    return fitting(groups, MOST_BYTES)


def _explained(stack: Stack, crowded: Set[int]) -> Stack:
    """The same, and why faulthandler's dump has not told where that rank is."""
    if stack["frames"] or not crowded.intersection(stack["ranks"]):
        return stack
    return {**stack, "state": f"{stack['state']}; it has more than {_MOST_THREADS} threads"}


def _dumps(asked: Sequence[Asked]) -> Dict[int, str]:
    """The dumps by pid, as far as they are complete: a file is, if it has ended well and does not grow."""
    limit = time.monotonic() + LIMIT_S
    waiting = {each.pid: each for each in asked if each.answers}
    texts: Dict[int, str] = {}
    since: Dict[int, float] = {}
    while waiting and time.monotonic() < limit:
        now = time.monotonic()
        for pid, each in list(waiting.items()):
            text = _read(each.path, each.size)
            if text != texts.get(pid):
                texts[pid], since[pid] = text, now
            elif is_whole(text) and now - since[pid] >= _SETTLED_S:
                del waiting[pid]
        time.sleep(_LOOK_S)
    for each in asked:
        if each.pid in texts and each.pid not in waiting:
            with contextlib.suppress(OSError):
                os.truncate(each.path, 0)
    return {pid: text for pid, text in texts.items() if is_whole(text)}


def _read(path: str, start: int) -> str:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(start)
        return file.read().decode("ascii", "replace")
    return ""


def _quote(groups: Sequence[Stack]) -> None:
    """Add the text of the line that is executed in the user's own code; its file may be on a disk that hangs."""
    for group in groups:
        at = own_frame(group["frames"])
        frame = group["frames"][at] if at >= 0 else None
        if frame is None or not frame["file"].startswith("/"):
            continue
        with contextlib.suppress(OSError), open(frame["file"], encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if number == frame["line"]:
                    frame["text"] = line.strip()[:_MAX_TEXT]
                    break
