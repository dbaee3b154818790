"""Signals reach every worker, every wait has a limit, and nothing of a run outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from launcher.agent.system import cgroup, processes
from testbed import wait_until
from tests.agent.harness import Run, alive, gone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.agent.harness import Runner

FAMILY = """
import os, signal, subprocess, sys, time
def tell(name):
    open(f"{sys.argv[1]}/{name}.{os.environ['RANK']}", "w").write(str(os.getpid()))
if os.fork() == 0:  # a daemon: in a session of its own, its parent gone, deaf to SIGTERM
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        tell("daemon")
        time.sleep(600)
    os._exit(0)
if os.fork() == 0:
    tell("child")
    time.sleep(600)
os.wait()
subprocess.Popen(["sleep", "600"], start_new_session=True)
tell("worker")
print("ready", flush=True)
time.sleep(600)
"""


def tell_all(directory: Path, count: int) -> list[str]:
    """What so many files hold, once none of them is empty."""
    told = [path.read_text() for path in directory.iterdir()]
    return told if len(told) == count and all(told) else []


def family(agents: Runner, directory: Path, **options: Any) -> tuple[Run, list[int]]:
    """A run of workers with children of every kind, and the pids of all of them."""
    directory.mkdir()
    run = agents.start(FAMILY, str(directory), nproc_per_node="2", **options)
    nodes = int(options.get("nodes", "1"))
    run.until(lambda: list(run.stdout.values()) == [b"ready\n"] * 2 * nodes)
    told = wait_until("all to tell their pids", lambda: tell_all(directory, 3 * 2 * nodes), limit_s=30)
    pids = list(map(int, told))
    below = [psutil.Process(int(agent["pid"])).children(recursive=True) for agent in run.handle["agents"]]
    pids += [process.pid for processes in below for process in processes]
    assert len(set(pids)) >= 2 * 4 * nodes
    return run, pids


def test_cancel_ends_the_whole_family_and_no_other_run(agents: Runner, tmp_path: Path) -> None:
    other, others = family(agents, tmp_path / "other")
    run, pids = family(agents, tmp_path / "mine", nodes="2")

    run.backend.cancel(run.handle)

    assert run.wait().result() == "cancelled"
    assert [fields["exit_code"] for fields in run.of("done")] == [130, 130]
    assert gone(*pids)
    assert all(alive(pid) for pid in others)
    other.backend.cancel(other.handle)
    assert other.wait().result() == "cancelled"


@pytest.mark.parametrize("victim", ["agent", "fork server", "gang"])
def test_killing_one_of_our_own_processes_ends_the_whole_family(agents: Runner, tmp_path: Path, victim: str) -> None:
    run, pids = family(agents, tmp_path / "mine", grace="2s")
    agent = psutil.Process(run.agent_pid())
    server = agent.children()[0]
    workers = run.worker_pids()
    gang = next(child for child in server.children() if child.pid not in workers and child.num_threads() > 1)
    target = {"agent": agent, "fork server": server, "gang": gang}[victim]

    target.kill()
    run.wait()

    assert gone(*pids)
    if victim != "agent":
        assert run.result() == "failed"
        assert run.cause()["class"] == "killed"
        assert run.cause()["message"].endswith(" was killed by SIGKILL, sent by somebody else, not distlaunch")


@pytest.fixture(scope="module")
def unified_cgroups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The unified hierarchy, mounted where the agent finds it; one mount, as an agent takes whichever there is."""
    directory = tmp_path_factory.mktemp("unified")
    mounted = subprocess.run(["mount", "-t", "cgroup2", "none", str(directory)], capture_output=True)
    if mounted.returncode:
        pytest.skip("cgroup v2 cannot be mounted here")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)  # an agent of another test may use it, too


def test_with_a_cgroup_cancel_finds_what_is_left_when_all_our_processes_were_killed(
    unified_cgroups: Path, agents: Runner, tmp_path: Path
) -> None:
    run, pids = family(agents, tmp_path / "mine")
    own = json.loads((run.directory / "nodes/0/agent.json").read_text())["cgroup"]
    assert Path(own).is_relative_to(unified_cgroups)
    agent = psutil.Process(run.agent_pid())
    ours = [agent, *agent.children()]
    for process in ours:
        process.suspend()  # so that none can clean up after another
    for process in reversed(ours):
        process.kill()
    daemon = int((tmp_path / "mine/daemon.0").read_text())
    run.wait()
    assert alive(daemon)

    run.backend.cancel(run.handle)

    assert gone(*pids)
    assert not Path(own).exists()


def test_empty_cgroups_of_agents_that_were_killed_are_removed_by_the_next_one(unified_cgroups: Path, agents: Runner) -> None:
    here = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    own = unified_cgroups / here.strip("/")
    pid = os.getpid()
    dead, reused, living, foreign = (
        own / name
        for name in (
            "distlaunch-a-0-999999999-1",
            f"distlaunch-b-0-{pid}-1",
            f"distlaunch-c-0-{pid}-{processes.start_ticks(pid)}",
            "other-d-0-999999999-1",
        )
    )
    for directory in (dead, reused, living, foreign):
        directory.mkdir()
    try:
        assert agents("print(1)\n").result() == "success"

        assert [directory.exists() for directory in (dead, reused, living, foreign)] == [False, False, True, True]
    finally:
        living.rmdir()
        foreign.rmdir()


def test_a_worker_that_succeeds_leaves_nothing_behind_at_the_end_of_the_run(agents: Runner, tmp_path: Path) -> None:
    directory = tmp_path / "mine"
    directory.mkdir()
    run = agents(FAMILY.replace('time.sleep(600)\n"""', "").rpartition("time.sleep(600)")[0], str(directory))

    assert run.result() == "success", run.stderr
    assert gone(*(int(path.read_text()) for path in directory.iterdir()))


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2", "SIGALRM", "SIGWINCH"])
def test_signals_that_mean_something_to_scripts_are_passed_on(agents: Runner, name: str) -> None:
    run = agents.start(
        "import os, signal\n"
        f"signal.signal(signal.{name}, lambda *_: (print('got it', flush=True), os._exit(0)))\n"
        "print('ready', flush=True)\nwhile True: signal.pause()\n",
        nproc_per_node="2",
    )
    run.until(lambda: len(run.stdout) == 2)

    run.backend.signal(run.handle, getattr(signal, name))

    assert run.wait().result() == "success"
    assert list(run.stdout.values()) == [b"ready\ngot it\n"] * 2


def test_sigterm_gives_the_workers_the_deadline_and_their_grace_time(agents: Runner) -> None:
    run = agents.start(
        "import os, signal, sys, time\n"
        "def save(*_):\n"
        "    left = float(open(os.environ['DISTLAUNCH_DEADLINE_FILE']).read()) - time.time()\n"
        "    assert 5 < left < 10.1, left\n"
        "    time.sleep(0.2)\n    print('saved', flush=True)\n    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\nprint('ready', flush=True)\nwhile True: signal.pause()\n",
        nproc_per_node="2", nodes="2", max_restarts=3,
    )  # fmt: skip
    run.until(lambda: len(run.stdout) == 4)

    os.kill(run.agent_pid(1), signal.SIGTERM)  # one node only: the others are told
    run.until(lambda: len(run.of("stopping")) == 2)
    os.kill(run.agent_pid(0), signal.SIGTERM)  # as from a scheduler that is slower than our word: not a second request

    assert run.wait().result() == "cancelled"
    assert list(run.stdout.values()) == [b"ready\nsaved\n"] * 4
    assert run.of("restart") == []


def test_a_script_that_ignores_sigterm_is_killed_at_the_deadline_or_by_a_second_signal(agents: Runner) -> None:
    deaf = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(600)\n"
    patient = agents.start(deaf, grace="1s")
    forced = agents.start(deaf, grace="300s")
    for run in (patient, forced):
        run.until(lambda run=run: run.stdout[0] == b"ready\n")  # type: ignore[misc]

    patient.backend.cancel(patient.handle)
    forced.backend.cancel(forced.handle, force=True)

    for run in (patient, forced):
        assert run.wait().result() == "cancelled"
        assert run.of("worker_exited")[0]["signal"] == "SIGKILL"


def test_the_time_limit_ends_the_run_as_a_timeout(agents: Runner) -> None:
    run = agents("import time\ntime.sleep(600)\n", time="1s", nodes="2", max_restarts=2)

    assert run.result() == "timeout"
    assert {fields["exit_code"] for fields in run.of("done")} == {124}
    assert run.cause()["class"] == "timeout"


def test_a_run_that_is_cancelled_before_its_workers_exist_ends_at_once(agents: Runner, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)\n")
    run = agents.start("print('never')\n", preload=("slow",), nodes="2")
    run.until(lambda: len(run.of("agent_started")) == 2)

    run.backend.cancel(run.handle)

    assert run.wait().result() == "cancelled"
    assert run.worker_pids() == []


def test_a_worker_may_end_long_before_the_others_and_need_not_use_torch_distributed(agents: Runner) -> None:
    run = agents.start(
        "import os, sys, time\n"
        "while os.environ['RANK'] == '1' and not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
        "print('end')\n",
        str(agents.directory / "go"), nodes="2",
    )  # fmt: skip
    run.until(lambda: run.of("worker_exited"))
    (agents.directory / "go").touch()

    assert run.wait().result() == "success"
    assert list(run.stdout.values()) == [b"end\n"] * 2


def test_a_failure_on_one_node_ends_the_others_with_sigterm_and_is_their_cause_too(agents: Runner) -> None:
    run = agents(
        "import os, signal, sys, time\n"
        "def end(*_):\n    print('heard SIGTERM', flush=True)\n    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "open(f'{sys.argv[1]}.{os.environ[\"RANK\"]}', 'w').close()\n"
        "if os.environ['RANK'] == '5':\n"
        "    while not all(os.path.exists(f'{sys.argv[1]}.{rank}') for rank in range(6)): time.sleep(0.01)\n"
        "    raise ValueError('only here')\n"
        "time.sleep(600)\n",
        str(agents.directory / "ready"), nodes="3", nproc_per_node="2",
    )  # fmt: skip

    assert run.stdout == dict.fromkeys(range(5), b"heard SIGTERM\n")
    assert run.of("warning") == []
    assert run.result() == "failed"
    for done in run.of("done"):
        assert (done["cause"]["node"], done["cause"]["rank"], done["cause"]["message"]) == (2, 5, "ValueError: only here")


@pytest.mark.torch
def test_the_first_failure_is_told_apart_from_those_that_follow_from_it(warm_agents: Runner) -> None:
    run = warm_agents(
        "import torch, torch.distributed as dist, time\n"
        "dist.init_process_group('gloo')\n"
        "dist.all_reduce(torch.ones(1))\n"
        "if dist.get_rank() == 3:\n"
        "    import atexit; atexit.register(time.sleep, 0.5)\n"
        "    dist.destroy_process_group()\n"
        "    raise KeyError('the real one')\n"
        "dist.all_reduce(torch.ones(1))\n",
        nodes="2", nproc_per_node="2",
    )  # fmt: skip

    assert run.result() == "failed"
    assert (run.cause()["rank"], run.cause()["message"], run.cause()["class"]) == (3, "KeyError: 'the real one'", "user_code")


def test_a_worker_killed_by_somebody_else_is_told_from_one_killed_for_want_of_memory(agents: Runner) -> None:
    run = agents("import os\nos.kill(os.getpid(), 9)\n")

    assert run.cause()["class"] == "killed"
    assert run.cause()["signal"] == "SIGKILL"


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A memory cgroup of 1 GB that processes can move into; this one is taken out again."""
    root = Path("/sys/fs/cgroup/memory")
    v2 = not root.is_dir()
    root = Path("/sys/fs/cgroup") if v2 else root
    group = root / f"distlaunch-test-{os.getpid()}"
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    before = root / next(path for _, name, path in lines if name == ("" if v2 else "memory")).strip("/")
    try:
        group.mkdir()
        (group / ("memory.max" if v2 else "memory.limit_in_bytes")).write_text(str(1 << 30))
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error.strerror}")
    yield group
    (before / "cgroup.procs").write_text(str(os.getpid()))
    for _ in range(100):
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.05)
        else:
            break


HOG = "hog = [bytearray(1 << 20) for _ in range(4000)]"


def test_the_kernels_out_of_memory_killer_is_named(agents: Runner, small_cgroup: Path) -> None:
    (small_cgroup / "cgroup.procs").write_text(str(os.getpid()))  # and the agent with us

    run = agents(f"import os, time\nif os.environ['RANK'] == '1': {HOG}\ntime.sleep(600)\n", nproc_per_node="2")

    assert run.cause()["class"] == "out_of_memory"
    assert run.cause()["rank"] == 1


def test_want_of_memory_in_another_cgroup_is_not_ours(agents: Runner, small_cgroup: Path) -> None:
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


@pytest.mark.torch
def test_pythons_and_torchs_own_memory_errors_are_of_that_class_too(warm_agents: Runner) -> None:
    assert warm_agents("import torch\ntorch.ones(1 << 50)\n").cause()["class"] == "out_of_memory"
