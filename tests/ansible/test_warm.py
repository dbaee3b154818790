"""Over SSH, the second run starts from what the first one has left standing on its hosts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.ansible.conftest import Rack

pytestmark = [pytest.mark.ssh, pytest.mark.torch]

SUM = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("sum", total.item(), os.getcwd() == os.environ["PWD"], flush=True)
dist.destroy_process_group()
"""


def told(rack: Rack, name: str) -> list[dict[str, Any]]:
    """What the nodes of a run say about servers that stand."""
    streams = (rack.remote / "runs" / rack.id_of(name)).glob("nodes/*/stream")
    events = [json.loads(line) for path in streams for line in path.read_text().splitlines() if line[:1] == "{"]
    return [event for event in events if event["event"] in ("warm_start", "warm_left")]


def test_hosts_keep_what_they_have_imported_for_the_next_run(rack: Rack) -> None:
    rack.write("sum.py", SUM)
    seen = []
    try:
        for name in ("cold", "warm"):
            done = rack("--nodes", "2", "--warm", "2m", "--name", name, "sum.py")
            assert done.exit_code == 0, done
            assert "sum 2.0" in done.stdout
            seen.append(told(rack, name))
    finally:
        left = [event["pid"] for events in seen for event in events if "pid" in event]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    assert [event["used"] for event in seen[0] if "used" in event] == [False, False], seen
    assert len(left) == 2
    assert [(event["used"], event.get("reason")) for event in seen[1] if "used" in event] == [(True, None)] * 2, seen
