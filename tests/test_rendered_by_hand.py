"""`--render-to`, and `sh start.sh` in a shell that knows nothing of the launcher: the same run as a submission."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.protocol import Decoder, Event, Output
from tests.forked import started

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli

SHOWS_ITSELF = """
import json, os, sys
parents = [os.getppid()]
while b"--node-rank" not in (line := open(f"/proc/{parents[-1]}/cmdline", "rb").read()):
    parents.append(int(open(f"/proc/{parents[-1]}/stat").read().rpartition(")")[2].split()[1]))
agent = [part.decode() for part in line.rstrip(b"\\0").split(b"\\0")]
print(json.dumps({"argv": sys.argv, "cwd": os.getcwd(), "path": sys.path[0], "agent": agent, "env": dict(os.environ)}))
if sys.argv[1:] == ["fails"] and os.environ["RANK"] == "3":
    sys.exit(7)
if sys.argv[1:] == ["waits"]:
    import signal
    signal.pause()
"""
"""Prints what a worker can see of how it was started."""

OWN = re.compile(
    "MASTER_PORT|TORCHELASTIC_ERROR_FILE|DISTLAUNCH_(DEADLINE|PROGRESS)_FILE|TORCHELASTIC_RUN_ID|PYTHONPATH"
    "|DISTLAUNCH_(RUNS_DIR|SYSTEM_CONFIG)|OLDPWD|_|SHLVL|PWD"
)
"""Variables that differ in each start, and those of the shell."""


def shown(lines: dict[int, bytes], names: dict[str, str]) -> dict[int, Any]:
    """What each rank has printed, with `names`, which differ from run to run, replaced."""
    found = {}
    for rank, line in lines.items():
        text = line.decode()
        for name, instead in names.items():
            text = text.replace(name, instead)
        about = json.loads(text)
        about["env"] = {name: value for name, value in about["env"].items() if not OWN.fullmatch(name)}
        about["env"]["DISTLAUNCH_GIVEN"] = re.sub(r":[0-9a-f]{8}\b", "", about["env"]["DISTLAUNCH_GIVEN"])
        # The launcher adds this option, once the run is on record.
        argv = [part for part in about["agent"] if part != "--when-told"]
        about["agent"] = [part.rpartition("/")[2] if "DIRECTORY" in part else part for part in argv]
        found[rank] = about
    return found


def by_hand(directory: Path, cwd: Path) -> tuple[int, list[Any]]:
    """Run `sh start.sh` in a shell without the launcher; return its exit code and the records of its stream."""
    removed = cwd / "removed/launcher/__init__.py"
    removed.parent.mkdir(parents=True, exist_ok=True)
    removed.write_text("raise ImportError('the launcher was removed')\n")
    env = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "TOKEN": "secret", "PYTHONPATH": str(cwd / "removed")}
    done = subprocess.run(["sh", f"{directory}/start.sh"], cwd="/", env=env, stdout=subprocess.PIPE, timeout=180)
    decoder = Decoder()
    return done.returncode, [*decoder.feed(done.stdout), *decoder.close()]


def test_the_rendered_plan_runs_by_hand_and_is_what_is_submitted(distlaunch: Cli, tmp_path: Path) -> None:
    distlaunch.write("work/tells.py", SHOWS_ITSELF)
    argv = [
        "local",
        "--nodes",
        "2",
        "--nproc-per-node",
        "2",
        "--env",
        "PLAIN=seen",
        "--secret",
        "TOKEN",
        "--log-ranks",
        "all",
    ]
    env: dict[str, str | None] = dict.fromkeys(os.environ) | {
        "PATH": "/usr/bin:/bin",
        "TOKEN": "secret",
        "HOME": str(tmp_path),
    }
    work = tmp_path / "work"

    rendered = distlaunch(*argv, "--render-to", "by hand", "tells.py", cwd=work, env=env)
    sent = distlaunch(*argv, "tells.py", cwd=work, env=env)

    assert (rendered.exit_code, sent.exit_code) == (0, 0), rendered.stderr + sent.stderr
    assert rendered.stdout.splitlines() == [f"by hand/{name}" for name in ("spec.json", "start.sh", "agent.pyz", "key")]
    (run,) = distlaunch.runs.iterdir()  # the submission's: rendering makes none
    shutil.move(work / "by hand", tmp_path / "moved, it's here")
    directory = tmp_path / "moved, it's here"
    # The same files, except for the name of the run and that they may be moved.
    assert (directory / "agent.pyz").read_bytes() == (run / "agent.pyz").read_bytes()
    spec = (directory / "spec.json").read_text()
    name = json.loads(spec)["run"]
    # Each has a key of its own, which no other user can read and which is printed nowhere.
    keys = [(path / "key").read_text().strip() for path in (directory, run)]
    assert {(path / "key").stat().st_mode & 0o777 for path in (directory, run)} == {0o600}
    assert len(set(keys)) == 2
    kept = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "key")
    printed = rendered.stdout + rendered.stderr + sent.stdout + sent.stderr + spec
    assert not any(key.encode() in kept + printed.encode() for key in keys)
    assert spec.replace(name, run.name).replace(',\n  "may_move": true', "") == (run / "spec.json").read_text()
    # The same processes.
    code, records = by_hand(directory, tmp_path)
    assert code == 0
    lines = {record.rank: record.data for record in records if isinstance(record, Output)}
    theirs = {int(line[3]): line[6:].encode() for line in sent.stdout.splitlines()}
    assert sorted(lines) == sorted(theirs) == [0, 1, 2, 3]
    assert shown(lines, {str(directory): "DIRECTORY", name: "RUN"}) == shown(
        theirs, {str(run): "DIRECTORY", run.name: "RUN"}
    )
    # Once more in the same directory.
    assert by_hand(directory, tmp_path)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "limit", "code", "result"), [(["fails"], "10m", 1, "failed"), (["waits"], "10s", 124, "timeout")]
)
def test_a_plan_that_is_run_by_hand_ends_with_the_runs_exit_code(
    distlaunch: Cli, options: list[str], limit: str, code: int, result: str
) -> None:
    distlaunch.write("tells.py", SHOWS_ITSELF)
    how = ["--nodes", "2", "--nproc-per-node", "2", "--time", limit, "--render-to", "by hand"]
    assert distlaunch("local", *how, "tells.py", *options).exit_code == 0

    ended, records = by_hand(distlaunch.directory / "by hand", distlaunch.directory)

    assert ended == code
    done = {
        record.fields["node"]: record.fields
        for record in records
        if isinstance(record, Event) and record.name == "done"
    }
    assert [done[node]["result"] for node in (0, 1)] == [result] * 2
    assert result == "timeout" or done[1]["cause"]["exit_code"] == 7


def test_each_start_by_hand_is_a_run_of_its_own(distlaunch: Cli) -> None:
    script = distlaunch.write("tells.py", "print('begun')\n")
    for name, options in (("fixed", ["--nodes", "2"]), ("elastic", ["--nodes", "1:2"])):
        assert distlaunch("local", *options, "--render-to", name, "tells.py").exit_code == 0
    script.rename(distlaunch.directory / "elsewhere.py")
    missing, _ = by_hand(distlaunch.directory / "fixed", distlaunch.directory)
    (distlaunch.directory / "elsewhere.py").rename(script)

    again = [by_hand(distlaunch.directory / name, distlaunch.directory) for name in ("fixed", "elastic", "elastic")]

    assert missing == 1
    lines = [[record.data for record in records if isinstance(record, Output)] for _, records in again]
    assert [code for code, _ in again] == [0, 0, 0]
    assert all(said and set(said) == {b"begun"} for said in lines), "what the start before has left is not believed"


LOSES = """
import json, os, pathlib, signal, sys, time
at, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]
(at / f"new{rank}").write_text(str(os.getpid()))
(at / f"new{rank}").rename(at / rank)
others = [str(other) for other in range(1, int(os.environ["WORLD_SIZE"]))] if rank == "0" else []
while not all((at / other).exists() for other in others):
    time.sleep(0.05)
while any(os.path.exists("/proc/" + (at / other).read_text()) for other in others):
    time.sleep(0.05)
for other in others:
    time.sleep(1.0)  # it counts as finished
    os.kill(json.loads((at / "by hand/nodes" / other / "agent.json").read_text())["pid"], signal.SIGKILL)
"""
"""Node 0 kills the agents of all others, whose workers have succeeded."""


@pytest.mark.parametrize(("nodes", "code"), [("2:3", 0), ("2", 1)])
def test_by_hand_too_nodes_that_are_lost_after_they_have_finished_fail_no_elastic_run(
    distlaunch: Cli, nodes: str, code: int
) -> None:
    distlaunch.write("loses.py", LOSES)
    how = ("--nodes", nodes, "--nproc-per-node", "1", "--render-to", "by hand")
    assert distlaunch("local", *how, "loses.py", str(distlaunch.directory)).exit_code == 0

    assert by_hand(distlaunch.directory / "by hand", distlaunch.directory)[0] == code


@pytest.mark.parametrize("interpreter", ['exec "{}" "$@"', '"{}" "$@"'], ids=["python", "below a script"])
def test_ctrl_c_ends_a_plan_that_is_run_by_hand(distlaunch: Cli, interpreter: str) -> None:
    distlaunch.write("python", "#!/bin/sh\n" + interpreter.format(sys.executable) + "\n").chmod(0o755)
    distlaunch.write("tells.py", SHOWS_ITSELF)
    how = ["--nodes", "2", "--python", "./python", "--render-to", "by hand"]
    assert distlaunch("local", *how, "tells.py", "waits").exit_code == 0
    with started(["sh", "by hand/start.sh"], cwd=distlaunch.directory, stdout=subprocess.PIPE) as shell:
        assert shell.stdout
        printed = [next(line for line in shell.stdout if b'"argv"' in line) for _ in range(2)]
        shell.send_signal(signal.SIGINT)
        rest = shell.stdout.read()

    assert len(printed) == 2
    assert shell.returncode == 130
    assert rest.count(b'"result":"cancelled"') == 2


@pytest.mark.torch
def test_a_rendered_directory_contains_the_bundled_script(distlaunch: Cli, tmp_path: Path) -> None:
    rendered = distlaunch("local", "--nproc-per-node", "2", "--render-to", "by hand", "reduce.py")
    assert rendered.exit_code == 0, rendered.stderr

    code, records = by_hand(distlaunch.directory / "by hand", tmp_path)

    printed = [record.data.decode() for record in records if isinstance(record, Output) and b"after" in record.data]
    assert (code, len(printed)) == (0, 2)
    assert all(line.endswith("after 3") for line in printed), printed
    assert json.loads((tmp_path / "by hand/spec.json").read_text())["command"][0].endswith("/payload/reduce.py")
