"""Whether a silent run hangs, and who is odd: by the stacks of all ranks, taken twice, and what they have used since.

Silence and an idle CPU alone are not evidence, and neither is a busy one: a wait for a GPU or for NCCL spins. So:

- A rank whose CPU is busy, or that reads or writes, outside of a collective, and whose stack changes: the run computes.
- A rank that reads or writes much in a collective: it takes part in one after the other.
- All ranks are idle, or wait in a collective with the same stack: it hangs. The odd ranks are those that are not in the
  collective of most, or without one those that are not where most are.
- Most ranks of a role are busy in the same line, and a few are idle: these are odd, and the others wait for them in a
  GPU. Of programs whose lines are unknown, the busy ranks may as well compute for a manager that waits for them: the
  few are odd only if the kernel holds them.
- All else may be a computation in one long call: the run does not count as hung.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ..named_tuple import NamedTuple
from . import kernel, sentences
from .stack import MAX_GROUPS, MOST_BYTES, Stack, fitting, grouped

_BUSY = 0.05
"""Share of a CPU above which a rank is busy; a rank that waits has threads that look around from time to time."""

_BUSY_BYTES = 64 * 1024
"""A rank that has read and written more than this is busy, too."""

_MOVING = 1 << 20
"""A rank that reads and writes more than this in a second takes part in collectives; what reports on a run is less."""


class Sample(NamedTuple):
    """What all ranks did at one time."""

    groups: List[Stack]
    used: Dict[int, Tuple[float, int]]
    """CPU seconds, and bytes read and written, by rank that runs, with the processes below it."""

    hosts: Dict[int, str]
    """By rank."""

    roles: Dict[int, str]
    """By rank. Roles run different programs, so ranks are odd only among those of their role."""


class Hang(NamedTuple):
    """A run that makes no progress."""

    groups: List[Stack]
    """As many as are worth reading, with those of the odd ranks."""

    odd: List[int]
    """The ranks that the others wait for, as far as that can be told."""

    message: str


def sample(answers: Sequence[Dict[str, Any]]) -> Sample:
    """What the nodes have answered, as one; JSON has texts as keys."""
    used = {int(rank): tuple(how) for each in answers for rank, how in each["used"].items()}
    hosts = {rank: each["host"] for each in answers for group in each["groups"] for rank in group["ranks"]}
    roles = {rank: each["role"] for each in answers for group in each["groups"] for rank in group["ranks"]}
    return Sample(grouped(group for each in answers for group in each["groups"]), used, hosts, roles)


def judge(first: Sample, second: Sample, between_s: float) -> Optional[Hang]:
    """Whether the run hung all that time; None if it may have computed."""
    before, after = _by_rank(first), _by_rank(second)
    if not after or not second.used or set(before) != set(after):
        return None  # ranks have started or ended; or all have ended, and the next round has not begun
    if any(_is_busy(first, second, rank, between_s) for rank in {*second.used} - {*after}):
        return None  # it is not known where these ranks are
    waiting, idle, busy = [], [], []
    for rank, stack in after.items():
        same = _place(before[rank]) == _place(stack)
        if sentences.collective(stack["frames"]) and same:
            if _bytes_of(first, second, rank) > _MOVING * between_s:
                return None
            waiting.append(rank)
        elif not _is_busy(first, second, rank, between_s):
            idle.append(rank)
        elif same:
            busy.append(rank)
        else:
            return None
    by_role = _by_role(second.roles, (waiting, idle, busy))
    held = {rank for rank in idle if _is_held(before[rank]) and _is_held(after[rank])}
    if busy and (waiting or any(_may_compute(ours, others, after, held) for _, others, ours in by_role)):
        return None
    odd = sorted(rank for stuck, others, ours in by_role for rank in _odd(stuck, others, ours, after))
    shown = {id(group) for group in _odd_first(second.groups, odd)[:MAX_GROUPS]}
    groups = fitting([group for group in second.groups if id(group) in shown], MOST_BYTES)
    return Hang(groups, odd, message(second, odd))


def message(seen: Sample, odd: Sequence[int]) -> str:
    """Who is odd, and where all are."""
    return sentences.summary(_odd_first(seen.groups, odd), lambda rank: seen.hosts.get(rank, ""))


def missing(seen: Sample, ranks: Sequence[int], called: str, which: str = "") -> str:
    """What ranks do that have not come to a collective: `rank 37 (n5) never called all_reduce: it is in open() (...)`.

    Empty if nothing is known of them. `which`: which of all calls, if that is known; then it is certain.
    """
    wanted, parts = {*ranks}, []
    groups = [(group, [rank for rank in group["ranks"] if rank in wanted]) for group in seen.groups]
    groups = [(group, late) for group, late in groups if late]
    for group, late in groups[: sentences.MAX_SAID]:
        several = len(late) > 1
        who = sentences.named(late, lambda rank: seen.hosts.get(rank, ""))
        inside = sentences.collective(group["frames"])
        never = f" never called {called}{which}:" if called and (which or inside != called) else ":"
        parts.append(f"{who}{never} {'they' if several else 'it'} {sentences.doing(group, several=several)}")
    return "; ".join([*parts, *sentences.elsewhere([late for _, late in groups[sentences.MAX_SAID :]])])


def _odd_first(groups: List[Stack], odd: Sequence[int]) -> List[Stack]:
    first = {*odd}
    return sorted(groups, key=lambda group: group["ranks"][0] not in first)


def _by_rank(seen: Sample) -> Dict[int, Stack]:
    return {rank: group for group in seen.groups for rank in group["ranks"]}


def _place(stack: Stack) -> Tuple[object, ...]:
    frames = tuple((frame["file"], frame["function"], frame["line"]) for frame in stack["frames"])
    return frames or ((stack["state"] or "").partition(",")[0],)


def _is_busy(first: Sample, second: Sample, rank: int, between_s: float) -> bool:
    cpu, before = (sample.used.get(rank, (0.0, 0))[0] for sample in (second, first))
    return cpu - before > _BUSY * between_s or _bytes_of(first, second, rank) > _BUSY_BYTES


def _bytes_of(first: Sample, second: Sample, rank: int) -> int:
    """What it has read and written between the samples."""
    return second.used.get(rank, (0.0, 0))[1] - first.used.get(rank, (0.0, 0))[1]


def _by_role(roles: Mapping[int, str], kinds: Sequence[List[int]]) -> List[List[List[int]]]:
    """The waiting, the idle and the busy ranks of each role that has any."""
    every = [[[rank for rank in ranks if roles.get(rank) == role] for ranks in kinds] for role in set(roles.values())]
    return [found for found in every if any(found)]


def _is_held(stack: Stack) -> bool:
    return not stack["frames"] and kernel.is_held(stack["state"] or "")


def _may_compute(busy: List[int], idle: List[int], after: Dict[int, Stack], held: Set[int]) -> bool:
    """Whether the busy ranks of a role may compute; else they wait for the few of that role that are idle."""
    if not busy:
        return False
    if not 0 < len(idle) < len(busy) or len({_place(after[rank]) for rank in busy}) > 1:
        return True
    return not after[busy[0]]["frames"] and not held.issuperset(idle)


def _odd(waiting: List[int], idle: List[int], busy: List[int], after: Dict[int, Stack]) -> List[int]:
    """The ranks that the others wait for; none if all are in the same place."""
    if busy:
        return idle
    if waiting and idle:
        return idle
    places: Dict[Tuple[object, ...], List[int]] = {}
    for rank in (*waiting, *idle):
        name = sentences.collective(after[rank]["frames"])
        places.setdefault((name, sentences.place(after[rank]["frames"])), []).append(rank)
    most = max(places.values(), key=len)
    others = sorted(rank for ranks in places.values() if ranks is not most for rank in ranks)
    return others if len(others) < len(most) else []
