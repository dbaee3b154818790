"""Which tasks a job array has, in sbatch's own notation."""

from __future__ import annotations

import pytest

from launcher.backends.slurm.words import indices
from launcher.errors import SpecError


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0-3", (0, 1, 2, 3)),
        ("5", (5,)),
        ("1,3,7-8", (1, 3, 7, 8)),
        ("0-9:4", (0, 4, 8)),
        ("0-1%1", (0, 1)),
        ("2,1,2", (1, 2)),
    ],
)
def test_indices_are_read_as_sbatch_reads_them(text: str, found: tuple[int, ...]) -> None:
    assert indices(text) == found


@pytest.mark.parametrize("text", ["3-1", "x", "0-9:0", "0-9%", "0-9%0", "-1", "1,,2", "0-9%2%3", ""])
def test_other_arrays_are_refused(text: str) -> None:
    with pytest.raises(SpecError):
        indices(text)
