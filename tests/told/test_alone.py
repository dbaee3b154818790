"""`--notify` where no launcher follows the run, or it, or node 0's agent, is killed: on hosts, behind logins, in pods.

The receiver listens on a host of the testbed, which this machine's launchers reach as well, except behind a bastion.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launcher.runs.events import record
from testbed import wait_until
from tests.ansible.behind import wait_end
from tests.ansible.conftest import rack, racks  # noqa: F401 - fixtures
from tests.k8s.conftest import own_kube, pods  # noqa: F401 - fixtures
from tests.receivers import TOKEN, receiver

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.ansible.behind import Lab
    from tests.ansible.conftest import Rack
    from tests.k8s.conftest import User
    from tests.receivers import Receiver
    from tests.slurm.laptop import Laptop

SECRET = f"s3cret-1Zq-{os.getpid()}".encode()
SIGNED = {"HOOK": SECRET.decode()}
FAILS = "import sys; sys.exit('no data')"
WAITS = """
import os, sys, time
print("waits", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""
ALL = ["run.start", "run.failure", "run.end"]


def to(there: Receiver) -> tuple[str, ...]:
    """The options that name the receiver."""
    return ("--notify", there.url, "--notify-secret", "HOOK")


def wait_told(there: Receiver, *types: str) -> None:
    """Wait until it has been told all of this, and check that each was told once, in order, and signed."""
    wait_until(f"{types} to be told", lambda: len(there.got) >= len(types), limit_s=120)
    assert there.types == list(types)
    assert len({each.body["id"] for each in there.got}) == len(types)
    for each in there.got:
        assert each.headers["webhook-signature"] == each.signature(SECRET)


def shown(directories: Iterable[Path]) -> dict[str, int]:
    """The files with the token or the secret below these directories, with the permissions that others have there."""
    found = {}
    for directory in directories:
        for path in directory.rglob("*"):
            if path.is_file() and any(word in path.read_bytes() for word in (TOKEN.encode(), SECRET)):
                above = [each.stat().st_mode for each in path.parents if directory in (each, *each.parents)]
                found[path.name] = path.stat().st_mode & 0o077 & min(mode | ~0o077 for mode in above)
    return found


def on_command_lines() -> list[str]:
    """The command lines on this machine, and in its hosts, that hold the token or the secret; not this process's."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if int(path.parent.name) != os.getpid() and any(word in line for word in (TOKEN.encode(), SECRET)):
            found.append(line.replace(b"\0", b" ").decode(errors="replace"))
    return found


def kill_agent(rack: Rack, run: str) -> None:  # noqa: F811
    """SIGKILL for node 0's agent on its host."""
    (stream,) = rack.remote.glob(f"runs/{run}/nodes/0/stream")
    started = record(stream.read_bytes().splitlines()[0])
    os.kill(started.fields["pid"], signal.SIGKILL)  # type: ignore[union-attr]


@pytest.mark.ssh
def test_over_ssh_node_0_tells_of_a_detached_run_and_keeps_the_url_to_itself(rack: Rack) -> None:  # noqa: F811
    rack.write("fails.py", FAILS)
    with receiver(host=rack.ssh.hosts[3]) as there:
        done = rack("--detach", "--nodes", "2", *to(there), "fails.py", env={**SIGNED})
        assert done.exit_code == 0, done.stderr
        wait_told(there, *ALL)
        assert rack.shell("wait", done.stdout.strip()).exit_code == 1

    assert there.got[2].body["data"]["cause"]["class"] == "user_code"
    held = shown([rack.remote, rack.cli.runs])
    assert held.keys() == {"notify", "run.json"}
    assert not any(held.values())
    assert not on_command_lines()


@pytest.mark.ssh
def test_over_ssh_a_launcher_is_killed_and_node_0_tells_the_rest(rack: Rack) -> None:  # noqa: F811
    go = rack.cli.directory / "go"
    rack.write("waits.py", WAITS)
    with receiver(host=rack.ssh.hosts[3]) as there:
        launcher = rack.start("--nodes", "2", *to(there), "waits.py", str(go), env={**SIGNED})
        wait_until("the start to be told", lambda: there.types == ["run.start"], limit_s=120)
        assert not on_command_lines()[1:], "only the launcher's own"
        launcher.process.kill()
        go.touch()
        wait_told(there, "run.start", "run.end")

    assert there.got[1].body["data"]["state"] == "success"


@pytest.mark.ssh
def test_over_ssh_node_0s_agent_is_killed_and_the_launcher_tells_the_end(rack: Rack) -> None:  # noqa: F811
    rack.write("waits.py", WAITS)
    with receiver(host=rack.ssh.hosts[3]) as there:
        launcher = rack.start("--name", "struck", "--nodes", "2", *to(there), "waits.py", "never", env={**SIGNED})
        wait_until("the start to be told", lambda: there.types == ["run.start"], limit_s=120)
        kill_agent(rack, rack.id_of("struck"))
        assert launcher.end() == 1
        wait_until("the end to be told", lambda: "run.end" in there.types, limit_s=60)

    assert there.types.count("run.start") == there.types.count("run.end") == 1
    assert there.got[-1].body["data"]["state"] == "failed"


@pytest.mark.ssh
def test_behind_a_bastion_node_0_tells_what_no_launcher_takes_on(lab: Lab) -> None:
    """The receiver is inside: the agents reach it, and the launcher does not."""
    lab.rack.write("fails.py", FAILS)
    with receiver(host=lab.rack.ssh.hosts[2]) as there:
        done = lab("run", "--on", "lab", "--detach", *to(there), "fails.py", env={**SIGNED})
        assert done.exit_code == 0, done.stderr
        wait_told(there, *ALL)
        assert wait_end(lab, done.stdout.strip())["state"] == "failed"

    held = shown([lab.rack.remote, lab.rack.cli.runs, lab.bastion.directory, lab.home])
    assert held.keys() == {"notify", "run.json"}
    assert not any(held.values())


@pytest.mark.slurm
def test_behind_a_login_node_of_slurm_node_0_tells_of_a_detached_run(laptop: Laptop) -> None:
    laptop.cli.write("fails.py", FAILS)
    with receiver(host=laptop.node.slurm.hosts[3]) as there:
        where = ("run", "--on", "juno", "--gres", "none", "--exclude", "n4", "--detach")
        done = laptop(*where, *to(there), "fails.py", env={**SIGNED})
        assert done.exit_code == 0, done.stderr
        wait_told(there, *ALL)
        assert laptop.wait_end()["state"] == "failed"

    held = shown([laptop.top, laptop.cli.runs, laptop.node.directory])
    assert "notify" in held
    assert not any(held.values()), held
    assert not on_command_lines()


@pytest.mark.slurm
def test_behind_a_login_node_of_slurm_a_launcher_is_killed_and_node_0_tells_the_end(
    laptop: Laptop,
) -> None:
    laptop.cli.write("waits.py", WAITS)
    with receiver(host=laptop.node.slurm.hosts[3]) as there:
        words = ("--gres", "none", "--exclude", "n4", "--on-hangup", "detach", *to(there), "waits.py")
        go = laptop.cli.directory / "go"
        argv = ("run", "--on", "juno", *words, str(go))
        launcher = laptop.cli.start(*argv, env=laptop.env({**SIGNED}))
        wait_until("the start to be told", lambda: there.types == ["run.start"], limit_s=120)
        launcher.kill()
        launcher.communicate()
        go.touch()
        wait_told(there, "run.start", "run.end")

    assert there.got[1].body["data"]["state"] == "success"


@pytest.mark.k8s
@pytest.mark.timeout(300)
def test_a_pod_tells_of_a_detached_run_and_has_the_url_from_a_secret(pods: User) -> None:  # noqa: F811
    pods.write("fails.py", FAILS)
    with receiver(host=pods.kube.controller) as there:
        run = pods.detached("--nodes", "2", *to(there), "fails.py", env={**SIGNED})
        wait_told(there, *ALL)
        assert pods("wait", run).exit_code == 1
        texts = json.dumps([pods.pods(run), *listed(pods, "configmaps"), *listed(pods, "jobs")])

    assert TOKEN not in texts
    assert SECRET.decode() not in texts
    held = shown([pods.cli.runs])
    assert not any(held.values()), held


@pytest.mark.k8s
@pytest.mark.timeout(300)
def test_on_kubernetes_a_launcher_is_killed_and_the_pod_tells_the_end(pods: User) -> None:  # noqa: F811
    pods.write("waits.py", "import time; time.sleep(20)")
    with receiver(host=pods.kube.controller) as there:
        launcher = pods.cli.start("k8s", *to(there), "waits.py", env=pods.env({**SIGNED}))
        wait_until("the start to be told", lambda: there.types == ["run.start"], limit_s=120)
        launcher.kill()
        launcher.communicate()
        wait_told(there, "run.start", "run.end")

    assert there.got[1].body["data"]["state"] == "success"


def listed(user: User, kind: str) -> list[object]:
    """The objects of that kind in the user's namespace."""
    group = "/apis/batch/v1" if kind == "jobs" else "/api/v1"
    found: list[object] = user.kube.api.get(f"{group}/namespaces/{user.namespace}/{kind}")["items"]
    return found
