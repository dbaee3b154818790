"""The whole path, as a newcomer walks it: a command in an empty directory, and what comes of it."""

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


@pytest.mark.torch
def test_the_bundled_trainer_learns_the_digits_on_two_simulated_nodes(distlaunch: Cli, tmp_path: Path) -> None:
    done = distlaunch("local", "--nodes", "2", "train.py", "--out", "a run's directory")

    assert done.exit_code == 0, done.stderr
    accuracy = re.search(r"test accuracy ([\d.]+)%", done.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 97
    assert "samples" in done.stdout
    metrics = [json.loads(line) for line in (tmp_path / "a run's directory/metrics.jsonl").read_text().splitlines()]
    assert metrics
    assert "using the bundled train.py" in done.stderr
    assert "nanobind" not in done.stderr


@pytest.mark.torch
def test_reduce_gives_ten_on_each_of_four_ranks(distlaunch: Cli) -> None:
    done = distlaunch("local", "--nodes", "2", "--nproc-per-node", "2", "--log-ranks", "all", "reduce.py")

    assert done.exit_code == 0, done.stderr
    assert sorted(re.findall(r"\[(\d):(\d)\] rank (\d)/4 on \S+: before (\d), after 10", done.stdout)) == [
        ("0", "0", "0", "1"), ("0", "1", "1", "2"), ("1", "2", "2", "3"), ("1", "3", "3", "4"),
    ]  # fmt: skip


SHOWS_SECRET = """
import glob, os
value = os.environ["TOKEN"].encode()
def read(path):
    try:
        return open(path, "rb").read()
    except OSError:
        return b""
lines = [path for path in glob.glob("/proc/[0-9]*/cmdline") if value in read(path)]
print(len(value), os.environ["PLAIN"], lines)
"""


def test_a_secret_reaches_the_workers_and_no_file_and_no_command_line(distlaunch: Cli, tmp_path: Path) -> None:
    distlaunch.write("show.py", SHOWS_SECRET)
    value = "hunter2-" + "x" * 20
    env: dict[str, str | None] = {"TOKEN": value}

    done = distlaunch("local", "--secret", "TOKEN", "--env", "PLAIN=seen", "show.py", env=env)
    dry = distlaunch("local", "--dry-run", "--secret", "TOKEN", "show.py", env=env)
    rendered = distlaunch("local", "--render-to", "rendered", "--secret", "TOKEN", "show.py", env=env)

    assert done.stdout == "28 seen []\n"
    assert (dry.exit_code, rendered.exit_code) == (0, 0)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and value.encode() in path.read_bytes()]
    assert files == []
    assert value not in dry.stdout + dry.stderr + rendered.stdout + rendered.stderr


TELLS = """
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
"""What a worker can see of how it was started."""

OWN = re.compile(
    "MASTER_PORT|TORCHELASTIC_ERROR_FILE|DISTLAUNCH_DEADLINE_FILE|TORCHELASTIC_RUN_ID|PYTHONPATH|DISTLAUNCH_(RUNS_DIR|SYSTEM_CONFIG)|OLDPWD|_|SHLVL|PWD"
)
"""Variables that are another start's by their nature, or the shell's."""


def told(lines: dict[int, bytes], names: dict[str, str]) -> dict[int, Any]:
    """What each rank has said of itself, with its directory's and its run's names replaced by the same ones everywhere."""
    found = {}
    for rank, line in lines.items():
        text = line.decode()
        for name, instead in names.items():
            text = text.replace(name, instead)
        about = json.loads(text)
        about["env"] = {name: value for name, value in about["env"].items() if not OWN.fullmatch(name)}
        argv = [part for part in about["agent"] if part != "--when-told"]  # by the launcher, once it is on record
        about["agent"] = [part.rpartition("/")[2] if "DIRECTORY" in part else part for part in argv]
        found[rank] = about
    return found


def by_hand(directory: Path, cwd: Path) -> tuple[int, list[Any]]:
    """`sh start.sh` in a shell that knows nothing of the launcher: how it ends, and what its stream says."""
    gone = cwd / "gone/launcher/__init__.py"
    gone.parent.mkdir(parents=True, exist_ok=True)
    gone.write_text("raise ImportError('the launcher is gone')\n")
    env = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "TOKEN": "secret", "PYTHONPATH": str(cwd / "gone")}
    done = subprocess.run(["sh", f"{directory}/start.sh"], cwd="/", env=env, stdout=subprocess.PIPE, timeout=180)
    decoder = Decoder()
    return done.returncode, [*decoder.feed(done.stdout), *decoder.close()]


def test_the_rendered_plan_runs_by_hand_and_is_what_a_submission_sends(distlaunch: Cli, tmp_path: Path) -> None:
    distlaunch.write("work/tells.py", TELLS)
    argv = ["local", "--nodes", "2", "--nproc-per-node", "2", "--env", "PLAIN=seen", "--secret", "TOKEN", "--log-ranks", "all"]
    env: dict[str, str | None] = dict.fromkeys(os.environ) | {"PATH": "/usr/bin:/bin", "TOKEN": "secret", "HOME": str(tmp_path)}
    work = tmp_path / "work"

    rendered = distlaunch(*argv, "--render-to", "by hand", "tells.py", cwd=work, env=env)
    sent = distlaunch(*argv, "tells.py", cwd=work, env=env)

    assert (rendered.exit_code, sent.exit_code) == (0, 0), rendered.stderr + sent.stderr
    assert rendered.stdout.splitlines() == [f"by hand/{name}" for name in ("spec.json", "start.sh", "agent.pyz", "key")]
    (run,) = distlaunch.runs.iterdir()  # the submission's: rendering makes none
    shutil.move(work / "by hand", tmp_path / "moved, it's here")
    directory = tmp_path / "moved, it's here"
    # The same files, but for the names of the run and that they may be moved.
    assert (directory / "agent.pyz").read_bytes() == (run / "agent.pyz").read_bytes()
    spec = (directory / "spec.json").read_text()
    name = json.loads(spec)["run"]
    # A key of its own, that nobody else can read, and that is told nowhere.
    keys = [(path / "key").read_text().strip() for path in (directory, run)]
    assert {(path / "key").stat().st_mode & 0o777 for path in (directory, run)} == {0o600}
    assert len(set(keys)) == 2
    kept = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "key")
    said = rendered.stdout + rendered.stderr + sent.stdout + sent.stderr + spec
    assert not any(key.encode() in kept + said.encode() for key in keys)
    assert spec.replace(name, run.name).replace(',\n  "may_move": true', "") == (run / "spec.json").read_text()
    # The same processes.
    code, records = by_hand(directory, tmp_path)
    assert code == 0
    lines = {record.rank: record.data for record in records if isinstance(record, Output)}
    theirs = {int(line[3]): line[6:].encode() for line in sent.stdout.splitlines()}
    assert sorted(lines) == sorted(theirs) == [0, 1, 2, 3]
    assert told(lines, {str(directory): "DIRECTORY", name: "RUN"}) == told(theirs, {str(run): "DIRECTORY", run.name: "RUN"})
    # Once more in the same directory.
    assert by_hand(directory, tmp_path)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "limit", "code", "result"), [(["fails"], "10m", 1, "failed"), (["waits"], "10s", 124, "timeout")]
)
def test_a_plan_that_is_run_by_hand_ends_with_the_runs_exit_code(
    distlaunch: Cli, options: list[str], limit: str, code: int, result: str
) -> None:
    distlaunch.write("tells.py", TELLS)
    how = ["--nodes", "2", "--nproc-per-node", "2", "--time", limit, "--render-to", "by hand"]
    assert distlaunch("local", *how, "tells.py", *options).exit_code == 0

    ended, records = by_hand(distlaunch.directory / "by hand", distlaunch.directory)

    assert ended == code
    done = {record.fields["node"]: record.fields for record in records if isinstance(record, Event) and record.name == "done"}
    assert [done[node]["result"] for node in (0, 1)] == [result] * 2
    assert result == "timeout" or done[1]["cause"]["exit_code"] == 7


@pytest.mark.parametrize("interpreter", ['exec "{}" "$@"', '"{}" "$@"'], ids=["python", "below a script"])
def test_ctrl_c_ends_a_plan_that_is_run_by_hand(distlaunch: Cli, interpreter: str) -> None:
    distlaunch.write("python", "#!/bin/sh\n" + interpreter.format(sys.executable) + "\n").chmod(0o755)
    distlaunch.write("tells.py", TELLS)
    how = ["--nodes", "2", "--python", "./python", "--render-to", "by hand"]
    assert distlaunch("local", *how, "tells.py", "waits").exit_code == 0
    with started(["sh", "by hand/start.sh"], cwd=distlaunch.directory, stdout=subprocess.PIPE) as shell:
        assert shell.stdout
        said = [next(line for line in shell.stdout if b'"argv"' in line) for _ in range(2)]
        shell.send_signal(signal.SIGINT)
        rest = shell.stdout.read()

    assert len(said) == 2
    assert shell.returncode == 130
    assert rest.count(b'"result":"cancelled"') == 2


@pytest.mark.torch
def test_a_bundled_script_is_in_the_directory_that_is_run_by_hand(distlaunch: Cli, tmp_path: Path) -> None:
    rendered = distlaunch("local", "--nproc-per-node", "2", "--render-to", "by hand", "reduce.py")
    assert rendered.exit_code == 0, rendered.stderr

    code, records = by_hand(distlaunch.directory / "by hand", tmp_path)

    said = [record.data.decode() for record in records if isinstance(record, Output) and b"after" in record.data]
    assert (code, len(said)) == (0, 2)
    assert all(line.endswith("after 3") for line in said), said
    assert json.loads((tmp_path / "by hand/spec.json").read_text())["command"][0].endswith("/payload/reduce.py")


@pytest.mark.slow
def test_a_full_disk_costs_lines_and_not_the_run_and_is_one_clear_error_before_one(small_disk: Path, distlaunch: Cli) -> None:
    flood = "import sys\nfor _ in range(1000):\n    print('x' * 10_000)\n"
    distlaunch.write("flood.py", flood + "if len(sys.argv) > 1:\n    raise ValueError('in the end')\n")
    distlaunch.write("small.py", "")
    env: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(small_disk / "runs")}

    failed = distlaunch("local", "flood.py", "fail", env=env)
    status = distlaunch("status", "last", env=env)
    asked = json.loads(distlaunch("status", "last", "--output", "json", env=env).stdout)["result"]
    before = distlaunch("local", "flood.py", env=env)
    listed = distlaunch("ls", env=env)
    shutil.rmtree(small_disk / "runs")
    fine = distlaunch("local", "flood.py", env=env)
    fine_state = distlaunch("ls", env=env)

    assert failed.exit_code == 1
    assert "the script failed: ValueError: in the end" in failed.stderr
    assert f"{asked['nodes'][0]['lines_lost']:,} lines were not kept" in failed.stderr
    assert re.search(r"lines( of rank 0)? were not kept: the disk of the run directory is full", failed.stderr)
    assert "ValueError: in the end" in status.stdout
    assert f"{asked['nodes'][0]['lines_lost']:,} lines were not kept" in status.stdout
    assert 700 < asked["nodes"][0]["lines_lost"] <= 1005, "what the traceback has is lines, too"
    assert before.exit_code == 4
    assert "No space left on device" in before.stderr
    assert "DISTLAUNCH_RUNS_DIR" in before.stderr
    assert "failed" in listed.stdout
    assert fine.exit_code == 0, fine.stderr
    assert "lines were not kept" in fine.stderr
    assert "success" in fine_state.stdout


@pytest.mark.slow
def test_who_follows_a_run_hears_of_a_full_disk_while_it_is_full(small_disk: Path, distlaunch: Cli) -> None:
    distlaunch.write("flood.py", "import signal\nprint('x\\n' * 3_000_000, flush=True)\nsignal.pause()\n")
    env: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(small_disk / "runs")}
    with distlaunch.start("local", "flood.py", env=env, stdout=subprocess.DEVNULL) as process:
        assert process.stderr
        said = next((line for line in process.stderr if b"lines were not kept" in line), b"")
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()

    assert re.match(rb"warning: node 0 \(\S+\): [\d,]+ lines were not kept: the disk of the run directory is full\n", said)
    assert process.wait() == 130, rest


def test_a_run_whose_disk_is_full_can_be_cancelled(small_disk: Path, distlaunch: Cli) -> None:
    distlaunch.write("flood.py", "import signal\nprint('x\\n' * 3_000_000, flush=True)\nsignal.pause()\n")
    env: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(small_disk / "runs")}
    run = distlaunch("local", "--detach", "flood.py", env=env).stdout.strip()
    for _ in range(200):
        state = json.loads(distlaunch("status", run, "--output", "json", env=env).stdout)["result"]
        if state["nodes"] and state["nodes"][0]["lines_lost"]:
            break

    done = distlaunch("cancel", run, env=env)

    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"{run}: cancelled\n"
    assert "No space left on device; cancelling without a note of it" in done.stderr
