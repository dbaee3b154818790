"""A worker that was killed for lack of memory, and one that was killed for another reason."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.system import cgroup

if TYPE_CHECKING:
    from tests.agent.harness import Runner


def test_a_worker_killed_by_another_process_is_told_apart_from_one_killed_for_lack_of_memory(agents: Runner) -> None:
    run = agents("import os\nos.kill(os.getpid(), 9)\n")

    assert run.cause()["class"] == "killed"
    assert run.cause()["signal"] == "SIGKILL"


HOG = "hog = [bytearray(1 << 20) for _ in range(4000)]"


def test_the_kernels_out_of_memory_killer_is_named(agents: Runner, small_cgroup: Path) -> None:
    (small_cgroup / "cgroup.procs").write_text(str(os.getpid()))  # and the agent with us

    run = agents(f"import os, time\nif os.environ['RANK'] == '1': {HOG}\ntime.sleep(600)\n", nproc_per_node="2")

    assert run.cause()["class"] == "out_of_memory"
    assert run.cause()["rank"] == 1


def test_lack_of_memory_in_another_cgroup_is_not_the_workers(agents: Runner, small_cgroup: Path) -> None:
    if not any("oom_kill" in Path(name).read_text() for name in cgroup.memory_counters() if Path(name).exists()):
        pytest.skip("no memory cgroup can be made here that counts apart from the machine")
    elsewhere = f"open('{small_cgroup}/cgroup.procs', 'w').write('0'); {HOG}"

    run = agents(
        "import os, subprocess, sys\n"
        f"print(subprocess.run([sys.executable, '-c', {elsewhere!r}]).returncode, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )

    assert run.stdout[0] == b"-9\n"
    assert run.cause()["class"] == "killed"


SURVIVES = f"""
import os, subprocess, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    print(subprocess.run([sys.executable, "-c", {HOG!r}]).returncode, flush=True)
    if sys.argv[1] == "restart":
        sys.exit(1)
while not os.path.exists("later"):
    time.sleep(0.01)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("then", ["restart", "go on"])
def test_lack_of_memory_that_a_run_has_survived_is_not_why_a_worker_is_killed_later(
    agents: Runner, small_cgroup: Path, tmp_path: Path, then: str
) -> None:
    (small_cgroup / "cgroup.procs").write_text(str(os.getpid()))
    run = agents.start(SURVIVES, then, max_restarts=int(then == "restart"), request={"heartbeat_s": 0.5})
    run.until(lambda: run.stdout[0])
    beats = 0 if then == "restart" else len(run.of("heartbeat")) + 3

    run.until(lambda: len(run.of("heartbeat")) >= beats)
    (tmp_path / "later").touch()

    assert run.wait().stdout[0] == b"-9\n"
    assert (run.cause()["class"], run.cause()["signal"]) == ("killed", "SIGKILL")


@pytest.mark.torch
def test_torchs_own_memory_error_is_of_the_class_out_of_memory(warm_agents: Runner) -> None:
    assert warm_agents("import torch\ntorch.ones(1 << 50)\n").cause()["class"] == "out_of_memory"


def test_a_mount_whose_name_is_no_text_keeps_no_cgroup_from_being_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mounts").write_bytes(b"disk /mnt/\xff ext4 rw 0 0\nnone /sys/fs/cgroup cgroup2 rw 0 0\n")
    (tmp_path / "cgroup").write_bytes(b"0::/a/\xff\n")
    usual: Any = open
    monkeypatch.setattr(
        cgroup, "open", lambda path, **how: usual(tmp_path / os.path.basename(path), **how), raising=False
    )

    assert os.fsencode(cgroup.memory_counters()[0]) == b"/sys/fs/cgroup/a/\xff/memory.events"
