"""Parses option texts as sbatch does: job arrays and further options."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from launcher.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

_RESERVED = (
    "job-name",
    "comment",
    "nodes",
    "ntasks-per-node",
    "output",
    "open-mode",
    "chdir",
    "time",
    "signal",
    "array",
)


def indices(array: str) -> tuple[int, ...]:
    """The indices that sbatch's `--array` stands for: `0-9%2`, `1,3,5`, `0-15:4`."""
    found: set[int] = set()
    for part in array.partition("%")[0].split(","):
        match = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", part)
        if match is None or (match[2] and int(match[2]) < int(match[1])) or match[3] == "0":
            raise SpecError(
                f"array {array!r}: {part!r} is not a range of indices", hint="write 0-9, 0-9%2, 1,3,5 or 0-15:4"
            )
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1)))
    if not re.fullmatch(r"[^%]*(%[1-9]\d*)?", array):
        raise SpecError(f"array {array!r}: after % comes how many may run at once", hint="write 0-9%2")
    return tuple(sorted(found))


def pairs(texts: Sequence[str]) -> dict[str, str | None]:
    """The options of `--sbatch KEY=VALUE`; None for a flag."""
    found: dict[str, str | None] = {}
    for pair in texts:
        key, given, value = pair.partition("=")
        key = key.lstrip("-")
        if not re.fullmatch(r"[a-z][a-z0-9-]*", key):
            raise SpecError(f"sbatch {pair!r}: {key!r} is not a long option of sbatch", hint="write --sbatch key=value")
        if key in _RESERVED:
            raise SpecError(f"sbatch {key}: distlaunch sets that itself", hint="see distlaunch slurm --help")
        if key == "cpus-per-task":  # from 22.05 on, srun does not take it from the job
            raise SpecError(f"sbatch {key} does not reach the step", hint="--cpus-per-task does")
        found[key] = value if given else None
    return found
