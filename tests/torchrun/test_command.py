"""`distlaunch torchrun` on one node, with scripts that need no torch."""

from __future__ import annotations

import fcntl
import json
import os
import select
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING

import pytest

from tests.torchrun.node import LIMIT_S, ROOT, Node

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SEEN = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "ROLE_NAME", "OMP_NUM_THREADS", "TORCHELASTIC_RUN_ID",
         "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "MASTER_ADDR", "MASTER_PORT",
         "TORCHELASTIC_SIGNALS_TO_HANDLE")
told = json.dumps([{name: os.environ.get(name) for name in names}, sys.argv[1:], sys.stdin.readline()])
sys.stdout.write(told + "\\n")
"""
"""Workers write each line in one call: between the parts of a `print`, another worker's line may appear."""

FAILS = """
import os, sys
sys.stdout.write("out " + os.environ["RANK"] + "\\n")
sys.stderr.write("err " + os.environ["RANK"] + "\\n")
if os.environ["RANK"] == "1":
    raise ValueError("boom in attempt " + os.environ["TORCHELASTIC_RESTART_COUNT"])
import time
time.sleep(600)
"""


@pytest.mark.torch
def test_workers_that_start_again_name_no_option_that_has_no_effect(start: Callable[..., Node]) -> None:
    node = start("import os\nname = 'OMP_NUM_' + 'THREADS'\nos.environ[name] = '3'\nimport torch\n", "x.py")

    assert node.wait() == 0
    assert "workers start again, each in its own interpreter: OMP_NUM_THREADS was set" in node.err
    assert "--start-method" not in node.err


@pytest.mark.torch
def test_nor_does_a_process_that_a_worker_has_forked(start: Callable[..., Node]) -> None:
    script = "import os, sys\nif os.fork():\n    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    node = start(script + "name = 'OMP_NUM_' + 'THREADS'\nos.environ[name] = '3'\nimport torch\n", "x.py")

    assert node.wait() == 0
    assert "OMP_NUM_THREADS was set before torch was imported, in a forked process, where it has no effect" in node.err
    assert "before the process is forked\n" in node.err


def test_workers_have_torchruns_variables_arguments_and_stdin_and_nothing_is_left(start: Callable[..., Node]) -> None:
    options = [
        "--standalone",
        "--nproc-per-node=2",
        "--role",
        "r",
        "--max-restarts",
        "3",
        "--signals-to-handle",
        "SIGTERM",
    ]
    node = start(SEEN, *options, "x.py", "--rank=${local_rank}", "$$HOME ${other}", stdin="one\n")

    assert node.wait() == 0
    assert node.err == ""
    assert node.left() == []
    seen = sorted(map(json.loads, node.out.splitlines()), key=lambda worker: worker[0]["RANK"])
    shared = {
        "WORLD_SIZE": "2", "ROLE_NAME": "r", "OMP_NUM_THREADS": "1", "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "3", "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM",
    }  # fmt: skip
    for rank, (variables, words, _) in enumerate(seen):
        assert variables.items() >= {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}.items()
        assert words == [f"--rank={rank}", "$HOME ${other}"]
    assert sorted(line for _, _, line in seen) == ["", "one\n"]  # one stdin, as given by the shell
    assert len({variables["TORCHELASTIC_RUN_ID"] for variables, _, _ in seen}) == 1


def test_one_node_of_a_static_run_has_the_port_that_it_was_given(start: Callable[..., Node], port: int) -> None:
    node = start(SEEN, "--master_port", str(port), "x.py", env={"PET_RDZV_ID": "mine", "OMP_NUM_THREADS": "5"})

    assert node.wait() == 0, node.err
    variables, _, _ = json.loads(node.out)
    names = ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "OMP_NUM_THREADS")
    assert [variables[name] for name in names] == [str(port), "mine", "5"]


def test_kept_files_are_where_torchrun_keeps_them(start: Callable[..., Node], tmp_path: Path) -> None:
    options = ["--standalone", "--nproc-per-node=2", "--max-restarts=1", "--log-dir", "logs", "-r", "0:1", "-t", "1:3"]
    more = ["--log-line-prefix-template", "${rank}/${local_rank} ${role_name}> ", "--duplicate-stdout-filters", "ou,zz"]
    node = start(FAILS, *options, *more, "x.py", env={"TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json")})

    assert node.wait() == 1
    (directory,) = (tmp_path / "logs").iterdir()
    assert sorted(path.name for path in directory.iterdir()) == ["attempt_0", "attempt_1"]
    for attempt in ("attempt_0", "attempt_1"):
        assert (directory / attempt / "0/stdout.log").read_text() in ("out 0\n", "")  # it may not have got that far
        assert (directory / attempt / "1/stdout.log").read_text() == "out 1\n"
        assert (directory / attempt / "filtered_stdout.log").read_text() == "1/1 default> out 1\n"
        assert f"boom in {attempt.replace('_', ' ')}" in (directory / attempt / "1/error.json").read_text()
        assert "boom" in (directory / attempt / "1/stderr.log").read_text()
        assert not (directory / attempt / "0/stderr.log").exists()
    assert node.out.splitlines() == ["1/1 default> out 1"] * 2
    assert "1/1 default> err 1\n" in node.err
    assert "distlaunch: restart 1 of 1: ValueError: boom in attempt 0\n" in node.err
    assert "first failure: rank 1" in node.err
    assert json.loads((tmp_path / "error.json").read_text())["message"]["message"] == "ValueError: boom in attempt 1"


def test_local_ranks_that_are_filtered_out_are_not_shown(start: Callable[..., Node]) -> None:
    script = "import os, sys; sys.stdout.write(f'out {os.environ[\"RANK\"]}\\n')"
    node = start(script, "--nproc-per-node=3", "--local-ranks-filter", "0,2", "x.py")

    assert node.wait() == 0
    assert sorted(node.out.splitlines()) == ["out 0", "out 2"]


TERMINAL = """
import os, sys
print(*(os.isatty(fd) for fd in (0, 1, 2)), os.get_terminal_size().columns, flush=True)
print("say: ", flush=True)
print("heard", sys.stdin.readline(), flush=True)
"""


@pytest.mark.parametrize(
    ("options", "seen"), [([], "True True True 77"), (["--redirects=2", "--log-dir=logs"], "True True False 77")]
)
def test_workers_have_our_terminal_where_their_lines_go_nowhere_else(
    tmp_path: Path, options: list[str], seen: str
) -> None:
    (tmp_path / "x.py").write_text(TERMINAL)
    assert talk(tmp_path, [sys.executable, "-m", "launcher", "torchrun", *options, "x.py"]).startswith(seen)


OF_CONTAINER = ["unshare", "-Ur", "-m", "sh", "-c", 'mount -t devpts -o newinstance devpts /dev/pts && exec "$@"', "sh"]


@pytest.mark.torch
@pytest.mark.parametrize("engine", [["torch.distributed.run"], ["launcher", "torchrun"]], ids=["torchrun", "ours"])
def test_workers_have_our_terminal_where_it_has_no_name(tmp_path: Path, engine: list[str]) -> None:
    """In a container that has terminals of its own."""
    if subprocess.run([*OF_CONTAINER, "true"]).returncode:
        pytest.skip("no namespaces")
    (tmp_path / "x.py").write_text(TERMINAL)
    assert "True True True 77" in talk(tmp_path, [*OF_CONTAINER, sys.executable, "-m", *engine, "x.py"])


def talk(directory: Path, words: list[str]) -> str:
    """Run this command in a terminal, and answer what `TERMINAL` asks; what it has shown."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 77, 0, 0))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        words, cwd=directory, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env=env
    )
    os.close(theirs)
    said = b""

    def until(text: bytes) -> None:
        nonlocal said
        while text not in said:
            assert select.select([ours], [], [], LIMIT_S)[0], said
            said += os.read(ours, 4096)

    try:
        until(b"say: ")
        os.write(ours, b"hello\n")
        until(b"heard hello")
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return said.decode()


def test_a_launcher_that_was_started_without_open_streams_works(start: Callable[..., Node], tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(
        "import os, sys; open('seen', 'w').write(f'{os.environ[\"RANK\"]} {sys.stdin.read()!r}')"
    )
    command = f"exec {sys.executable} -m launcher torchrun --standalone x.py <&- >&- 2>&-"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}

    assert subprocess.run(["sh", "-c", command], cwd=tmp_path, env=env, timeout=LIMIT_S, check=False).returncode == 0
    assert (tmp_path / "seen").read_text() == "0 ''"


def test_an_interpreter_that_has_torch_runs_the_agent_where_ours_has_none(tmp_path: Path) -> None:
    own = tmp_path / "python"
    own.symlink_to(sys.executable)
    script = (
        "import os, sys; sys.stdout.write(' '.join([os.environ['RANK'], sys.executable, sys.stdin.read()]) + '\\n')"
    )
    (tmp_path / "x.py").write_text(script)
    code = (
        "import sys; from launcher.torchrun import workers; from launcher.cli import main;"
        f"workers.own_python = lambda env: {str(own)!r}; sys.exit(main(['torchrun', '--nproc-per-node=2', 'x.py']))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    words = [sys.executable, "-c", code]
    done = subprocess.run(
        words, cwd=tmp_path, env=env, capture_output=True, text=True, input="", timeout=LIMIT_S, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == [f"{rank} {own} " for rank in range(2)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["python", "x.py"]


def test_a_program_needs_no_python(start: Callable[..., Node]) -> None:
    wait = "until test -e said.0; do sleep 0.05; done"  # a failure ends the other worker
    code = f"echo $RANK $1; : > said.$RANK; {wait}; exit $LOCAL_RANK"
    node = start("", "--nproc-per-node", "2", "--no-python", "sh", "-c", code, "sh", "${local_rank}")

    assert node.wait() == 1
    assert sorted(node.out.splitlines()) == ["0 0", "1 1"]
    assert "exit code 1" in node.err


def test_each_worker_may_have_a_script_of_its_own(start: Callable[..., Node], tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"own{rank}.py").write_text(f"import sys; sys.stdout.write('own {rank}\\n')")
    node = start("", "--nproc-per-node", "2", "own${local_rank}.py")

    assert node.wait() == 0, node.err
    assert sorted(node.out.splitlines()) == ["own 0", "own 1"]


def test_what_only_torchrun_can_do_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from launcher.torchrun import command

    started: list[list[str]] = []

    def execute(_: str, words: list[str]) -> None:
        started.append(words[1:])
        raise SystemExit

    monkeypatch.setattr("launcher.torchrun.command.os.execv", execute)
    lines = [
        ["--rdzv-backend", "etcd", "x.py"],
        ["--logs-specs", "mine", "x.py"],
        ["--event-log-handler=mine", "x.py"],
        ["--rdzv-backend=c10d", "--rdzv-conf=store_type=file", "--rdzv-endpoint", "/f", "x.py"],
    ]
    for line in lines:
        with pytest.raises(SystemExit):
            command.main(line)

    assert started == [["-m", "torch.distributed.run", *line] for line in lines]
    said = capfd.readouterr().err.splitlines()
    assert len(said) == len(lines)
    assert said[0] == "distlaunch: --rdzv-backend etcd: torchrun itself is started"


@pytest.mark.parametrize(("words", "said"), [
    (["--nnodes=0", "x.py"], "--nnodes '0'"),
    (["--nnodes=2:1", "x.py"], "--nnodes '2:1'"),
    (["--tee", "4", "x.py"], "--tee '4'"),
    (["--rdzv-conf", "a", "x.py"], "--rdzv-conf 'a'"),
    (["--rdzv-endpoint", "h:p", "--nnodes=2", "x.py"], "rendezvous endpoint 'h:p'"),
    (["--nproc-per-node", "0", "x.py"], "--nproc-per-node 0"),
    (["--rdzv-backend=c10d", "--rdzv-endpoint=h:0", "--nnodes=2", "x.py"], "several nodes cannot find port 0"),
    (["--rdzv-endpoint=h", "--nnodes=2", "x.py"], "a static rendezvous needs its port"),
    (["--standalone", "--nnodes=2", "x.py"], "--standalone is one node"),
    (["--no-python", "--module", "x.py"], "exclude one another"),
    (["--nnodes=2", "--node-rank=2", "x.py"], "this is node 2, and the run has nodes 0 to 1"),
    (["--local-ranks-filter", "a", "x.py"], "--local-ranks-filter 'a'"),
])  # fmt: skip
def test_invalid_options_are_one_clear_error(words: list[str], said: str) -> None:
    from launcher.torchrun import command
    from launcher.torchrun.options import TorchrunUsageError

    with pytest.raises(TorchrunUsageError) as error:
        command.main(words)

    assert said in error.value.message
