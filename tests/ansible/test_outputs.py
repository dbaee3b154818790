"""Relative paths that workers write on hosts stay there for the next launch from the same directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.ansible.conftest import Rack

pytestmark = pytest.mark.ssh

COUNTS = """
import os, sys
import helper
os.makedirs("results", exist_ok=True)
path = os.path.join("results", "epoch")
epoch = int(open(path).read()) + 1 if os.path.exists(path) else 0
with open(path, "w") as file:
    file.write(str(epoch))
with open("sent.txt", "a") as file:
    file.write(f" epoch {epoch}")
here = os.getcwd() == os.environ["DISTLAUNCH_OUTPUT_DIR"]
print(helper.WORD, "epoch", epoch, open("sent.txt").read(), here, flush=True)
if len(sys.argv) > 1:
    open(sys.argv[1] + ".0", "rb", buffering=0).read(1)
print(helper.WORD, sorted(os.listdir()), flush=True)
"""


def test_a_second_launch_continues_and_concurrent_runs_have_their_own_code(rack: Rack) -> None:
    rack.private_disks(rack.ssh.hosts[0])
    rack.write("counts.py", COUNTS)
    rack.write("helper.py", "WORD = 'one'\n")
    rack.write("old.py", "")
    rack.write("sent.txt", "sent")
    gate = rack.gate("gate", 0)

    first = rack("--share", "--nodes", "1", "--output", "json", "counts.py")
    running = rack.start("--share", "--nodes", "1", "--name", "second", "counts.py", str(gate))
    running.until("one epoch 1")
    same = rack("--share", "--nodes", "1", "--name", "same", "counts.py")
    rack.write("helper.py", "WORD = 'two'\n")
    (rack.directory / "old.py").unlink()
    fetch = ("--fetch", "results/**", "--fetch-to", str(rack.directory.parent / "got"))
    other = rack("--share", "--nodes", "1", "--name", "other", *fetch, "counts.py")
    gate.open()
    running.until("one ['__pycache__', 'counts.py'")
    assert running.end() == 0
    rack.write("sent.txt", "new")
    last = rack("--share", "--nodes", "1", "--name", "last", "--output", "json", "counts.py")
    alone = rack("--share", "--nodes", "1", "--name", "alone", "--no-project-dir", "counts.py")

    assert first.exit_code == 0, first.stderr
    where = first.json["result"]["output_dir"]
    assert where.startswith(str(rack.remote / "projects" / "work-"))
    assert "one epoch 0 sent epoch 0 True" in first.stderr
    assert "one epoch 2 sent epoch 0 epoch 1 epoch 2 True" in same.stdout, same.stderr
    assert "sent.txt stays as a run has changed it" in same.stderr
    assert "two epoch 3 sent epoch 3" in other.stdout, "its code is new, its results are the project's"
    assert "two ['__pycache__', 'counts.py', 'helper.py', 'results', 'sent.txt']" in other.stdout, "no removed file"
    assert (rack.directory.parent / "got/results/epoch").read_text() == "3"
    assert "with other files: what this run writes stays in" in other.stderr
    assert "'old.py'" in running.stdout, "no other run changes its directory"
    assert "two epoch 4 new epoch 4 True" in last.stderr
    assert last.json["result"]["output_dir"] == where
    assert "sent.txt was changed by a run and here" in last.stderr
    assert "two epoch 0" in alone.stdout
    kept = rack.ssh.hosts[0].run(("sh", "-c", f"cat {where}/sent.txt.before-last-*; ls {where}"), check=True).stdout
    assert "sent epoch 0 epoch 1 epoch 2" in kept
    assert "old.py" not in kept
