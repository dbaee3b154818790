"""Nothing runs that others have prepared or changed on a host, and a hostile host names no path here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.ssh.calls import ANSWER
from launcher.payload import agent_archive
from launcher.system import install

if TYPE_CHECKING:
    from pathlib import Path

    from tests.ansible.conftest import Rack

pytestmark = pytest.mark.ssh
as_several_users = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be several users")

STRANGER = 54321


def trap(rack: Rack) -> Path:
    """The file that another user's code leaves."""
    return rack.cli.directory / "was-run"


def give(top: Path, mode: int | None = None) -> None:
    """Give a directory and all that is in it to another user."""
    for path in (top, *top.rglob("*")):
        os.chown(path, STRANGER, STRANGER)
    if mode is not None:
        top.chmod(mode)


AGENT = "agents/*.pyz"


def put_directory(agent: Path) -> None:
    """Put a directory with a program into the place of the agent's file."""
    agent.unlink()
    agent.mkdir()
    (agent / "__main__.py").write_text("raise SystemExit('evil')\n")


def spoil(rack: Rack, **patterns: str) -> None:
    """Put a program into files below the remote directories of hosts."""
    for host in rack.ssh.hosts:
        pattern = patterns.get(host.name, "")
        found = list(host.path(rack.remote).glob(pattern)) if pattern else []
        assert bool(found) is bool(pattern), (host.name, pattern)
        for path in found:
            path.write_text(f"open({str(trap(rack))!r}, 'w')\nraise SystemExit('evil')\n")


@as_several_users
def test_no_directory_that_others_can_change_is_used(rack: Rack) -> None:
    """Nothing of it is used, and the fix is shown: on each host another one of the directories."""
    rack.write("x.py", "print('hello')\n")
    rack.private_disks(*rack.ssh.hosts)
    odd = (("", 0o755), ("agents", 0o777), ("snapshots", 0o1777), ("runs", 0o755))
    for host, (name, mode) in zip(rack.ssh.hosts, odd, strict=True):
        top = host.path(rack.remote)
        top.chmod(0o755)
        for each in ("agents", "snapshots", "runs"):
            (top / each).mkdir(mode=0o700)
        os.chown(top / name, STRANGER if mode == 0o755 else 0, -1)
        (top / name).chmod(mode)

    refused = rack("--nodes", "4", "x.py")

    assert refused.exit_code == 3, refused
    assert "4 of 4 hosts cannot take part" in refused.stderr
    for host, (name, _) in zip(rack.ssh.hosts, odd, strict=True):
        assert f"{host.name}: {rack.remote / name} belongs to" in refused.stderr
    assert "chmod o-w" in refused.stderr
    assert "DISTLAUNCH_TRUST=" in refused.stderr


@as_several_users
def test_no_changed_agent_or_file_runs(rack: Rack) -> None:
    rack.write("x.py", "import part\nprint('hello', part)\n")
    rack.write("part.py", "")
    first, second = rack.ssh.hosts[:2]
    rack.private_disks(first, second)
    ask = ("--nodes", "2", "--log-ranks", "0")
    done = rack("-v", *ask, "x.py")
    assert done.exit_code == 0, done.stderr
    run = rack.id_of("x")

    # An agent that was changed, or put there before: it is not run, and the right one is installed in its place.
    spoil(rack, n1=AGENT)
    put_directory(*second.path(rack.remote).glob(AGENT))
    healed = rack(*ask, "x.py")
    assert (healed.exit_code, healed.stdout.startswith("hello")) == (0, True), healed
    assert re.search(r"n1, n2: \S+ does not match its name", healed.stderr), healed.stderr
    assert not trap(rack).exists()
    for host in (first, second):
        (agent,) = host.path(rack.remote).glob(AGENT)
        (agent.parent / "json.py").write_text(f"open({str(trap(rack))!r}, 'w')\n")
    assert rack(*ask, "x.py").exit_code == 0
    assert not trap(rack).exists(), "a module of the standard library's name beside the agent"
    assert rack(*ask, "x.py").stderr.count("does not match its name") == 0

    # The same holds for commands that only look.
    spoil(rack, n1=AGENT, n2=AGENT)
    shutil.rmtree(rack.cli.runs / run / "nodes")
    (rack.cli.runs / run / "result.json").unlink()
    looked = rack.shell("status", run)
    assert "does not match its name" in looked.stdout, looked
    assert not trap(rack).exists()
    for host in (first, second):
        shutil.rmtree(host.path(rack.remote) / "agents")

    # The files that were sent, on the host of node 0, which starts first.
    spoil(rack, n1="snapshots/*/part.py")
    changed = rack(*ask, "x.py")
    assert changed.exit_code == 3, changed
    assert (
        "is not what was sent: another user or a disk error has changed it; it was removed, start again"
        in changed.stderr
    )
    assert not trap(rack).exists()
    again = rack(*ask, "x.py")
    assert (again.exit_code, again.stdout.startswith("hello")) == (0, True), again


@as_several_users
def test_another_users_directory_with_an_agent_in_it_is_used_only_if_it_is_trusted(rack: Rack) -> None:
    rack.write("x.py", "print('hello')\n")
    assert rack("--nodes", "1", "x.py").exit_code == 0
    give(rack.remote)

    refused = rack("--nodes", "1", "x.py")
    trusted = rack("--nodes", "1", "x.py", env={"DISTLAUNCH_TRUST": str(rack.remote)})

    assert refused.exit_code == 3, refused
    assert f"n1: {rack.remote} belongs to {STRANGER}" in refused.stderr
    assert (trusted.exit_code, trusted.stdout) == (0, "hello\n"), trusted


# -- what a hostile host sends --------------------------------------------------------------------------

FACTS = {
    "time": 1.7e9,
    "python": "python3",
    "python_version": "3.11.7",
    "hostname": "h",
    "torch": "2.9",
    "framework": "",
    "without": "",
    "gpus": 0,
    "directory": "/x",
}
FACTS |= {
    "free_bytes": 10**9,
    "agent_path": "/x/a",
    "has_files": True,
    "has_cwd": True,
    "machine": [],
    "disk": [],
    "mounts": [],
    "replaced": None,
}
FACTS |= {"user_processes_end": False}


def hostile(directory: Path, *answers: dict[str, Any]) -> dict[str, str]:
    """The variables of a host that gives these answers, one after the other, and otherwise is this host."""
    said = "".join(f"read request; cat {directory}/answer-{number}\n" for number in range(len(answers)))
    for number, answer in enumerate(answers):
        (directory / f"answer-{number}").write_text(f"\n{ANSWER}{json.dumps(answer)}\n")
    ssh = directory / "ssh"
    ssh.write_text(f'#!/bin/bash\ncase "${{@: -1}}" in *base64*)\n{said}exec cat;; *) exec sh -c "${{@: -1}}";; esac\n')
    ssh.chmod(0o700)
    return {
        "ansible_ssh_executable": str(ssh),
        "ansible_ssh_transfer_method": "piped",
        "ansible_python_interpreter": sys.executable,
    }


def collect(directory: Path, *answers: dict[str, Any], hosts: str = "h") -> subprocess.CompletedProcess[str]:
    """The result of collect.yml with the run x-1 on such a host; what it collects is put into `back`."""
    (directory / "hosts.json").write_text(
        json.dumps({"all": {"hosts": dict.fromkeys(hosts, hostile(directory, *answers))}})
    )
    (directory / "agent.pyz").write_bytes(agent_archive.packed())
    more = {
        "distlaunch_run": "x-1",
        "distlaunch_collect_to": f"{directory}/back",
        "distlaunch_agent": f"{directory}/agent.pyz",
    }
    words = (
        "ansible-playbook",
        "-i",
        f"{directory}/hosts.json",
        "-e",
        json.dumps(more),
        str(install.data("playbooks") / "collect.yml"),
    )
    env = {"HOME": str(directory), "PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin", "LANG": "C.UTF-8"}
    env |= {"ANSIBLE_SSH_ARGS": "-T", "ANSIBLE_LOCAL_TEMP": f"{directory}/tmp"}
    return subprocess.run(words, env=env, cwd=directory, capture_output=True, text=True, timeout=200, check=False)


def test_a_host_cannot_name_a_file_here_that_collecting_a_run_would_write(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for name in ("authorized_keys", "stream"):
        (theirs / name).write_text("theirs")
    honest = {"run": "x-1", "node": 0, "running": False, "directory": str(theirs), "files": ["stream"]}
    good = collect(tmp_path, FACTS | {"time": time.time()}, {"nodes": [honest]})
    assert good.returncode == 0, good.stdout + good.stderr
    assert (tmp_path / "back/x-1/nodes/0/stream").read_text() == "theirs", "an honest host's"

    def lied(name: str, lie: dict[str, Any]) -> None:
        shutil.copytree(tmp_path / "back", tmp_path / name / "back")
        told = collect(tmp_path / name, FACTS | {"time": time.time()}, {"nodes": [honest | lie]})
        assert [path.name for path in (tmp_path / name / "back").rglob("*")] == ["x-1", "nodes", "0", "stream"]
        assert told.returncode != 0
        assert "its answer is not an agent's" in told.stdout

    lies = {
        "node": {"node": "../../../victim", "files": ["authorized_keys"]},
        "run": {"run": "../victim"},
        "files": {"files": ["../../../../victim"]},
    }
    with ThreadPoolExecutor() as pool:
        list(pool.map(lied, lies.keys(), lies.values()))
    assert not [path for path in tmp_path.rglob("*") if "victim" in str(path)]


def test_other_fields_of_a_hosts_problem_are_not_used(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/authorized_keys").write_text("theirs")
    lie = {
        "run": "x-1",
        "node": "../../../victim",
        "directory": f"{tmp_path}/theirs",
        "files": ["authorized_keys"],
        "place": "../x",
    }

    for nodes in ([lie], [5]):
        told = collect(tmp_path, FACTS | {"time": time.time()}, {"problem": "so it is", "nodes": nodes})
        assert not [path for path in tmp_path.rglob("*") if path.name in ("back", "victim")]
        assert '"h": {"kind": "host", "message": "so it is"}' in told.stdout.replace("\\", ""), (
            told.stdout + told.stderr
        )


def test_hosts_that_have_the_same_node_do_not_overwrite_each_others_files(tmp_path: Path) -> None:
    """One took the other's place, or claims that."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/stream").write_text("theirs")
    node = {
        "run": "x-1",
        "node": 0,
        "running": False,
        "directory": f"{tmp_path}/theirs",
        "files": ["stream"],
        "place": "../../x",
    }

    told = collect(tmp_path, FACTS | {"time": time.time()}, {"nodes": [node]}, hosts="gh")

    assert told.returncode == 0, told.stdout + told.stderr
    assert sorted(str(path.relative_to(tmp_path / "back")) for path in tmp_path.glob("back/*/*/*")) == [
        "x-1/nodes/0-g",
        "x-1/nodes/0-h",
    ]


def test_a_hostile_answer_that_is_a_problem_does_not_stop_the_playbook(tmp_path: Path) -> None:
    """Its other fields are ignored."""
    told = collect(tmp_path, {"problem": "so it is", "time": "now", "machine": [], "refused": True, "without": ""})

    assert '"h": {"kind": "host", "message": "so it is"}' in told.stdout.replace("\\", ""), told.stdout + told.stderr
    assert "Traceback" not in told.stdout + told.stderr
