"""The life of a run on hosts that only a bastion reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ansible.behind import wait_end
from tests.ansible.conftest import SUM

if TYPE_CHECKING:
    from tests.ansible.behind import Lab

pytestmark = pytest.mark.ssh

LINES = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
with open("out.txt", "w") as file:
    file.write(os.environ["RANK"])
for number in range(int(sys.argv[1])):
    print("line", number, flush=True)
    time.sleep(0.25)
"""


def test_a_run_is_followed_fetched_started_again_and_removed_through_the_bastion(lab: Lab) -> None:
    lab.rack.write("sum.py", SUM)
    lab.rack.write("lines.py", LINES)

    done = lab.run("--log-ranks", "all", "sum.py")
    fetched = lab.run("--nodes", "1", "--fetch", "out.txt", "--fetch-to", str(lab.home / "got"), "lines.py", "1")
    run = lab.status()["run"]
    requeued = lab("requeue", run)
    again = wait_end(lab, run)
    listed = lab("hosts", "--on", "lab", "--output", "json").json["result"]["hosts"]
    seen = lab("clusters", "--output", "json").json["result"]["clusters"][0]

    assert done.exit_code == 0, done.stderr
    assert sorted(line.partition(": sum")[2] for line in done.stdout.splitlines()) == [" 6"] * 3
    assert (fetched.exit_code, fetched.stdout) == (0, "line 0\n"), fetched.stderr
    assert (lab.home / "got/out.txt").read_text() == "0"
    assert (requeued.exit_code, again["attempt"], again["state"]) == (0, 1, "success"), requeued.stderr
    assert [(row["host"], row["state"]) for row in listed] == [("n1", "up"), ("n2", "up"), ("n3", "up")]
    assert (seen["problem"], seen["nodes"]) == (None, 3)
    assert (lab.rack.remote / "runs" / run).is_dir()
    assert lab("rm", run).exit_code == 0
    assert not (lab.rack.remote / "runs" / run).exists()
