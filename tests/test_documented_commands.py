"""Every command of the documentation's shell blocks is run as it stands there, only smaller: fewer ranks, less data, one epoch.

What needs a cluster of its own runs by its plan (`--dry-run`), and its script with the same arguments on this machine. A command
that nobody here knows how to run fails.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from testbed.running import Running
from tests.benchmarks.test_benchmarks import SMALLEST, SMALLEST_ON_CLUSTERS
from tests.command import ROOT
from tests.tutorial import PAGES, form

if TYPE_CHECKING:
    from testbed import Slurm
    from tests.command import Cli
    from tests.forked import Server

WAYS = {
    "here": r"(scripts/)?distlaunch local ",
    "on a cluster": r"distlaunch (slurm|ansible|k8s) ",
    "doctor": r"distlaunch doctor --on lab ",
    "after a run": r"distlaunch status last; ",
    "without the launcher": r"(torchrun|python train/)",
    "benchmark": r"\.venv/bin/python benchmarks/",
    "tests": r"scripts/test\b",
    "lint": r"scripts/(lint|prose|schema|docs build|docs serve)$",
    "other versions": r"scripts/matrix\b",
    "testbed": r"python -m testbed up ",
    "testbed's own": r"python -m testbed (build|clean)$",
    "in a testbed": r"(export SLURM_CONF=|srun |ssh -F |ansible --inventory )",
    "an extra": r"pip install '\.\[\w+\]'$",
    "to compare with": r"uv pip install --python \.venv torchx$",
    "by hand": r"(cd DIR && sh start\.sh|ansible-playbook -i hosts\.ini -e @env/extravars project/status\.yml)$",
}
"""By how it is run: what such a line looks like."""

LESS = {
    "train.py": "--epochs 1 --samples 64 --batch-size 4 --image-shape 3x32x32 --model resnet18",
    "train.py on digits": "--epochs 1",
    "collectives.py": "--min-size 1K --max-size 1K --seconds 0.01 --warmup 1",
    "collectives.py --lesson": "--max-size 64K",
    "reduce.py": "",
}
"""What is added to a script's arguments, the last of which count."""


class Line(NamedTuple):
    """One line of a shell block, without its comment."""

    file: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}: {self.text}"


def documented() -> list[Line]:
    """All lines of all blocks; of a session in a terminal, those that were typed. Tutorials have a test of their own."""
    found = []
    for path in sorted({ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")} - {*PAGES}):
        for kind, block in re.findall(
            r"^```(bash|sh|shell|console)\n(.*?)^```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL
        ):
            typed = [line.removeprefix("$ ") for line in block.splitlines() if kind != "console" or line.startswith("$ ")]
            lines = [re.sub(r"(^|\s+)#.*", "", line).strip() for line in typed]
            found += [Line(str(path.relative_to(ROOT)), line) for line in lines if line]
    return list(dict.fromkeys(found))


def ways_of(line: Line) -> list[str]:
    return [way for way, pattern in WAYS.items() if re.match(pattern, line.text)]


def lines(way: str) -> list[Line]:
    return [line for line in documented() if way in ways_of(line)]


def every(way: str) -> pytest.MarkDecorator:
    """A test with each line that is run in this way."""
    once = {line.text: line for line in lines(way)}
    return pytest.mark.parametrize("line", once.values(), ids=once)


def smaller(words: list[str], workers: int = 2) -> list[str]:
    """The same with at most so many workers on a node, and less to do."""
    script = next(index for index, word in enumerate(words) if word.endswith(".py"))
    ours, args = list(words[:script]), words[script + 1 :]
    if "--nproc-per-node" in ours:
        where = ours.index("--nproc-per-node") + 1
        ours[where] = str(min(workers, int(ours[where])))
    name = Path(words[script]).name
    if name == "train.py" and "--data" not in args:
        name += " on digits"
    elif "--lesson" in args:
        name += " --lesson"
    return [*ours, words[script], *args, *LESS[name].split()]


def test_every_documented_command_is_run_in_one_way() -> None:
    found = documented()

    assert len(found) > 40
    assert {str(line): ways_of(line) for line in found if len(ways_of(line)) != 1} == {}
    assert [way for way in WAYS if not lines(way)] == []


def shown_of(line: Line) -> list[str]:
    """What a session in a terminal shows after that command, in the form of a run on this machine; nothing for others."""
    text = (ROOT / line.file).read_text("utf-8")
    shown = re.findall(rf"^```console\n\$ {re.escape(line.text)}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return form(re.sub(r"\bvm\b", socket.gethostname(), shown[0])) if shown else []


@pytest.mark.torch
@every("here")
def test_what_runs_here(distlaunch: Cli, line: Line) -> None:
    program, *words = smaller(shlex.split(line.text))

    if program == "distlaunch":
        done = distlaunch(*words)
        code, stderr = done.exit_code, done.stderr
        assert shown_of(line) in ([], form(done.stderr + done.stdout)), done
    else:
        asked = subprocess.run(
            [ROOT / program, *words], cwd=distlaunch.directory, env=distlaunch.env(), capture_output=True, text=True
        )
        code, stderr = asked.returncode, asked.stderr

    assert code == 0, stderr
    assert "\nsuccess after " in stderr
    assert "goes to the script" not in stderr


@every("on a cluster")
def test_what_runs_on_a_cluster_is_planned(distlaunch: Cli, line: Line) -> None:
    (distlaunch.directory / "hosts").write_text("n1\nn2\n")
    shutil.copy(distlaunch.directory / "hosts", distlaunch.directory / "hosts.ini")
    _, backend, *words = shlex.split(line.text)

    done = distlaunch(backend, "--dry-run", "--output", "json", *words)

    assert done.exit_code == 0, done.stderr
    assert "go to the script" not in done.stderr
    wanted = int(words[words.index("--nodes") + 1]) if "--nodes" in words else 2
    assert len(done.json["result"]["nodes"]) == wanted


def scripts_arguments() -> list[str]:
    """The arguments of scripts that clusters run, each once, where this machine has not run the same."""
    found = []
    for line in lines("on a cluster"):
        words = smaller(shlex.split(line.text))
        script = next(index for index, word in enumerate(words) if word.endswith(".py"))
        found.append(shlex.join(words[script:]))
    return sorted(set(found) - {shlex.join(["reduce.py"])})


@pytest.mark.torch
@pytest.mark.parametrize("words", scripts_arguments())
def test_scripts_of_clusters_take_their_arguments(distlaunch: Cli, torch_server: Server, words: str) -> None:
    script, *args = shlex.split(words)
    if script == "train.py":  # that it trains is shown elsewhere
        argv = [sys.executable, str(ROOT / "train/train.py"), *args, "--print-config"]
        done = torch_server.run(argv, cwd=distlaunch.directory, env=distlaunch.env(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return
    ran = distlaunch("local", "--nproc-per-node", "2", script, *args)
    assert ran.exit_code == 0, ran.stderr
    written = [word for word in args if word.endswith((".svg", ".json"))]
    assert [name for name in written if not (distlaunch.directory / name).stat().st_size] == []


@every("doctor")
def test_doctor(distlaunch: Cli, slurm: Slurm, line: Line) -> None:
    """On a cluster of the documented name."""
    distlaunch.write("distlaunch.toml", '[clusters.lab]\nbackend = "slurm"\n')
    words = shlex.split(line.text)[1:]
    words[words.index("--nodes") + 1] = "2"

    done = distlaunch(*words, "--seconds", "0", "--nproc-per-node", "1", env={**slurm.env()})

    assert done.exit_code in (0, 1), done.stderr  # 1: this machine has something that is wrong
    assert done.stdout.startswith("HOST ")


@every("after a run")
def test_what_looks_at_a_run(distlaunch: Cli, line: Line) -> None:
    distlaunch.write("x.py", "print('from a worker')\n")
    assert distlaunch("local", "x.py").exit_code == 0

    done = [distlaunch(*shlex.split(part)[1:]) for part in line.text.split(";")]

    assert [one.exit_code for one in done] == [0, 0, 0], done
    assert "from a worker" in done[1].stdout


@pytest.mark.torch
@every("without the launcher")
def test_without_the_launcher(tmp_path: Path, line: Line) -> None:
    from PIL import Image

    for index in range(16):
        photo = tmp_path / f"photos/{'ab'[index % 2]}/{index}.png"
        photo.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), (index * 15, 0, 0)).save(photo)
    (tmp_path / "train").symlink_to(ROOT / "train")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    parts = [shlex.split(part) for part in line.text.split("&&")]

    for words in parts:
        small = smaller(words, workers=1) if words[0] == "torchrun" else words
        done = subprocess.run(small, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    assert any((tmp_path / "results").iterdir())


@every("benchmark")
def test_benchmarks_are_run_by_their_tests(line: Line) -> None:
    """With options that make them small; the documented command has none."""
    (name,) = re.findall(r"^\.venv/bin/python benchmarks/(\w+\.py)$", line.text)

    assert name in {**SMALLEST, **SMALLEST_ON_CLUSTERS}


@pytest.mark.torch
@every("other versions")
def test_ways_to_run_them_under_other_versions_name_some(line: Line) -> None:
    """Nothing is run, and nothing installed."""
    program, *words = shlex.split(line.text)
    done = subprocess.run([ROOT / program, *words, "--list"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) >= {*words, "torch-2.4"}


@every("tests")
def test_ways_to_run_tests_select_some(tmp_path: Path, line: Line) -> None:
    """Nothing is run: this is a run of them."""
    if "changed" in line.text and not (ROOT / ".git").exists():
        pytest.skip("what has changed is known in a checkout only")
    program, *words = shlex.split(line.text)
    env = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTEST_ADDOPTS")}
    env |= {"DISTLAUNCH_TEST_RESULTS": str(tmp_path)}

    done = subprocess.run([ROOT / program, *words, "--collect-only", "-q"], cwd=ROOT, env=env, capture_output=True, text=True)

    nothing = done.returncode in (0, 5) and "changed" in line.text and "no tests collected" in done.stdout  # nothing has changed
    assert done.returncode == 0 or nothing, done.stdout[-2000:] + done.stderr[-2000:]
    assert nothing or "tests/" in done.stdout


@every("lint")
def test_what_lint_runs_is_there(line: Line) -> None:
    """Lint is run before the tests, by .ci/run; tests/test_schema.py looks at what the schemas are made from."""
    assert os.access(ROOT / line.text.split()[0], os.X_OK)


FEWER = {
    "--hosts 8": "--hosts 4",
    "--switches 4,4": "--switches 2,2",
    "--gpus 8": "--gpus 1",
    "--simulated 1000": "--simulated 5",
}


@pytest.mark.testbed
@pytest.mark.k8s
@pytest.mark.timeout(300)
@every("testbed")
def test_testbeds_come_up_and_are_taken_down(line: Line) -> None:
    """In the one with hosts that have sshd and Slurm, the commands that it prints are those of the documentation, and run."""
    if os.geteuid():
        pytest.skip("a testbed needs root")
    text = line.text
    for many, few in FEWER.items():
        text = text.replace(many, few)
    words = [sys.executable, *shlex.split(text)[1:]]
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    up = Running(subprocess.Popen(words, cwd=ROOT, stdin=none, stdout=pipe, stderr=pipe, start_new_session=True))
    try:
        up.until("Ctrl-C takes everything down.")
        if "--ssh" in text:
            in_it(up.stdout)
        up.process.send_signal(signal.SIGINT)
        assert up.end() == 0, str(up)
    finally:
        up.close()
    assert "taken down" in up.stdout


def in_it(said: str) -> None:
    """Run what the documentation has typed in a testbed's other shell."""
    (directory,) = re.findall(r"^files and logs: (.*)$", said, re.MULTILINE)
    typed = "\n".join(re.sub(r"/tmp/distlaunch-testbed-\w+", directory, line.text) for line in lines("in a testbed"))
    shown = {text.strip() for text in said.splitlines()}
    assert [text for text in typed.splitlines() if text not in shown] == []
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = ["sh", "-ec", typed]
    done = subprocess.run(script, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(done.stdout.split()) >= {"n1", "n2", "n3", "n4"}
    assert '"ping": "pong"' in done.stdout


@pytest.mark.testbed
@pytest.mark.k8s
@every("testbed's own")
def test_the_testbeds_other_commands(line: Line) -> None:
    if os.geteuid():
        pytest.skip("a testbed needs root")
    words = [sys.executable, *shlex.split(line.text)[1:]]

    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)

    assert done.returncode == 0 or "build" in words, done.stderr  # without Go nothing can be built, which it says
    assert done.returncode == 0 or done.stderr.startswith("error: "), done.stderr


@every("an extra")
def test_extras_that_are_installed_exist(line: Line) -> None:
    """The installation itself is not run: it would change this environment; that of a wheel is in tests/test_wheel.py."""
    (name,) = re.findall(r"\[(\w+)\]", line.text)

    assert re.search(rf"^{name} = \[", (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)


@every("to compare with")
def test_what_is_compared_with_is_what_benchmarks_look_for(line: Line) -> None:
    assert line.text.split()[-1] in (ROOT / "benchmarks/start.py").read_text("utf-8")


BY_HAND = {"start.sh": 'run("sh", "start.sh"', "status.yml": 'playbooks("status"'}


@every("by hand")
def test_what_starts_a_rendered_directory_by_hand_is_run_with_hosts(line: Line) -> None:
    """By tests/ansible/test_by_hand.py, in a directory that was moved, with the launcher gone."""
    (wanted,) = [call for name, call in BY_HAND.items() if name in line.text]

    assert wanted in (ROOT / "tests/ansible/test_by_hand.py").read_text("utf-8")
