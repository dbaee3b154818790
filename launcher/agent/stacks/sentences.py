"""Stacks in words: `3 ranks wait in all_reduce (train.py:88); rank 2 (node1) is in open() (data.py:41)`."""

from __future__ import annotations

import os
import re
from typing import Callable, List, Sequence

from .stack import Frame, Stack, own_frame

_COLLECTIVES = "torch/distributed/distributed_c10d.py"
_CALL = re.compile(r"([A-Za-z_][\w.]*)\(")
_WRAPPERS = ("wrapper", "_call_impl", "_wrapped_call_impl", "inner", "decorate_context", "_fn")
_NAMED = 8
MAX_SAID = 16
"""So many groups are named in one line."""

_MAX_TEXT = 60


def collective(frames: Sequence[Frame]) -> str:
    """The collective in which these frames wait, as `all_reduce`; empty if they are elsewhere."""
    names = (frame["function"] for frame in reversed(frames) if frame["file"].endswith(_COLLECTIVES))
    return next((name for name in names if name not in _WRAPPERS), "")


def collective_of(traceback: str) -> str:
    """The collective that an exception left, from its traceback; empty if it is another one."""
    names = re.findall(r'distributed_c10d\.py", line \d+, in (\w+)', traceback)
    return next((name for name in names if name not in _WRAPPERS), "")


def place(frames: Sequence[Frame]) -> str:
    """Where these frames are in the user's own code: `train.py:88`."""
    at = own_frame(list(frames))
    return f"{os.path.basename(frames[at]['file'])}:{frames[at]['line']}" if at >= 0 else "?"


def call(frames: Sequence[Frame]) -> str:
    """What that line calls, as `open()` or `all_reduce`; the function that has the line, if it is not clear."""
    at = own_frame(list(frames))
    called = [frame["function"] for frame in reversed(frames[:at]) if frame["function"] not in _WRAPPERS]
    if called:
        return called[0]
    names = _CALL.findall(frames[at].get("text", ""))
    return f"{names[0]}()" if len(names) == 1 else frames[at]["function"]


def _quoted(frames: Sequence[Frame]) -> str:
    """The line's text, if it has several calls, and one of them is Python's own: it is not clear which."""
    at = own_frame(list(frames))
    text = frames[at].get("text", "") if at == 0 else ""
    return f": {text[:_MAX_TEXT]}" if len(_CALL.findall(text)) > 1 else ""


def doing(stack: Stack, *, several: bool = False) -> str:
    """What the ranks of this stack do, after their names."""
    frames = stack["frames"]
    if not frames:
        return f"{'do' if several else 'does'} not answer: {stack['state']}"
    if name := collective(frames):
        return f"wait{'' if several else 's'} in {name} ({place(frames)})"
    return f"{'are' if several else 'is'} in {call(frames)} ({place(frames)}{_quoted(frames)})"


def named(ranks: Sequence[int], host: Callable[[int], str] = lambda _: "") -> str:
    """`rank 3 (node1)`, or `509 ranks`; of a few ranks their numbers."""
    if len(ranks) == 1:
        where = host(ranks[0])
        return f"rank {ranks[0]}" + (f" ({where})" if where else "")
    return f"ranks {', '.join(map(str, ranks))}" if len(ranks) <= _NAMED else f"{len(ranks)} ranks"


def summary(groups: List[Stack], host: Callable[[int], str] = lambda _: "") -> str:
    """The first groups in one line, and how many ranks are elsewhere."""
    said = [f"{named(each['ranks'], host)} {doing(each, several=len(each['ranks']) > 1)}" for each in groups[:MAX_SAID]]
    return "; ".join([*said, *elsewhere([each["ranks"] for each in groups[MAX_SAID:]])])


def elsewhere(groups: Sequence[Sequence[int]]) -> List[str]:
    """How many ranks these groups have, if there are any: `and 448 ranks in 448 other places`."""
    ranks = sum(map(len, groups))
    places = f"{len(groups)} other place{'s' * (len(groups) > 1)}"
    return [f"and {ranks} rank{'s' * (ranks > 1)} in {places}"] if groups else []
