"""Coverage of all processes, none of which can notice it."""

from __future__ import annotations

import json
import marshal
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.plugins import coverage_report, measure, startup
from tests.plugins.subjects import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

CODE = """
import atexit, json, os, signal, sys, threading

def never():
    return 1

def in_main(x):
    if x:
        return 1
    return 2

def in_thread():
    return 3

def in_child():
    return 4

def killed():
    os.kill(os.getpid(), signal.SIGKILL)

def look():
    return {
        "trace": repr(sys.gettrace()), "hooks": atexit._ncallbacks(), "threads": len(os.listdir("/proc/self/task")),
        "files": len(os.listdir("/proc/self/fd")), "modules": sorted(sys.modules),
    }
"""
MAIN = """
import sys
sys.path.insert(0, "{root}/train")
import code_of_ours as ours, json, os, threading
print(json.dumps(ours.look()))
ours.in_main(1)
thread = threading.Thread(target=ours.in_thread)
thread.start()
thread.join()
pid = os.fork()
if pid == 0:
    ours.in_child()
    os._exit(0)
os.waitpid(pid, 0)
pid = os.fork()
if pid == 0:
    ours.killed()
os.waitpid(pid, 0)
"""


def line(text: str) -> int:
    """The number of the line of CODE that contains a text."""
    return next(number for number, each in enumerate(CODE.splitlines(), 1) if text in each)


def begin(directory: Path, *, by_test: bool = False) -> tuple[Path, Path]:
    """Make a checkout with one file of the project, and a directory for its lines."""
    root = directory / "root"
    (root / "train").mkdir(parents=True)
    (root / "train/code_of_ours.py").write_text(CODE)
    measure.prepare(directory / "coverage", by_test=by_test, root=root)
    return root, directory / "coverage"


def run(directory: Path, code: str, *, measured: bool = True, env: dict[str, str] | None = None) -> str:
    """Run another Python, with what its environment does as it starts."""
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.plugins import startup\n"
    start += f"startup.Lines({str(directory)!r}).start()\n" if measured else ""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    argv = (sys.executable, "-c", start + code)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env={**kept, **(env or {})}, check=True)
    return done.stdout


def test_lines_of_threads_forks_and_killed_processes_are_recorded(tmp_path: Path) -> None:
    root, directory = begin(tmp_path)

    run(directory, MAIN.format(root=root))

    (path,) = found = coverage_report.read(directory)
    assert path == "train/code_of_ours.py"
    ran = found[path]
    assert {line("if x:"), line(["return 1", "    return 2"][0])} & ran
    for text in ("if x:", "return 3", "return 4", "os.kill("):
        assert line(text) in ran, text
    assert line("return 2") not in ran
    measured = coverage_report.measure(found, root)
    assert measured.missing == {path: f"{line('def never') + 1}, {line('return 2')}"}
    assert coverage_report.totals(measured)["train"] == (measured.statements[path] - 2, measured.statements[path])


def test_no_process_can_tell_that_it_is_measured(tmp_path: Path) -> None:
    root, directory = begin(tmp_path)
    code = MAIN.format(root=root)

    measured, plain = (json.loads(run(directory, code, measured=each).splitlines()[0]) for each in (True, False))

    assert measured == plain
    assert measured["trace"] == "None"


def test_a_script_gets_the_trace_function_that_it_has_set(tmp_path: Path) -> None:
    _, directory = begin(tmp_path)
    code = "def mine(*_):\n    pass\nsys.settrace(mine)\nassert sys.gettrace() is mine\n"
    code += "sys.settrace(None)\nprint(sys.gettrace())\n"

    assert run(directory, code).split() == ["None"]


def test_lines_of_an_agent_count_for_the_file_that_it_was_packed_from(tmp_path: Path) -> None:
    root, directory = begin(tmp_path)
    (root / "launcher/agent/node").mkdir(parents=True)
    (root / "launcher/agent/node/agent.py").write_text("x = 1\ny = 2\n")
    measure.prepare(directory, by_test=False, root=root)
    code = (
        "for name in ('agent.pyz/distlaunch_agent/node/agent.py', '/tmp/r/agent.pyz/distlaunch_agent/node/agent.py'):\n"
    )
    code += "    exec(compile('x = 1\\n' if name[0] == 'a' else '\\ny = 2\\n', name, 'exec'))\n"

    run(directory, code)

    assert coverage_report.read(directory)["launcher/agent/node/agent.py"] == {1, 2}


def test_lines_are_recorded_for_each_test_that_ran_them(tmp_path: Path) -> None:
    root, directory = begin(tmp_path, by_test=True)
    code = f"sys.path.insert(0, '{root}/train')\nimport code_of_ours as ours\nours."
    for test, call in (("one", "in_main(1)"), ("two", "in_main(0)")):
        link = directory / "current/gw0"
        link.unlink(missing_ok=True)
        link.symlink_to(measure.key_of(test))
        run(directory, code + call, env={"PYTEST_XDIST_WORKER": "gw0"})
    run(directory, code + "in_thread()")  # as over SSH, where the test is unknown: it counts for those of all processes

    ran = {
        path.name: coverage_report.read_one(directory, path).get("train/code_of_ours.py", set())
        for path in (directory / "tests").iterdir()
    }
    assert line("if x:") in ran[measure.key_of("one")] & ran[measure.key_of("two")]
    assert line("return 2") in ran[measure.key_of("two")] - ran[measure.key_of("one")]
    assert line("return 3") in ran[measure.key_of("two")]


def test_a_process_continues_if_lines_cannot_be_recorded(tmp_path: Path) -> None:
    root, directory = begin(tmp_path)
    code = "import os\nos.chroot('/proc') if os.geteuid() == 0 else None\nours.in_main(1)\nprint('fine')\n"
    before = f"sys.path.insert(0, '{root}/train')\nimport code_of_ours as ours\n"

    assert run(directory, before + code).split() == ["fine"]


def test_two_runs_are_compared_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from coverage import CoverageData

    root, directory = begin(tmp_path)
    run(directory, f"sys.path.insert(0, '{root}/train')\nimport code_of_ours as ours\nours.in_main(1)\n")
    old = tmp_path / "old"
    old.mkdir()
    for number, name in enumerate((str(root / "train/code_of_ours.py"), "agent.pyz/distlaunch_agent/node/agent.py")):
        data = CoverageData(basename=str(old / f"data.{number}"))
        data.add_lines({name: [line("return 3"), line("return 4")]})
        data.write()

    assert coverage_report.main([f"{old}@{root}", f"{directory}@{root}"]) == 0

    (row,) = (each for each in capsys.readouterr().out.splitlines() if each.startswith("train  "))
    words = row.split()
    assert words[1:4] == ["2", "of", words[3]]
    assert words[-1].startswith("+")
    assert coverage_report.main([]) == 2


def test_the_mark_of_a_run_that_has_exited_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    dead = subprocess.Popen(("true",))
    dead.wait(timeout=20)
    _, directory = begin(tmp_path)
    mark = measure.Mark()
    mark.path.write_text(f"{directory}\n{dead.pid}\n")
    assert mark.owner() == ""
    assert startup.measure() is None

    other = subprocess.Popen(("sleep", "60"))
    try:
        mark.path.write_text(f"{directory}\n{other.pid}\n")
        assert mark.owner() == str(other.pid)
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait(timeout=20)
    assert marshal.loads((directory / "index").read_bytes())["by_test"] is False
