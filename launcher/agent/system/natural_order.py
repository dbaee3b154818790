"""The order in which people count: n2 before n10."""

import re
from typing import Tuple


def natural(name: str) -> Tuple[Tuple[int, int, str], ...]:
    """Sort key by which n2 comes before n10."""
    return tuple((0, int(part), part) if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part)
