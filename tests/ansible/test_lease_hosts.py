"""Two users of the same hosts: who has what, waiting for it, sharing it, and hosts that are free."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed import wait_until
from tests.ansible.conftest import results

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed import Host
    from tests.ansible.conftest import Rack

pytestmark = pytest.mark.ssh

HOLDS = """
import os, sys, time
print("GPUs", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
open(f"{sys.argv[1]}.{os.environ['RANK']}", "rb", buffering=0).read(1) if sys.argv[1:] else None
"""
ON_PATH = Path("/usr/local/sbin")
"""A directory on the PATH of a login, which is empty on most hosts."""


@pytest.fixture
def four_gpus(rack: Rack) -> Iterator[Path]:
    """Four hosts with an nvidia-smi that reports four GPUs; the file with what it prints."""
    table = rack.cli.write("smi/table", "".join(f"{n}, GPU-0000{n}, 3, 80000\n" for n in range(4)))
    program = rack.cli.write("smi/nvidia-smi", f"#!/bin/sh\nexec cat {table}\n")
    program.chmod(0o755)
    for host in rack.ssh.hosts:
        host.run(("mount", "--bind", str(program.parent), str(ON_PATH)), check=True, cwd="/")
    yield table
    for host in rack.ssh.hosts:
        host.run(("umount", str(ON_PATH)), check=True, cwd="/")


def lock_file(host: Host, name: str) -> Path:
    """The lock file of that host."""
    (namespace,) = re.findall(r"\d+", str(Path(f"/proc/{host.anchor.pid}/ns/net").readlink()))
    return Path(f"/run/lock/distlaunch-lease-{namespace}-{name}")


def test_two_runs_share_hosts_by_gpu_and_a_third_is_told_waits_or_takes_what_is_free(
    rack: Rack, four_gpus: Path
) -> None:
    rack.write("holds.py", HOLDS)
    gates = [rack.gate(f"gate{number}", *range(4)) for number in range(2)]
    first = rack.start("--nodes", "2", "--nproc-per-node", "2", "--name", "one", "holds.py", str(gates[0]))
    first.until("GPUs 0,1")
    one = rack.id_of("one")
    second = rack.start("--nodes", "1", "--nproc-per-node", "1", "--name", "two", "holds.py", str(gates[1]))
    second.until("GPUs 2")
    four_gpus.write_text(four_gpus.read_text().replace("GPU-00003, 3,", "GPU-00003, 40960,"))

    refused, unknown = results(
        rack.start("--nodes", "2", "--nproc-per-node", "2", "holds.py"),
        rack.start("--nodes", "1", "--env", "CUDA_VISIBLE_DEVICES=0,9", "holds.py"),
    )
    assert refused.exit_code == 3
    held = rf"GPU 0-1 held by root's run {one} since \d\d:\d\d"
    foreign = r"GPU 3 in use by a process without a lease \(40\.0 GiB of its memory\)"
    assert re.search(rf"n1: {held}; GPU 2 held by root's run two-\S+ since \d\d:\d\d; {foreign}\n", refused.stderr)
    assert re.search(rf"n2: {held}; {foreign}\n", refused.stderr)
    assert "hint: --wait waits for it, --partial takes only hosts that are free, --share uses it" in refused.stderr
    assert "n1: there is no GPU '9' (CUDA_VISIBLE_DEVICES=0,9); GPUs here: 0, 1, 2, 3" in unknown.stderr
    late = rack("--nodes", "1", "--nproc-per-node", "2", "--wait", "--wait-timeout", "1s", "holds.py")
    assert late.exit_code == 3
    assert f"n1: GPU 0-1 held by root's run {one}" in late.stderr
    assert "holds" not in "".join(path.name for path in rack.remote.glob("runs/*/nodes")), "nothing was started"

    free, shared = results(
        rack.start("--partial", "--nproc-per-node", "2", "--log-ranks", "all", "holds.py"),
        rack.start("--share", "--nodes", "1", "--nproc-per-node", "4", "holds.py"),
    )
    assert free.exit_code == 0, free.stderr
    assert re.findall(r"(?m)^(n\d)  +(\d) ", free.stderr) == [("n3", "0"), ("n4", "1")]
    assert "left out: n1: GPU 0-1 held by" in free.stderr
    assert (shared.exit_code, "GPUs None" in shared.stdout) == (0, True), shared.stderr

    waiting = rack.start("--nodes", "2", "--nproc-per-node", "2", "--wait", "--name", "queued", "holds.py")
    wait_until(
        "its ticket",
        lambda: (
            list(Path("/run/lock").glob(lock_file(rack.ssh.hosts[0], "ticket-*").name))
            or list(Path("/run/lock").glob(lock_file(rack.ssh.hosts[1], "ticket-*").name))
        ),
    )
    hasty = rack("--nodes", "2", "--nproc-per-node", "1", "holds.py")
    assert re.search(r"root's run queued-\S+ waits for it since \d\d:\d\d", hasty.stderr), hasty.stderr
    _check_lists(rack, one)
    for host in rack.ssh.hosts[:2]:  # agents of the first run, with what else they have started
        for process in rack.left(host):
            if f"runs/{one}/" in process.command() and "--spec" in process.command():
                process.send(signal.SIGKILL)
    assert waiting.end() == 0, waiting
    assert "waiting for n" in waiting.stderr
    assert "GPUs 0,1" in waiting.stdout
    assert first.end() == 1, first
    gates[1].open()
    assert second.end() == 0, second


def _check_lists(rack: Rack, one: str) -> None:
    """What `hosts` and `ls` report while two runs hold GPUs of n1, and a third waits."""
    inventory = rack.inventory(
        "".join(f"{host.name} ansible_host={host.address}\n" for host in rack.ssh.hosts)
        + f"dead ansible_host={rack.ssh.hosts[0].address} ansible_port=1"
    )
    rack.cli.write(
        "system.toml",
        f'[clusters.rack]\nbackend = "ansible"\ninventory = ["{inventory}"]\nremote_dir = "{rack.remote}"\n'
        f'python = "{sys.executable}"\n',
    )
    shown, hosts_json, ls_json = results(
        rack.open("hosts", "--on", "rack"),
        rack.open("hosts", "--on", "rack", "--output", "json"),
        rack.open("ls", "--on", "rack", "--output", "json"),
    )
    assert re.search(
        rf"(?m)^n1 +up +\d+\.\d on \d+ CPUs  4 of 4 .*GPU 0-1: root's {one} since \d\d:\d\d",
        shown.stdout,
    ), shown.stdout
    # It waits for the host that comes first by its own identity, whatever its name.
    assert re.search(r"(?m)^n[12] +up .* root's queued-", shown.stdout), shown.stdout
    assert re.search(r"(?m)^dead +unreachable .*Connection refused", shown.stdout), shown.stdout
    hosts = {host["host"]: host for host in hosts_json.json["result"]["hosts"]}
    assert [gpu["gpu"] for gpu in hosts["n3"]["gpus"] if gpu["busy"]] == [3]
    assert {tuple(lease["gpus"]) for lease in hosts["n1"]["leases"]} == {(0, 1), (2,)}
    assert hosts["n3"]["leases"] == []
    listed = {run["run"]: run for run in ls_json.json["result"]["runs"]}
    assert listed[one]["gpus"] == {"n1": [0, 1], "n2": [0, 1]}
    assert (listed[one]["hosts"], listed[one]["user"], listed[one]["command"][0]) == (["n1", "n2"], "root", "holds.py")
    assert len(listed) == 2, "neither those that have ended nor the one that waits"


ROLES = """
[roles.one]
nodes = 1
nproc_per_node = 2
script = "holds.py"
args = ["{}"]
env = ["CUDA_VISIBLE_DEVICES=0,1"]

[roles.two]
nodes = 1
nproc_per_node = 2
script = "holds.py"
args = ["{}"]
env = ["CUDA_VISIBLE_DEVICES=2,3"]
"""


@pytest.mark.usefixtures("four_gpus")
def test_a_run_leases_the_gpus_that_each_of_its_roles_names(rack: Rack) -> None:
    rack.write("holds.py", HOLDS)
    gates = [rack.gate(name, 0, 1) for name in ("one", "two")]
    file = rack.write("run.toml", ROLES.format(*gates))
    first = rack.start("--name", "roles", "--log-ranks", "all", "--roles", str(file))
    first.until("GPUs 2,3")
    one = rack.id_of("roles")
    on_two = ("--limit", "n2", "--nodes", "1", "--nproc-per-node", "1")

    taken, free = results(
        rack.start(*on_two, "--env", "CUDA_VISIBLE_DEVICES=3", "holds.py"),
        rack.start(*on_two, "--env", "CUDA_VISIBLE_DEVICES=1", "holds.py"),
    )

    assert (taken.exit_code, f"n2: GPU 2-3 held by root's run {one}" in taken.stderr) == (3, True), taken.stderr
    assert (free.exit_code, free.stdout) == (0, "GPUs 1\n"), free.stderr
    for gate in gates:
        gate.open()
    assert first.end() == 0, first

    elsewhere: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(rack.cli.directory / "elsewhere")}
    hosts = ("--inventory", str(rack.ssh.inventory), "--limit", "n1,n2", "--remote-dir", str(rack.remote))
    assert rack.shell("adopt", one, *hosts, env=elsewhere).exit_code == 0
    again = rack.shell("requeue", one, env=elsewhere)
    assert again.exit_code == 0, again.stderr
    rack.open("logs", "-f", one, env=elsewhere).until("GPUs 2,3", count=4)
    taken = rack(*on_two, "--env", "CUDA_VISIBLE_DEVICES=3", "holds.py")
    assert f"n2: GPU 2-3 held by root's run {one}" in taken.stderr, taken.stderr
    for gate in gates:
        gate.open()
    assert rack.shell("wait", one, env=elsewhere).exit_code == 0


def test_a_lease_cannot_be_taken_by_a_lock_file_of_someone_else(rack: Rack) -> None:
    path = lock_file(rack.ssh.hosts[0], "host")
    path.unlink(missing_ok=True)
    path.symlink_to("/etc/hostname")
    try:
        rack.write("holds.py", HOLDS)
        done = rack("--nodes", "1", "holds.py")
    finally:
        path.unlink()

    assert done.exit_code == 3
    assert f"the lock file {path} of user root cannot be used: Too many levels of symbolic links" in done.stderr
    assert f"its owner has to remove it: rm {path}" in done.stderr


@pytest.mark.parametrize("flags", [("--wait", "--share"), ("--share", "--partial"), ("--wait", "--partial")])
def test_what_excludes_one_another_is_refused(rack: Rack, flags: tuple[str, str]) -> None:
    rack.write("holds.py", HOLDS)

    done = rack(*flags, "holds.py")

    assert (done.exit_code, done.stderr.splitlines()[0]) == (
        2, f"error[bad_spec]: {flags[0]} and {flags[1]} exclude each other")  # fmt: skip
