"""Runs over real SSH: results, files, arguments, secrets, hosts that differ."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from testbed import fixtures
from tests import large
from tests.ansible.conftest import SUM, make

if TYPE_CHECKING:
    from tests.ansible.conftest import Rack
    from tests.command import Cli

pytestmark = pytest.mark.ssh
THREADS = "import os\nprint('threads', os.environ.get('OMP_NUM_THREADS'))\n"
"""torchrun's rule, everywhere."""


def test_reduce_gives_36_on_four_hosts_two_without_the_shared_disk_and_node_0_with_a_second_address(rack: Rack) -> None:
    """Docker's bridge has the same address everywhere, and the name of some hosts leads to it: it is not used."""
    rack.private_disks(*rack.ssh.hosts[2:])
    n1, n2 = rack.ssh.hosts[:2]
    bridge = "172.17.0.1"
    names = rack.cli.write("etc-hosts", f"127.0.0.1 localhost\n{bridge} {n1.name}\n")
    try:
        for host in (n1, n2):
            host.run(("ip", "link", "add", "docker0", "type", "bridge"), check=True)
            host.run(("ip", "address", "add", f"{bridge}/16", "dev", "docker0"), check=True)
            host.run(("ip", "link", "set", "docker0", "up"), check=True)
        n1.run(("mount", "--bind", str(names), "/etc/hosts"), check=True)

        done = rack("-v", "--nodes", "4", "--nproc-per-node", "2", "--log-ranks", "all", "reduce.py")
    finally:
        n1.run(("umount", "/etc/hosts"))
        for host in (n1, n2):
            host.run(("ip", "link", "delete", "docker0"))

    assert done.exit_code == 0, done.stderr
    found = re.findall(r"\[(\d):(\d)\] rank (\d)/8 on (\S+): before (\d), after 36", done.stdout)
    assert sorted(found) == [(str(r // 2), str(r), str(r), f"n{r // 2 + 1}", str(r + 1)) for r in range(8)]
    assert len(re.findall(r"preflight: n\d: Python 3\.\d+\.\d+, torch \S+, \d+ GPUs, \d+ GB free", done.stderr)) == 4
    assert re.search(r"preflight: 4 of 4 hosts, \d+\.\d s", done.stderr)
    assert "files: 3 of 3 hosts" in done.stderr, "the hosts that share a disk get the files once"
    assert f"node 0 listens on {n1.address} port " in done.stderr
    assert f": all 3 others reach it (tried: {bridge} by 0, {n1.address} by 3)" in done.stderr
    kept = json.loads(next(rack.cli.runs.glob("reduce-*/run.json")).read_text())
    tried = {bridge: False, n1.address: True}
    assert kept["handle"]["rendezvous"]["tried"] == dict.fromkeys(("n2", "n3", "n4"), tried)


def test_arguments_and_variables_of_hundreds_of_kilobytes_arrive(rack: Rack) -> None:
    rack.write("large.py", large.SCRIPT.read_text())
    done = rack("--nodes", "2", "--log-ranks", "all", *large.OPTIONS, "large.py", *large.ARGUMENTS)

    assert done.exit_code == 0, done.stderr[-3000:]
    assert done.stdout.count(large.PRINTED) == 2


def test_workers_that_share_a_host_have_one_thread_each_and_a_single_one_keeps_its_default(rack: Rack) -> None:
    rack.write("threads.py", THREADS)
    said = {workers: rack("--nproc-per-node", workers, "--log-ranks", "0", "threads.py") for workers in ("2", "1")}

    assert {workers: done.stdout for workers, done in said.items()} == {"2": "threads 1\n", "1": "threads None\n"}


def test_thirty_two_hosts_with_a_worker_each(distlaunch: Cli) -> None:
    with fixtures.make(32, ssh=True) as testbed:
        rack = make(distlaunch, testbed.ssh)
        rack.write("sum.py", SUM)

        done = rack("--log-ranks", "all", "sum.py", env={"ANSIBLE_TIMEOUT": "60"})  # 32 logins at once

        assert done.exit_code == 0, done.stderr
        said = sorted(line.partition(" ")[2] for line in done.stdout.splitlines())
        assert said == sorted(f"rank {rank}/32 on n{rank + 1}: sum 528" for rank in range(32))
        assert ": all 31 others reach it;" in done.stderr
        rack.clean()


def test_the_trainer_learns(rack: Rack) -> None:
    done = rack("--nodes", "2", "train.py", "--epochs", "6")

    assert done.exit_code == 0, done.stderr
    accuracy = re.search(r"test accuracy ([\d.]+)%", done.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 95


FORK_SERVER = """
def server():
    with open(f"/proc/{os.getppid()}/cmdline") as file:
        words = file.read().rstrip("\\0").split("\\0")
    at = words.index("--fork-server")
    return "new" if words[at + 1 :] else "the login's"
"""
"""Where the worker's fork server comes from: one that grew out of the login's Python has no arguments."""

WHO = f"""
import os
{FORK_SERVER}
keys = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
print(os.uname().nodename, *(os.environ[key] for key in keys), server(), flush=True)
"""


def test_hosts_with_their_own_worker_counts_behind_a_jump_host_with_a_slow_shell_that_prints(rack: Rack) -> None:
    """Ranks follow natural order: n2, n9, n10, whatever the hosts call themselves."""
    hosts = rack.ssh.hosts
    jump = f"-F {rack.ssh.config} -o ProxyCommand='ssh -F {rack.ssh.config} -W %h:%p {hosts[0].name}'"
    slow = rack.cli.write(
        "slow python",
        f"#!/bin/sh\necho WELCOME TO THE MACHINE; printf 'no newline'; sleep 2\nexec {sys.executable} -X utf8 \"$@\"\n",
    )
    slow.chmod(0o755)
    keys = f"-F /dev/null -o UserKnownHostsFile={rack.ssh.known_hosts} -o StrictHostKeyChecking=yes"
    python = f"distlaunch_python={sys.executable}"
    inventory = rack.inventory(
        f"n10 ansible_host={hosts[0].address} distlaunch_workers=1 {python}\n"
        f"n9 ansible_host={hosts[1].address} distlaunch_workers=3 {python} ansible_port=22 "
        f"ansible_ssh_private_key_file={rack.ssh.key} ansible_ssh_common_args='{keys}'\n"
        f"n2 ansible_host={hosts[2].address} distlaunch_workers=2 distlaunch_python='{slow}' "
        f'ansible_ssh_common_args="{jump}"\n'
    )
    rack.write("who.py", WHO)

    done = rack("--log-ranks", "all", "who.py", inventory=inventory, python=None)

    assert done.exit_code == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[0:0] n3 0 6 0 2 0 new",  # its Python has options of its own, which a script might see
        "[0:1] n3 1 6 1 2 0 new",
        "[1:2] n2 2 6 0 3 1 the login's",
        "[1:3] n2 3 6 1 3 1 the login's",
        "[1:4] n2 4 6 2 3 1 the login's",
        "[2:5] n1 5 6 0 1 2 the login's",
    ]


SHOW = f"""
import glob, hashlib, json, os, sys
import pkg
{FORK_SERVER}
secret, own = os.environ["TOKEN"].encode(), "made-" + os.environ["DISTLAUNCH_RUN_ID"]

def have(text):
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            found += [path] if text in open(path, "rb").read() else []
        except OSError:  # it has ended
            pass
    return found

print(json.dumps({{
    "args": sys.argv[1:], "V": os.environ["V"], "HERE": os.environ["HERE"], "VALUE": pkg.VALUE, "server": server(),
    "secret": hashlib.sha256(secret).hexdigest(), "processes with it": have(secret),
    "with this script": len(have(b"show.py")),
    "files": sorted(set(os.listdir(".")) - {{own, "__pycache__"}}),
}}))
open(own, "w").write("x")
"""


def test_arguments_variables_secrets_and_files_arrive_as_they_are_and_only_there(rack: Rack) -> None:
    rack.write("pkg/__init__.py", "VALUE = 42\n")
    rack.write("ignored/data", "x")
    rack.write(".gitignore", "ignored/\n")
    rack.write("show.py", SHOW)
    subprocess.run(["git", "init", "--quiet", str(rack.directory)], check=True)
    args = [
        "a b",
        "'\"$HOME`x`\\!*?[]{}<>|&;()#~%",
        "line\nbreak",
        "ü",
        "--",
        "-x",
        "{{ 7 * 7 }}",
        "{% raw %}",
        "$(id)",
        "",
    ]
    secret = "s3cr3t'$\"{{ x }}"
    options = (
        "--nodes",
        "2",
        "--no-project-dir",
        "--env",
        "V={{ v }} 'c' $D\t",
        "--env",
        "HERE",
        "--secret",
        "TOKEN",
        "--log-ranks",
        "all",
    )
    env: dict[str, str | None] = {"HERE": "from here", "TOKEN": secret}

    runs = [
        rack(*options, "show.py", *args, env=env),
        rack(*options, "--env", "PYTHONHASHSEED=7", "show.py", *args, env=env),
    ]

    for done, server in zip(runs, ("the login's", "new"), strict=True):  # Python reads PYTHON... when it starts
        assert done.exit_code == 0, done.stderr
        lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
        assert sorted(lines) == ["[0:0]", "[1:1]"]
        for line in lines.values():
            seen = json.loads(line)
            assert (seen["args"], seen["V"], seen["HERE"]) == (args, "{{ v }} 'c' $D\t", "from here")
            assert seen["secret"] == hashlib.sha256(secret.encode()).hexdigest()
            assert seen["processes with it"] == []
            assert seen["with this script"] >= 2
            assert (seen["VALUE"], seen["files"]) == (42, [".gitignore", "pkg", "show.py"])
            assert seen["server"] == server
    assert ["files:" in done.stderr for done in runs] == [True, False], "what is there is not sent again"
    assert len(list(rack.remote.glob("snapshots/*/show.py"))) == 1
    assert not list(rack.remote.glob("snapshots/*/made-*")), "what a run writes is not in the files of the next"
    assert len(list(rack.remote.glob("runs/*/work/made-*"))) == 2
    for word, there in (("from here", True), ("s3cr3t", False)):
        for directory in (rack.cli.runs, rack.remote):
            found = subprocess.run(
                ["grep", "-rlF", word, str(directory)], capture_output=True, text=True, check=False
            ).stdout
            assert bool(found) is there, found


def test_a_worker_that_crashes_restarts_all_and_one_that_fails_then_is_reported_once_and_ends_all_hosts(
    rack: Rack,
) -> None:
    rack.write(
        "twice.py",
        "import os, torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "restarts = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "if restarts == 0 and dist.get_rank() == 2: os.kill(os.getpid(), 9)\n"
        "total = torch.ones(1)\ndist.all_reduce(total)\nprint('restarts', restarts, 'sum', int(total), flush=True)\n"
        "dist.barrier()\n"
        "if dist.get_rank() == 2: raise ValueError('only on two')\n"
        "dist.barrier()\n",
    )

    done = rack("--max-restarts", "1", "twice.py")

    assert done.exit_code == 1, done.stderr
    said = [line for line in rack.shell("logs", rack.id_of("twice")).stdout.splitlines() if "sum" in line]
    assert sorted(said) == [f"[{node}:{node}] restarts 1 sum 4" for node in range(4)]
    assert "SIGKILL" in done.stderr
    assert "rank 2, host n3, node 2" in done.stderr
    assert 1 <= done.stderr.count("ValueError: only on two") <= 2
    rack.wait_nothing_left()
