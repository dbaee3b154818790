"""Natural sort order: n2 before n10."""

import re
from typing import Tuple


def natural(name: str) -> Tuple[Tuple[int, int, str], ...]:
    """The sort key of a name in natural order."""
    return tuple((0, int(part), part) if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part)
