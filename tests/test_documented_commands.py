"""Every command in the documentation's shell blocks is run as written, only smaller: fewer ranks, less data, one epoch.

A command that needs a cluster of its own is planned (`--dry-run`), and its script is run with the same arguments on
this host. A command that no test knows how to run fails.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.command import ROOT
from tests.shell_blocks import WAYS, Line, documented, every, lines, shown_of, smaller, ways_of
from tests.tutorial import form

if TYPE_CHECKING:
    from testbed import Slurm
    from tests.command import Cli
    from tests.forked import Server


def test_every_documented_command_is_run_in_exactly_one_way() -> None:
    found = documented()

    assert len(found) > 40
    assert {str(line): ways_of(line) for line in found if len(ways_of(line)) != 1} == {}
    assert [way for way in WAYS if not lines(way)] == []


@pytest.mark.torch
@every("here")
def test_commands_for_one_host_run(distlaunch: Cli, line: Line) -> None:
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
def test_commands_for_clusters_are_planned(distlaunch: Cli, line: Line) -> None:
    (distlaunch.directory / "hosts").write_text("n1\nn2\n")
    shutil.copy(distlaunch.directory / "hosts", distlaunch.directory / "hosts.ini")
    _, backend, *words = shlex.split(line.text)

    done = distlaunch(backend, "--dry-run", "--output", "json", *words)

    assert done.exit_code == 0, done.stderr
    assert "go to the script" not in done.stderr
    wanted = int(words[words.index("--nodes") + 1]) if "--nodes" in words else 2
    assert len(done.json["result"]["nodes"]) == wanted


@every("through a login node")
def test_commands_for_a_login_node_find_it_by_the_documented_settings(distlaunch: Cli, line: Line) -> None:
    """Another program stands for ssh, as no such host exists."""
    words = shlex.split(line.text)[1:]
    name = words[1] if words[0] == "login" else words[2]
    settings = re.findall(
        rf"^```toml\n(\[clusters\.{name}\]\n.*?)^```", (ROOT / line.file).read_text(), re.MULTILINE | re.DOTALL
    )
    distlaunch.write("system.toml", settings[0])
    distlaunch.write("hall.ini", "n1\nn2\n")
    (address,) = re.findall('^login = "(.*?)"', settings[0], re.MULTILINE)
    ssh = distlaunch.write("bin/ssh", SSH)
    ssh.chmod(0o755)

    done = distlaunch(*words[:1], *(["--dry-run"] if words[0] == "run" else []), *words[1:], env={"PATH": path(ssh)})

    assert done.exit_code == 0, done.stderr
    if words[0] == "login":
        assert done.stdout == f"logged in to {name}\n"
        assert f" {address}\n" in (distlaunch.directory / "asked").read_text()
    elif name == "juno":
        assert "#SBATCH --chdir=/scratch/me/distlaunch\n" in done.stdout
        assert not (distlaunch.directory / "asked").exists(), "a dry run asks no one"
    else:
        assert f"{address} -W '[%h]:%p'\"" in done.stdout
        assert (distlaunch.directory / "asked").read_text() == f"-G {address}\n", "only ssh's settings are read"


SSH = """#!/bin/sh
echo "$*" >>asked
[ "$1" != -O ] || exec [ -e connected ]
while [ $# -gt 0 ]; do
  [ "$1" != -S ] || { : >"$2"; : >connected; }
  shift
done
"""
"""Shares its connection once it has one: it answers `-O check` then, and its socket exists."""


def path(program: Path) -> str:
    """PATH with the program's directory in front."""
    return f"{program.parent}:{os.environ['PATH']}"


def scripts_arguments() -> list[str]:
    """Scripts that clusters run, with their arguments, each once, except what this host runs in another test."""
    found = []
    for line in lines("on a cluster"):
        words = smaller(shlex.split(line.text))
        script = next(index for index, word in enumerate(words) if word.endswith(".py"))
        found.append(shlex.join(words[script:]))
    return sorted(set(found) - {shlex.join(["reduce.py"])})


@pytest.mark.torch
@pytest.mark.parametrize("words", scripts_arguments())
def test_scripts_for_clusters_accept_their_arguments(distlaunch: Cli, torch_server: Server, words: str) -> None:
    script, *args = shlex.split(words)
    if script == "train.py":  # other tests show that it trains
        argv = [sys.executable, str(ROOT / "train/train.py"), *args, "--print-config"]
        done = torch_server.run(argv, cwd=distlaunch.directory, env=distlaunch.env(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return
    ran = distlaunch("local", "--nproc-per-node", "2", script, *args)
    assert ran.exit_code == 0, ran.stderr
    written = [word for word in args if word.endswith((".svg", ".json"))]
    assert [name for name in written if not (distlaunch.directory / name).stat().st_size] == []


@every("doctor")
def test_doctor_runs(distlaunch: Cli, slurm: Slurm, line: Line) -> None:
    """On a cluster with the documented name."""
    distlaunch.write("distlaunch.toml", '[clusters.lab]\nbackend = "slurm"\n')
    words = shlex.split(line.text)[1:]
    words[words.index("--nodes") + 1] = "2"

    done = distlaunch(*words, "--seconds", "0", "--nproc-per-node", "1", env={**slurm.env()})

    assert done.exit_code in (0, 1), done.stderr  # 1: it has found a fault of this host
    assert done.stdout.startswith("HOST ")


@every("after a run")
def test_commands_after_a_run_show_it(distlaunch: Cli, line: Line) -> None:
    distlaunch.write("x.py", "print('from a worker')\n")
    assert distlaunch("local", "x.py").exit_code == 0

    done = [distlaunch(*shlex.split(part)[1:]) for part in line.text.split(";")]

    assert [one.exit_code for one in done] == [0, 0, 0], done
    assert "from a worker" in done[1].stdout


@pytest.mark.torch
@every("without the launcher")
def test_scripts_run_without_the_launcher(tmp_path: Path, line: Line) -> None:
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
