"""Runs whose ranks are all in places of their own, as programs that are no Python: the kernel names their files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.hangs.test_groups import WATCHED, events
from tests.hangs.test_stacks import stacks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.command import Cli

RANKS = 70
READS = """\
#!/bin/sh
exec 3<>"gate$RANK"
echo ready
[ "$RANK:$1" != 69:computes ] || exec python3 -c '
import time
while time.process_time() < 10: pass
for rank in range(69): open(f"gate{rank}", "w").write("\\n")'
read line <&3
"""


@pytest.fixture
def script(distlaunch: Cli) -> Path:
    """Each rank reads from a pipe of its own; the last one may compute for 10 s, and then end all."""
    for rank in range(RANKS):
        os.mkfifo(distlaunch.directory / f"gate{rank}")
    path = distlaunch.write("reads.sh", READS)
    path.chmod(0o755)
    return path


def test_all_ranks_are_shown_or_counted(distlaunch: Cli, start: Callable[..., str], script: Path) -> None:
    run = start("--no-python", f"--nproc-per-node={RANKS}", str(script), ranks=RANKS)

    groups = stacks(distlaunch, run)["groups"]

    assert sorted(rank for group in groups for rank in group["ranks"]) == [*range(RANKS)]
    assert [group["ranks"] for group in stacks(distlaunch, run, "--rank", "69")["groups"]] == [[69]]
    shown = distlaunch("stacks", run).stdout.splitlines()
    assert (shown[0].startswith("rank 0 "), shown[-1]) == (True, "and 6 ranks in 6 other places")


def test_a_run_of_which_one_rank_computes_is_not_ended(distlaunch: Cli, script: Path) -> None:
    words = ("--no-python", f"--nproc-per-node={RANKS}", "--on-hang=end", *WATCHED)

    run = distlaunch("local", *words, str(script), "computes")

    assert run.exit_code == 0, run.json["result"]["cause"]
    assert events(distlaunch, "hang") == []


MANAGED = """\
#!/bin/sh
[ $RANK = 0 ] && echo $$ >manager && exec 3<gate0 && exec cat <&3
exec 3>gate0
[ $1 = stops ] && [ $RANK = 1 ] && kill -STOP "$(cat manager)"
exec python3 -c '
import sys, time
while sys.argv[1] == "stops" or time.process_time() < 10: pass
' $1
"""


@pytest.mark.parametrize("how", ["computes", "stops"])
def test_programs_may_compute_for_a_manager_that_waits_unless_that_is_stopped(distlaunch: Cli, how: str) -> None:
    os.mkfifo(distlaunch.directory / "gate0")
    script = distlaunch.write("managed.sh", MANAGED)
    script.chmod(0o755)

    run = distlaunch("local", "--no-python", "--nproc-per-node=3", "--on-hang=end", *WATCHED, str(script), how)

    assert run.exit_code == (how == "stops"), run.json["result"]["cause"]
    assert [event["odd"] for event in events(distlaunch, "hang")] == ([[0]] if how == "stops" else [])
