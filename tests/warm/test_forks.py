"""What the forks of a standing server cost: its memory is in huge pages, and single pages are the children's."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed import wait_until
from tests.warm.conftest import TORCH, left_by, start_of

if TYPE_CHECKING:
    from tests.warm.conftest import Warm

pytestmark = pytest.mark.torch

_SIZE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
_KERNEL = tuple(int(part) for part in platform.release().split(".")[:2])


def kib(pid: int | str, name: str) -> int:
    """A line of what the kernel tells of a process's memory."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


@pytest.mark.skipif(
    _KERNEL < (6, 1) or not _SIZE.exists() or int(_SIZE.read_text()) > 4 << 20,
    reason="this kernel cannot move memory to huge pages of 2 MiB on request",
)
def test_it_has_huge_pages_and_its_workers_write_to_single_ones(warm: Warm, tmp_path: Path) -> None:
    server = left_by(warm(TORCH, nproc_per_node="2"))
    wait_until("its memory to be moved", lambda: kib(server, "AnonHugePages") > kib(server, "Pss_Anon") / 2)
    before = kib(server, "Pss_Anon")
    script = tmp_path / "reads.py"
    script.write_text(
        "import torch\n"
        "lines = dict(line.split()[:2] for line in open('/proc/self/smaps_rollup').read().splitlines()[1:])\n"
        "print(lines['Pss_Anon:'], lines['Private_Dirty:'])\n"
    )

    run = warm(script, nproc_per_node="2")

    assert start_of(run) == (True, None)
    for rank in range(2):
        own_kib = int(run.stdout[rank].split()[1])
        assert own_kib < before / 3, "what it has written to, and not all that it shares with the server"
