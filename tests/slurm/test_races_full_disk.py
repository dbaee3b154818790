"""A run on two Slurm clusters whose launcher has no room to record what becomes of it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from testbed import wait_until
from tests.runs.test_removal import fill
from tests.slurm.laptop import LIMIT_S
from tests.slurm.test_races import MARKS, marks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.slurm.racing import Racing

pytestmark = pytest.mark.slurm

JOBS = ("squeue", "--noheader", "--format=%i")


def is_left_out(screen: Path, cluster: str) -> bool:
    """Whether the user was told that a cluster is."""
    return f"{cluster} is left out" in screen.read_text()


def wants_claim(remote: Path) -> bool:
    """Whether an agent there has asked for the claim."""
    return any(b'"claim_wanted"' in path.read_bytes() for path in remote.rglob("stream"))


def fetched(looks: Path) -> int:
    """How often a launcher has fetched what is new in a stream."""
    return looks.read_text().count("/stream\n") if looks.exists() else 0


def test_a_full_disk_puts_the_decision_off_and_ends_nothing(small_disk: Path, racing: Racing) -> None:
    runs = small_disk / "runs"
    env = racing.env({"DISTLAUNCH_RUNS_DIR": str(runs)})
    racing.cli.write("marks.py", MARKS)
    racing.hold()
    looks = racing.home / "looks"
    racing.nodes[1].stand_in("tail", f'echo "$@" >>{looks}; exec "$real" "$@"')
    juno, lab = (node.slurm for node in racing.nodes)
    command = ("run", "--on", "juno,lab", "--start", "first", "marks.py", str(racing.home / "marks"), "0")
    screen = racing.cli.directory / "screen"
    with screen.open("wb") as stderr:
        launcher = racing.cli.start(*command, env=env, stderr=stderr)
    wait_until("both to have it", lambda: screen.read_text().count("queued on ") == 2, limit_s=LIMIT_S)
    fill(small_disk)
    juno.run(("scancel", *juno.run(JOBS).stdout.split()))
    wait_until("juno to be left out", lambda: is_left_out(screen, "juno"), limit_s=LIMIT_S)
    lab.run(("scontrol", "release", *lab.run(JOBS).stdout.split()))
    wait_until("lab's agent to want the claim", partial(wants_claim, racing.home / "lab"), limit_s=LIMIT_S)
    before = fetched(looks)
    wait_until(
        "two vain looks at that", lambda: fetched(looks) >= before + 2 or is_left_out(screen, "lab"), limit_s=LIMIT_S
    )
    full = (launcher.poll(), marks(racing), is_left_out(screen, "lab"))
    (small_disk / "more").unlink()
    launcher.communicate(timeout=LIMIT_S)
    racing.nodes[1].stand_in("tail")

    said = screen.read_text()
    assert full == (None, [], False), said
    assert "No space left on device; it is tried again" in said
    assert launcher.returncode == 0, said
    assert len(marks(racing)) == 1
    state = racing("status", "last", "--output", "json", env={"DISTLAUNCH_RUNS_DIR": str(runs)}).json["result"]
    tries = {each["cluster"]: each for each in state["race"]["tries"]}
    assert (state["state"], state["cluster"]) == ("success", "lab")
    assert tries["lab"]["granted_at"] is not None
    assert tries["juno"]["ended_at"] is not None
