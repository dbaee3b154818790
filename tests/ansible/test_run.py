"""Runs over real SSH: results, files, arguments, secrets, two at once."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.agent.harness import SCRIPTS
from tests.agent.test_census import ARGS, PER_RUN, differences, read
from tests.ansible.conftest import make
from tests.testbed import fixtures, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.ansible.conftest import Rack
    from tests.command import Cli

pytestmark = pytest.mark.ssh

WAITS = """
import os, signal, sys, time
def save(*_):
    left = float(open(os.environ["DISTLAUNCH_DEADLINE_FILE"]).read()) - time.time()
    print("saving with", "time" if left > 1 else "no time", "left", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(0.2)
"""


def test_reduce_gives_36_on_four_hosts_two_of_which_share_no_disk(rack: Rack) -> None:
    rack.private_disks(*rack.ssh.hosts[2:])

    done = rack("--nodes", "4", "--nproc-per-node", "2", "--log-ranks", "all", "reduce.py")

    assert done.exit_code == 0, done.stderr
    found = re.findall(r"\[(\d):(\d)\] rank (\d)/8 on (\S+): before (\d), after 36", done.stdout)
    assert sorted(found) == [(str(r // 2), str(r), str(r), f"n{r // 2 + 1}", str(r + 1)) for r in range(8)]
    assert "files: 3 of 3 hosts" in done.stderr, "the hosts that share a disk get the files once"
    assert ": all 3 others reach it" in done.stderr


def test_an_address_of_node_0_that_others_do_not_reach_is_tried_and_not_taken(rack: Rack) -> None:
    """Docker's bridge has the same address everywhere, and some machines' own name leads to such a one."""
    hosts = rack.ssh.hosts[:3]
    n1, bridge = hosts[0], "172.17.0.1"
    names = rack.cli.write("etc-hosts", f"127.0.0.1 localhost\n{bridge} {n1.name}\n")
    for host in hosts[:2]:
        host.run(("ip", "link", "add", "docker0", "type", "bridge"), check=True)
        host.run(("ip", "address", "add", f"{bridge}/16", "dev", "docker0"), check=True)
        host.run(("ip", "link", "set", "docker0", "up"), check=True)
    n1.run(("mount", "--bind", str(names), "/etc/hosts"), check=True)
    try:
        done = rack("--nodes", "3", "--log-ranks", "all", "reduce.py")
    finally:
        n1.run(("umount", "/etc/hosts"), check=True)
        for host in hosts[:2]:
            host.run(("ip", "link", "delete", "docker0"), check=True)

    assert done.exit_code == 0, done.stderr
    assert done.stdout.count(", after 6") == 3
    assert f"node 0 listens on {n1.address} port " in done.stderr
    assert f": all 2 others reach it (tried: {bridge} by 0, {n1.address} by 2)" in done.stderr
    kept = json.loads(next(rack.cli.runs.glob("reduce-*/run.json")).read_text())
    tried = {bridge: False, n1.address: True}
    assert kept["handle"]["rendezvous"]["tried"] == dict.fromkeys(("n2", "n3"), tried)


@pytest.mark.timeout(600)  # 32 imports of torch on the cores of one machine
def test_thirty_two_hosts_with_a_worker_each(distlaunch: Cli) -> None:
    with fixtures.make(32, ssh=True) as testbed:
        rack = make(distlaunch, testbed.ssh)

        done = rack("--log-ranks", "all", "reduce.py", timeout_s=500)

        assert done.exit_code == 0, done.stderr
        assert len(re.findall(r"on n\d+: before \d+, after 528", done.stdout)) == 32
        rack.clean()


def test_the_trainer_learns_and_what_is_there_is_not_sent_again(rack: Rack) -> None:
    done = rack("train.py", "--epochs", "6")

    assert done.exit_code == 0, done.stderr
    accuracy = re.search(r"test accuracy ([\d.]+)%", done.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 95
    again = rack("train.py", "--epochs", "1")
    assert again.exit_code == 0, again.stderr
    assert "files:" in done.stderr
    assert "files:" not in again.stderr


def test_hosts_take_different_numbers_of_workers_and_ranks_follow_natural_order(rack: Rack) -> None:
    n1, n2 = rack.ssh.hosts[:2]
    inventory = rack.inventory(
        f"n10 ansible_host={n1.address} distlaunch_workers=1\nn9 ansible_host={n2.address} distlaunch_workers=3\n"
    )
    rack.write("who.py", "import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'], os.uname().nodename)")

    done = rack("--log-ranks", "all", "who.py", inventory=inventory)

    assert done.exit_code == 0, done.stderr
    assert sorted(line[6:] for line in done.stdout.splitlines()) == ["0 4 n2", "1 4 n2", "2 4 n2", "3 4 n1"]


def test_arguments_variables_and_secrets_arrive_byte_for_byte_and_secrets_stay_out_of_files(rack: Rack) -> None:
    rack.write(
        "show.py",
        "import hashlib, os, sys\nprint(repr(sys.argv[1:]), repr(os.environ['V']), repr(os.environ['HERE']))\n"
        "print(hashlib.sha256(os.environ['TOKEN'].encode()).hexdigest())\n",
    )
    args = ["a b", "'\"$HOME`x`\\!*?[]{}<>|&;()#~%", "line\nbreak", "ü", "--", "-x", "{{ 7 * 7 }}", "{% raw %}", "$(id)", ""]
    secret = "s3cr3t'$\"{{ x }}"

    done = rack(
        "--nodes", "1", "--env", "V={{ v }} 'c' $D\t", "--env", "HERE", "--secret", "TOKEN", "show.py", *args,
        env={"HERE": "from here", "TOKEN": secret},
    )  # fmt: skip

    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith(f"{args!r} ")
    assert "\"{{ v }} 'c' $D\\t\" 'from here'" in done.stdout
    assert hashlib.sha256(secret.encode()).hexdigest() in done.stdout
    for folder in (rack.cli.runs, rack.remote):
        held = subprocess.run(["grep", "-rlF", "s3cr3t", str(folder)], capture_output=True, text=True).stdout
        assert held == "", held


def test_files_arrive_as_git_sees_them_and_a_run_has_a_copy_of_its_own(rack: Rack) -> None:
    rack.write("pkg/__init__.py", "VALUE = 42\n")
    rack.write("ignored/data", "x")
    rack.write(".gitignore", "ignored/\n")
    rack.write(
        "main.py",
        "import os, pkg; print(pkg.VALUE, sorted(set(os.listdir('.')) - {'made', '__pycache__'})); open('made', 'w').write('x')",
    )
    subprocess.run(["git", "init", "--quiet", str(rack.cli.folder / "work")], check=True)

    for _ in range(2):
        done = rack("--nodes", "2", "main.py")
        assert done.exit_code == 0, done.stderr
        assert done.stdout == "42 ['.gitignore', 'main.py', 'pkg']\n"
    kept = [path for path in rack.remote.glob("snapshots/*/*") if path.name == "made"]
    assert kept == [], "what a run writes is not in the snapshot"


def test_two_runs_at_once_do_not_meet_and_one_is_cancelled_from_a_machine_that_did_not_start_it(rack: Rack) -> None:
    rack.write("waits.py", WAITS)
    first = rack.detached("waits.py")
    other = rack.start("--log-ranks", "all", "reduce.py")
    rack.wait_line(first, "ready", count=4)
    elsewhere: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(rack.cli.folder / "elsewhere")}
    hosts = ("--inventory", str(rack.ssh.inventory), "--remote-dir", str(rack.remote))

    adopted = rack.cli("adopt", "waits", *hosts, env=elsewhere, timeout_s=120)

    assert adopted.exit_code == 0, adopted.stderr
    assert adopted.stdout.strip() == first
    state = rack.cli("status", first, "--output", "json", env=elsewhere).json["result"]
    assert (state["state"], len(state["nodes"]), state["nodes"][3]["host"]) == ("running", 4, "n4")
    cancelled = rack.cli("cancel", first, env=elsewhere, timeout_s=120)
    assert cancelled.exit_code == 0, cancelled.stderr
    assert rack.cli("logs", first, env=elsewhere).stdout.count("saving with time left") == 4
    stdout, stderr = other.communicate(timeout=90)
    assert other.returncode == 0, stderr
    assert stdout.count(b"after 10") == 4
    unknown = rack.cli("adopt", "nothing", *hosts, env=elsewhere, timeout_s=120)
    assert "no run 'nothing' on n1, n2, n3, n4" in unknown.stderr
    assert unknown.exit_code == 2


def test_a_worker_that_crashes_once_restarts_the_whole_gang(rack: Rack) -> None:
    rack.write(
        "once.py",
        "import os, torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "restarts = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "if restarts == 0 and dist.get_rank() == 2: os.kill(os.getpid(), 9)\n"
        "total = torch.ones(1)\ndist.all_reduce(total)\nprint('restarts', restarts, 'sum', int(total))\n",
    )

    done = rack("--max-restarts", "1", "--log-ranks", "all", "once.py")

    assert done.exit_code == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{node}:{node}] restarts 1 sum 4" for node in range(4)]
    assert "SIGKILL" in done.stderr


def test_a_failed_rank_is_told_once_and_ends_all_hosts(rack: Rack) -> None:
    rack.write(
        "fail.py",
        "import torch, torch.distributed as dist, time\ndist.init_process_group('gloo')\n"
        "if dist.get_rank() == 2: raise ValueError('only on two')\n"
        "dist.all_reduce(torch.ones(1)); time.sleep(600)\n",
    )

    done = rack("fail.py")

    assert done.exit_code == 1
    assert "rank 2, host n3, node 2" in done.stderr
    assert done.stderr.count("ValueError: only on two") <= 2


def test_what_is_rendered_is_what_runs_and_an_admin_can_run_it_by_hand(rack: Rack) -> None:
    rack.write("waits.py", WAITS)
    folder = rack.cli.folder / "rendered"
    shown = rack("--dry-run", "--nodes", "2", "waits.py")
    written = rack("--render-to", str(folder), "--nodes", "2", "waits.py")
    assert shown.exit_code == written.exit_code == 0, shown.stderr + written.stderr
    assert "distlaunch_hosts:" in shown.stdout
    assert not list(rack.remote.iterdir()), "nothing was sent"
    variables = json.loads((folder / "env/extravars").read_text())
    run = rack.remote / "runs" / variables["distlaunch_run"]

    def by_hand(*argv: str) -> str:
        # The test's HOME is deep, and a socket below it would have too long a path.
        sockets = json.loads((folder / "env/envvars").read_text())["ANSIBLE_SSH_CONTROL_PATH_DIR"]
        more = {"PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", "ANSIBLE_SSH_CONTROL_PATH_DIR": sockets}
        env = rack.cli.env({**more})
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=env, cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def playbook(name: str, *more: str) -> str:
        inventory = ("-i", str(rack.ssh.inventory), "-e", "@env/extravars")
        return by_hand("ansible-playbook", *inventory, *more, f"project/{name}.yml")

    assert re.search(r"n1 .*changed=1 ", by_hand("sh", "start.sh"))
    wait_until("the workers", lambda: all("ready" in (run / f"nodes/{k}/stream").read_text() for k in (0, 1)), limit_s=60)
    for changed in re.findall(r"changed=(\d+)", by_hand("sh", "start.sh")):
        assert changed == "0", "a second start changes nothing"
    assert len(re.findall(r'"?running"?: true', playbook("status"))) == 2
    playbook("collect", "-e", f"distlaunch_collect_to={folder}/back")
    assert "ready" in (folder / "back" / run.name / "nodes/1/stream").read_text()
    assert re.search(r"changed=1", playbook("stop"))
    wait_until("the end", lambda: '"done"' in (run / "nodes/1/stream").read_text(), limit_s=60)
    assert re.search(r"changed=0", playbook("stop"))
    assert "n1" in playbook("preflight")


WHO = 'import os\nprint("server:", open(f"/proc/{os.getppid()}/cmdline").read().rstrip("\\0").replace("\\0", " "))\n'


def test_a_worker_cannot_tell_that_its_fork_server_came_out_of_the_logins_python(rack: Rack, tmp_path: Path) -> None:
    """All that a script sees of its process, against a worker that was started by itself."""
    seen = {}
    for start in ("fork", "spawn"):
        env = ("--env", f"CENSUS_OUT={tmp_path / start}")
        done = rack("--nodes", "1", "--nproc-per-node", "2", "--start", start, *env, "census.py", *ARGS, cwd=SCRIPTS)
        assert done.exit_code == 0, done.stderr
        seen[start] = read(tmp_path / start, 2)

    for forked, spawned in zip(seen["fork"], seen["spawn"], strict=True):
        found = differences(spawned, forked)
        more = {"/env/DISTLAUNCH_RUN_ID", "/env/DISTLAUNCH_DEADLINE_FILE", "/cwd", "/path", "/main/file", "/main/loader_path"}
        own = {f"/env/{name}" for name in PER_RUN} | {"/seeds", "/authkey"} | more
        assert {key: value for key, value in found.items() if key not in own} == {}
        assert [path.replace(forked["cwd"], "") for path in forked["path"]] == [
            path.replace(spawned["cwd"], "") for path in spawned["path"]
        ]


def test_where_a_new_fork_server_might_differ_it_is_a_new_one(rack: Rack) -> None:
    rack.write("who.py", WHO)

    def server(*args: str) -> str:
        done = rack("--nodes", "1", *args, "--log-ranks", "all", "who.py")
        assert done.exit_code == 0, done.stderr
        return done.stdout.partition("server: ")[2].strip()

    wrapper = rack.cli.write("python-with-options", f'#!/bin/sh\nexec {sys.executable} -X utf8 "$@"\n')
    wrapper.chmod(0o755)
    assert server().endswith("--fork-server")
    assert re.search(r"--fork-server \d+ \d+ -+$", server("--env", "PYTHONHASHSEED=7"))
    assert re.search(r"--fork-server \d+ \d+ -+$", server("--python", str(wrapper)))
