"""When a run is started from what an earlier one has left standing, and when it must not be."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.warm import records
from tests.agent.harness import all_exited
from tests.warm.conftest import TORCH, left_by, start_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.warm.conftest import Warm

pytestmark = pytest.mark.torch

LIMIT_S = 60


def test_the_next_runs_start_from_it_with_their_own_script_and_without_an_import(warm: Warm, tmp_path: Path) -> None:
    first = warm(TORCH)
    server = left_by(first)
    assert start_of(first) == (False, "none was standing")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/helper.py").write_text("WORD = 'mine'\n")
    script = tmp_path / "sub/uses.py"
    script.write_text("import helper, os, sys\nimport torch\nprint(helper.WORD, sys.argv[1:], os.environ['MORE'])\n")

    runs = [warm(script, "a b", str(number), env=("MORE=yes",), cwd=tmp_path / "sub") for number in range(2)]

    for number, run in enumerate(runs):
        assert start_of(run) == (True, None)
        assert run.stdout[0] == f"mine ['a b', '{number}'] yes\n".encode()
        assert run.of("warm_left") == []
        assert run.of("host_facts")[0]["import_s"] < first.of("host_facts")[0]["import_s"] / 4
    (standing,) = records.found()
    assert (standing.pid, standing.runs) == (server, 2)


def test_two_runs_at_once_are_both_started_from_it(warm: Warm) -> None:
    left_by(warm(TORCH, nproc_per_node="2"))
    runs = [warm.start(TORCH, warm="10m", nodes="2", nproc_per_node="2") for _ in range(2)]
    for run in runs:
        run.wait()
        assert run.result() == "success"
        assert [each["used"] for each in run.of("warm_start")] == [True, True]
        assert list(run.stdout.values()) == [b"1.0\n"] * 4


def test_it_ends_after_its_time_and_each_run_prolongs_that(warm: Warm) -> None:
    server = left_by(warm(TORCH, warm="3s"))
    assert start_of(warm(TORCH, warm="2s"))[0]
    assert all_exited(server, within_s=LIMIT_S)
    assert records.found() == []
    assert os.listdir(os.environ[records.DIRECTORY]) == [] or all(
        not os.listdir(os.path.join(os.environ[records.DIRECTORY], name))
        for name in os.listdir(os.environ[records.DIRECTORY])
    )


def test_failed_runs_leave_one_too_and_a_worker_that_was_killed_does_not_harm_it(warm: Warm) -> None:
    left_by(warm("import torch\nraise SystemExit(3)\n"))
    failed = warm("import os, signal\nimport torch\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert start_of(failed) == (True, None)
    assert failed.result() == "failed"
    assert start_of(warm(TORCH)) == (True, None)


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "a variable that torch reads": ({"env": ("TORCH_LOGS=+aot",)}, "TORCH_LOGS was different"),
    "a variable that Python reads": ({"env": ("PYTHONHASHSEED=1",)}, "PYTHONHASHSEED was different"),
    "threads": ({"nproc_per_node": "2"}, "OMP_NUM_THREADS was different"),
    "preload": ({"preload": ("json",)}, "imported less: json"),
    "spawn": ({"start_method": "spawn"}, "not forked"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_would_have_changed_the_import_is_started_anew(warm: Warm, change: str) -> None:
    options, reason = CHANGES[change]
    left_by(warm(TORCH))

    run = warm(TORCH, **options)

    assert run.result() == "success"
    used, why = start_of(run)
    assert not used
    assert reason in str(why)


def test_a_script_without_torch_and_a_program_do_not_use_it(warm: Warm) -> None:
    left_by(warm(TORCH))
    assert start_of(warm("import sys\nprint(len(sys.modules))\n"))[1] == "the script does not import torch"
    assert start_of(warm("/bin/true", kind="program"))[1] == "its workers are not forked"
    assert len(records.found()) == 1


def test_a_changed_file_of_what_was_imported_is_noticed(warm: Warm, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "mine.py").write_text("VALUE = 1\n")
    script = tmp_path / "uses.py"
    script.write_text("# distlaunch: preload mine\nimport torch\nimport mine\nprint(mine.VALUE)\n")
    options: dict[str, Any] = {"env": (f"PYTHONPATH={library}",), "cwd": tmp_path}
    left_by(warm(script, **options))
    assert start_of(warm(script, **options)) == (True, None)

    (library / "mine.py").write_text("VALUE = 22\n")
    run = warm(script, **options)

    used, why = start_of(run)
    assert not used
    assert str(library) in str(why)
    assert "changed" in str(why)
    assert run.stdout[0] == b"22\n"


def test_the_server_may_be_killed_at_any_time(warm: Warm) -> None:
    server = left_by(warm(TORCH))
    (standing,) = records.found()
    os.kill(server, 9)
    assert all_exited(server)
    run = warm(TORCH)
    assert start_of(run) == (False, "none was standing")
    assert run.result() == "success"

    run = warm.start("import time\nimport torch\nprint('here', flush=True)\ntime.sleep(1)\nprint('end')\n", warm="10m")
    run.until(lambda: run.stdout[0])
    (standing,) = records.found()
    os.kill(standing.pid, 9)  # its run goes on
    assert run.wait().stdout[0] == b"here\nend\n"


def test_a_server_that_hangs_is_not_waited_for_long(warm: Warm) -> None:
    server = left_by(warm(TORCH))
    os.kill(server, 19)
    try:
        run = warm(TORCH)
    finally:
        os.kill(server, 18)
    assert run.result() == "success"
    used, why = start_of(run)
    assert not used
    assert "no answer" in str(why)


def test_a_launcher_that_dies_before_it_has_recorded_the_agent_leaves_nothing(warm: Warm, tmp_path: Path) -> None:
    first = warm(TORCH)
    server = left_by(first)
    code = f"""
import os, sys
from launcher.agent.system import trust
from launcher.agent.warm import asking
path, spec = {str(first.directory / "agent.pyz")!r}, {str(first.directory / "spec.json")!r}
argv = [sys.executable, "-u", path, "--spec", spec, "--node-rank", "0"]
out = os.open({str(tmp_path / "out")!r}, os.O_WRONLY | os.O_CREAT)
agent = trust.agent_name(open(path, "rb").read())
found, reason = asking.ask(asking.Request(agent, argv, os.environ, {str(tmp_path)!r}), (out, out))
print(found and found.pid, reason, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.stdout.split()[0].isdigit(), (done.stdout, done.stderr)
    assert all_exited(int(done.stdout.split()[0]))
    assert (tmp_path / "out").read_text() == ""
    assert [each.pid for each in records.found()] == [server]


def test_a_full_disk_leaves_no_server_and_harms_no_run(warm: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(records.DIRECTORY, "/dev/full")
    run = warm(TORCH)
    assert run.result() == "success"
    assert ["full disk" in told["reason"] for told in run.of("warm_left")] == [True]


def test_one_stays_for_each_kind_and_three_at_most(warm: Warm) -> None:
    servers = [left_by(warm(TORCH, env=(f"TORCH_MORE={number}",))) for number in range(4)]
    assert {each.pid for each in records.found()} == set(servers[1:])
    assert all_exited(servers[0])


def test_what_a_process_inherits_is_that_of_the_run_that_uses_it(warm: Warm, tmp_path: Path) -> None:
    left_by(warm(TORCH))
    script = (
        "import torch\nimport json, os, resource, signal\numask = os.umask(0)\n"
        "print(json.dumps([umask, os.getcwd(), os.nice(0), resource.getrlimit(resource.RLIMIT_CORE),"
        " signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN, open('/proc/self/oom_score_adj').read().strip(),"
        " os.getsid(0) == os.getpid(), os.readlink('/proc/self/fd/0')]))\n"
    )
    there = tmp_path / "elsewhere"
    there.mkdir()
    path = tmp_path / "inherits.py"
    path.write_text(script)
    code = f"""
import os, resource, signal, sys
os.umask(0o027)
os.nice(3)
resource.setrlimit(resource.RLIMIT_CORE, (4096, resource.getrlimit(resource.RLIMIT_CORE)[1]))
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
open("/proc/self/oom_score_adj", "w").write("77")
os.chdir({str(there)!r})
local = [sys.executable, "-m", "launcher", "local", "--nproc-per-node", "1"]
os.execv(sys.executable, [*local, *sys.argv[1:], {str(path)!r}])
"""
    seen = []
    for words in ([], ["--warm", "10m"]):
        env = {**os.environ, "PYTHONPATH": "", "DISTLAUNCH_RUNS_DIR": str(tmp_path / f"runs{len(words)}")}
        del env["PYTHONPATH"]
        done = subprocess.run(
            [sys.executable, "-c", code, *words], env=env, capture_output=True, text=True, check=False, timeout=120,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        line = next(line for line in done.stdout.splitlines() if "[" in line)
        seen.append(json.loads(line[line.index("[", line.startswith("[0:0]")) :]))
        streams = list((tmp_path / f"runs{len(words)}").glob("*/nodes/0/stream"))
        assert len(streams) == 1
        if words:
            assert '"used":true' in streams[0].read_text()
    assert seen[0] == seen[1]
    assert seen[1][:3] == [0o027, str(there), 3]
    assert resource.RLIM_INFINITY not in seen[1][3][:1]


def test_a_run_with_other_cpus_or_another_namespace_is_started_anew(warm: Warm, tmp_path: Path) -> None:
    left_by(warm(TORCH))
    cpus = os.sched_getaffinity(0)
    if len(cpus) < 2:
        pytest.skip("one CPU")
    os.sched_setaffinity(0, {min(cpus)})
    try:
        run = warm(TORCH)
    finally:
        os.sched_setaffinity(0, cpus)
    assert start_of(run) == (False, "the CPUs of the one that stands are different")
    assert run.result() == "success"


def test_it_serves_only_its_own_user_and_only_from_a_private_directory(warm: Warm, place: Path) -> None:
    if os.getuid():
        pytest.skip("needs root, to be another user")
    left_by(warm(TORCH))
    (standing,) = records.found()
    where = records.directory()
    assert where is not None
    path = records.socket_of(where, standing.pid, standing.start_ticks)
    code = f"""
import os, socket, sys
os.setgid(65534)
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect({path!r})
    print(sock.recv(1))
"""
    for directory, mode in ((str(place), 0o755), (where, 0o755), (path, 0o777)):
        os.chmod(directory, mode)
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LIMIT_S)
        assert done.stdout == "b''\n"
        run = warm(TORCH)
        assert start_of(run) == (False, "none was standing")
        assert "pid" not in run.of("warm_left")[0]
    finally:
        os.chmod(where, 0o700)
        os.chmod(place, 0o700)


def test_a_run_of_the_same_kind_replaces_the_one_that_stands(warm: Warm) -> None:
    first = left_by(warm(TORCH))
    (standing,) = records.found()
    os.kill(first, 19)  # it does not answer, so the next run leaves one of its own
    second = left_by(warm(TORCH))
    assert all_exited(first)
    assert [each.pid for each in records.found()] == [second]
    assert records.found()[0].key == standing.key
