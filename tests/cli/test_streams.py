"""Streams that are not files, and more streams than a process may have open."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from launcher.agent.protocol import encode_event
from launcher.backends._files import FileStream
from testbed import wait_until
from testbed.running import Running
from tests.cli.following import nothing_is_left, processes, recorded  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.command import Cli

LIMIT_S = 120
KINDS: dict[str, Callable[[Path], None]] = {
    "a FIFO": os.mkfifo,
    "a directory": os.mkdir,
    "a device": lambda path: os.symlink("/dev/zero", path),
}


def damaged(distlaunch: Cli, kind: str, *names: str) -> str:
    """A run without a recorded result, with something else in the place of some of its files."""
    distlaunch.write("quick.py", "print('whole')\n")
    distlaunch("local", "quick.py")
    wait_until("its agent to exit", lambda: not processes(distlaunch), limit_s=60)
    (run,) = distlaunch.runs.iterdir()
    (run / "result.json").unlink()
    for name in names:
        (run / name).unlink(missing_ok=True)
        KINDS[kind](run / name)
    return run.name


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_is_not_a_file_is_one_clear_error_and_other_runs_are_listed(distlaunch: Cli, kind: str) -> None:
    run = damaged(distlaunch, kind, "nodes/0/stream")
    assert distlaunch("local", "quick.py").exit_code == 0

    listed = distlaunch("ls", timeout_s=LIMIT_S)
    status = distlaunch("status", run, "--output", "json", timeout_s=LIMIT_S)
    logs = [distlaunch("logs", run, *follow, timeout_s=LIMIT_S) for follow in ([], ["-f"])]
    again = distlaunch("requeue", run, timeout_s=LIMIT_S)

    states = {line.split()[0]: line.split()[1] for line in listed.stdout.splitlines() if "quick-" in line}
    assert states.pop(run) == "unknown", listed
    assert list(states.values()) == ["success"], listed
    assert status.json["result"]["state"] == "unknown"
    for said in (status.json["result"]["detail"], *(each.stderr for each in logs), again.stderr):
        assert f"nodes/0/stream: {kind}, not a file" in said
    assert all(each.exit_code and "Traceback" not in each.stderr for each in (*logs, again))


def test_other_files_of_an_agent_are_not_waited_for_if_they_are_pipes(distlaunch: Cli) -> None:
    run = damaged(distlaunch, "a FIFO", "nodes/0/last_words", "nodes/0/stderr")
    stream = distlaunch.runs / run / "nodes/0/stream"
    stream.write_bytes(stream.read_bytes().splitlines(keepends=True)[0])

    assert distlaunch("status", run, timeout_s=LIMIT_S).exit_code == 0
    assert distlaunch("logs", run, timeout_s=LIMIT_S).exit_code == 0


def test_a_run_with_more_nodes_than_the_launchers_limit_of_open_files_is_followed_to_its_end(distlaunch: Cli) -> None:
    distlaunch.write("says.py", "import os\nprint('rank', os.environ['RANK'])\n")
    command = [sys.executable, "-m", "launcher", "local", "--nodes", "24", "--log-ranks", "all", "says.py"]
    limited = ["sh", "-c", 'ulimit -Sn 24; exec "$@"', "sh", *command]
    done = subprocess.run(
        limited, env=distlaunch.env(), cwd=distlaunch.directory, capture_output=True, timeout=150, check=False
    )

    assert done.returncode == 0, done.stderr
    assert recorded(distlaunch)["state"] == "success"
    assert {line.split()[-1] for line in done.stdout.splitlines()} == {str(rank).encode() for rank in range(24)}


@pytest.mark.parametrize("hard", [40, 4096])
def test_every_stream_is_read_whatever_the_limit_of_open_files(tmp_path: Path, hard: int) -> None:
    for node in range(64):
        (tmp_path / f"nodes/{node}").mkdir(parents=True)
        (tmp_path / f"nodes/{node}/stream").write_bytes(encode_event("heartbeat", node))
    script = f"""
import resource, sys
from pathlib import Path
from launcher.backends._files import FileStream
resource.setrlimit(resource.RLIMIT_NOFILE, (32, {hard}))
stream = FileStream(Path({str(tmp_path)!r}), 64, {{}})
first = stream.read(0)
for node in range(64):
    with open(f"{tmp_path}/nodes/{{node}}/stream", "ab") as file:
        file.write(b"more")
print(len(first), sum(chunk.data == b"more" for chunk in stream.read(0)), len(stream.read(0)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout == "64 64 0\n", done.stderr


def test_of_many_files_that_grow_at_once_little_is_in_memory_and_each_has_its_turn(tmp_path: Path) -> None:
    nodes, written = 300, 40_000
    for node in range(nodes):
        (tmp_path / f"nodes/{node}").mkdir(parents=True)
        (tmp_path / f"nodes/{node}/stream").write_bytes(bytes([node % 256]) * written)
    stream = FileStream(tmp_path, nodes, {})
    got, reads = Counter[int](), []
    while chunks := stream.read(0):
        reads.append(sum(len(chunk.data) for chunk in chunks))
        for chunk in chunks:
            assert isinstance(chunk.node, int)
            assert set(chunk.data) == {chunk.node % 256}
            got[chunk.node] += len(chunk.data)
        least = min(got[node] for node in range(nodes))
        assert max(got.values()) - least <= 1 << 13, "no file has two turns before all have one"
    stream.close()
    assert max(reads) < 1.1 * (1 << 20)
    assert got == dict.fromkeys(range(nodes), written)


LOUD = """
import os, pathlib, time
def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.01)
if os.environ["RANK"] == "1":
    wait_for("first")
for number in range(5000 if os.environ["RANK"] == "0" else 300):
    print(f"{number:0200}")
print("all", flush=True)
pathlib.Path("first" if os.environ["RANK"] == "0" else "second").touch()
wait_for("go")
"""
"""Rank 0 writes a megabyte, and then rank 1 half of what an end of a stream is."""


def test_attach_begins_with_as_many_lines_as_were_asked_for(distlaunch: Cli) -> None:
    distlaunch.write("loud.py", LOUD)
    run = distlaunch("local", "--detach", "--nproc-per-node", "2", "loud.py").stdout.strip()
    wait_until("both ranks", (distlaunch.directory / "second").exists)
    stream = distlaunch.runs / run / "nodes/0/stream"
    wait_until("their lines", lambda: stream.read_bytes().count(b"all\n") == 2)

    attached = Running(distlaunch.start("attach", run, "--tail", "3000", "--output", "jsonl"))
    attached.until('"type": "line"')
    distlaunch.write("go", "")

    assert attached.end() == 0
    shown = [json.loads(line) for line in attached.stdout.splitlines()]
    attached.close()
    lines = [each["text"] for each in shown if each["type"] == "line"]
    assert lines == [*(f"{number:0200}" for number in range(2001, 5000)), "all"]
