"""Many hosts, nodes or ranks in few words: `n[0-511,600]`, as Slurm, pdsh and clush write it."""

from __future__ import annotations

import itertools
import re
from typing import Collection, Dict, Iterable, List, Tuple

from .natural_order import natural

_FEW = 3
"""So few names are listed one by one."""

_PIECES = 16
"""So many names or ranges are printed; names without any order would fill the screen."""

_FOLDABLE = re.compile(r"[\w.-]+\Z", re.ASCII)
"""Anything else in a name has a meaning in such a list, or is no host's name, as an IPv6 address."""

_NUMBER = re.compile(r"(\d+)", re.ASCII)
_AT_END = re.compile(r"(\d+)\Z", re.ASCII)


def folded(names: Iterable[object], most: int = _PIECES, *, few: int = _FEW) -> str:
    """`n1, n2`, or of many `n[0-511,600]`; of many that do not fold, the first ones: `a, c7, x and 61 more`."""
    every = list(dict.fromkeys(map(str, names)))
    if len(every) <= few:
        return ", ".join(every)
    return _joined(_groups(sorted(every, key=natural)), max(most, 1))


def in_order(names: Iterable[str]) -> str:
    """All of them, for Slurm to read: successive names are folded, none is moved. Slurm takes no text after numbers."""
    parts = (_AT_END.split(name, maxsplit=1) for name in names)
    groups = itertools.groupby(parts, lambda each: (each[0], len(each) > 1))
    return ",".join(
        _text(before, "", _ranges([each[1] for each in alike if numbered])) for (before, numbered), alike in groups
    )


def counted(numbers: Collection[int], what: str) -> str:
    """`rank 3`, `ranks 0, 2`, or of many `ranks 0-511,600`."""
    return f"{what}{'s' * (len(numbers) != 1)} {folded(sorted(numbers))}"


def ranges(numbers: Iterable[int]) -> str:
    """`0-2,4`."""
    return ",".join(_written(low, high) for low, high in _ranges([str(number) for number in sorted(numbers)]))


_Group = Tuple[str, str, List[Tuple[str, str]]]
"""Prefix, suffix, and the first and the last number of each range between them."""


def _groups(names: List[str]) -> List[_Group]:
    """Names of one form together: the number that varies in the fewest ranges is folded."""
    forms: Dict[Tuple[str, ...], List[List[str]]] = {}
    found: List[_Group] = []
    for name in names:
        parts = _NUMBER.split(name) if _FOLDABLE.match(name) else [name]
        forms.setdefault(tuple(parts[::2]) if len(parts) > 1 else (name, ""), []).append(parts)
    for alike in forms.values():
        found += _folded_best(alike)
    return found


def _folded_best(alike: List[List[str]]) -> List[_Group]:
    """Fold names that differ in their numbers only."""
    if len(alike[0]) == 1:
        return [(alike[0][0], "", [])]
    each = (_folded_at(place, alike) for place in range(len(alike[0]) - 2, 0, -2))
    return min(each, key=lambda groups: sum(len(ranges) for _, _, ranges in groups))


def _folded_at(place: int, alike: List[List[str]]) -> List[_Group]:
    """Fold the number at this place."""
    groups: Dict[Tuple[str, str], List[str]] = {}
    for parts in alike:
        groups.setdefault(("".join(parts[:place]), "".join(parts[place + 1 :])), []).append(parts[place])
    return [(before, after, _ranges(numbers)) for (before, after), numbers in groups.items()]


def _ranges(numbers: List[str]) -> List[Tuple[str, str]]:
    """Ranges of consecutive numbers, which keep the width of their first one: 07 and 08, but not 07 and 8."""
    found: List[Tuple[str, str]] = []
    for number in numbers:
        if found and number == str(int(found[-1][1]) + 1).zfill(len(found[-1][0])):
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def _written(low: str, high: str) -> str:
    return low if low == high else f"{low}-{high}"


def _joined(groups: List[_Group], room: int) -> str:
    """As many pieces as there is room for, and how many names are in the others."""
    told: List[str] = []
    left = 0
    for before, after, numbers in groups:
        if room > 0:
            told.append(_text(before, after, numbers[:room]))
            left += sum(map(_size, numbers[room:]))
        else:
            left += sum(map(_size, numbers)) or 1
        room = max(0, room - max(1, len(numbers)))
    return ", ".join(told) + (f" and {left} more" if left else "")


def _text(before: str, after: str, numbers: List[Tuple[str, str]]) -> str:
    inner = ",".join(_written(low, high) for low, high in numbers)
    is_one = sum(map(_size, numbers)) <= 1
    return f"{before}{inner}{after}" if is_one or not before + after else f"{before}[{inner}]{after}"


def _size(numbers: Tuple[str, str]) -> int:
    return int(numbers[1]) - int(numbers[0]) + 1
