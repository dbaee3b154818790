"""What a live line shows while hosts are asked, and while files are sent to them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from launcher import output
from launcher.backends.ansible import playbook

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    Shown = list[tuple[str, tuple[int, int] | None]]


@pytest.fixture
def shown() -> Iterator[Shown]:
    """What was waited for, one after the other."""
    found: Shown = []
    output.progress_by(lambda text, part: found.append((text, part)))
    yield found
    output.progress_by(None)


def test_hosts_and_bytes_are_counted(shown: Shown, tmp_path: Path) -> None:
    running = playbook.Playbook(tmp_path, "start.yml")
    said = (
        {"step": "files", "hosts": ["n1", "n2"]},
        {"host": "n1", "sent": 18_000_000, "bytes": 42_000_000},
        {"host": "n2", "sent": 4_000_000, "bytes": 42_000_000},
        {"step": "files", "host": "n1", "answer": {"problem": ""}},
        {"host": "n2", "sent": 41_000_000, "bytes": 42_000_000},
        {"step": "files", "host": "n2", "answer": {"problem": ""}},
    )
    (tmp_path / "report").write_text("".join(json.dumps(line) + "\n" for line in said))

    running.follow()

    assert shown == [
        ("files: 0 of 2 hosts", (0, 2)),
        ("sending 18 of 42 MB to n1", (18_000_000, 42_000_000)),
        ("sending 22 of 84 MB to 2 hosts", (22_000_000, 84_000_000)),
        ("files: 1 of 2 hosts", (1, 2)),
        ("sending 41 of 42 MB to n2", (41_000_000, 42_000_000)),
        ("files: 2 of 2 hosts", (2, 2)),
    ]
