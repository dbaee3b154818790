"""The stacks of a run as text: one line for each group of ranks, then its frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.agent.stacks import sentences, stack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from launcher.results.stacks import StackFrame, StackGroup, Stacks

_SHOWN = 12
"""Frames of a stack, unless all are asked for."""


def lines(found: Stacks, *, whole: bool, every: bool = False) -> list[str]:
    """The first groups, or every one; `whole`: with all frames, and the other threads."""
    shown: list[str] = []
    most = len(found["groups"]) if every else stack.MAX_GROUPS
    for group in found["groups"][:most]:
        shown += [title(group), *frames(group["frames"], whole=whole)]
        for number, calls in enumerate(group["threads"] if whole else (), 1):
            shown += [f"  thread {number}", *frames(calls, whole=True)]
        others = sum(not stack.is_idle(list(calls)) for calls in group["threads"])  # type: ignore[arg-type]
        if others and not whole:
            shown.append(f"  {others} other thread{'s' * (others > 1)}: --all")
    shown += sentences.elsewhere([group["ranks"] for group in found["groups"][most:]])
    shown += [f"node {each['node']} ({each['host']}): {each['why']}" for each in found["silent"]]
    return shown or ["no rank runs now"]


def title(group: StackGroup) -> str:
    """Which ranks do what."""
    hosts = dict.fromkeys(group["hosts"])
    return f"{sentences.named(group['ranks'], lambda _: next(iter(hosts), ''))} {group['summary']}"


def frames(calls: Sequence[StackFrame], *, whole: bool) -> Iterator[str]:
    """A line for each call; without `whole`, the innermost ones."""
    own = stack.own_frame(list(calls))  # type: ignore[arg-type]
    for at, frame in enumerate(calls if whole else calls[:_SHOWN]):
        text = f"  {frame['text']}" if at == own and frame.get("text") else ""
        yield f"    {frame['function']} ({frame['file']}:{frame['line']}){text}"
    if len(calls) > _SHOWN and not whole:
        yield f"    ... {len(calls) - _SHOWN} more: --all"
