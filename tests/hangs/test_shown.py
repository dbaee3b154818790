"""`status` and `top` name the hang in which a run is now, and have it no more once the run goes on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from testbed import wait_until
from tests.hangs.conftest import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.command import Cli

SCRIPT = """
import os, time

RANK = os.environ["RANK"]

def meet():
    open(f"gate{RANK}").read()

def apart():
    open(f"gate{RANK}").read()

print("::distlaunch progress step=1/10000", flush=True)
time.sleep(2)
print("::distlaunch progress step=2/10000", flush=True)
print("ready", flush=True)
(apart if RANK == "2" else meet)()
while True:
    print("goes on", flush=True)
    time.sleep(0.5)
"""


def test_a_hang_is_shown_until_the_run_goes_on(distlaunch: Cli, start: Callable[..., str]) -> None:
    gates = [distlaunch.directory / f"gate{rank}" for rank in range(3)]
    for gate in gates:
        os.mkfifo(gate)
    script = str(distlaunch.write("gates.py", SCRIPT))
    run = start("--nproc-per-node=3", "--samples=1", "--hang-after=3s", script, ranks=3)

    def seen(command: str) -> dict[str, Any]:
        found: dict[str, Any] = distlaunch(command, run, "--output", "json").json["result"]
        return found

    def shown() -> list[Any]:
        return [(each["kind"], each["rank"], each["node"]) for each in seen("status")["findings"]]

    wait_until("the hang", shown, limit_s=LIMIT_S)
    assert shown() == [("hang", 2, 0)]
    now = seen("top")
    assert now["ranks"][0]["rank"] == 2
    assert "rank 2" in now["ranks"][0]["odd"]
    assert "is in apart (gates.py:10" in now["ranks"][0]["odd"]
    assert seen("status")["progress"]["eta_s"] is None
    assert "odd      " in distlaunch("status", run).stdout
    assert f'distlaunch_run_hangs{{run="{run}"}} 1' in distlaunch("metrics", run).stdout

    for gate in gates:
        gate.open("w").close()
    wait_until("the end of the hang", lambda: not shown(), limit_s=LIMIT_S)
    assert seen("top")["findings"] == []
    assert f'distlaunch_run_hangs{{run="{run}"}} 0' in distlaunch("metrics", run).stdout
