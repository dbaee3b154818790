"""One host, which has none of Slurm's commands, drives two Slurm clusters, hosts with sshd and a Kubernetes."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from testbed import wait_until
from tests.moving import STEPS, went_on
from tests.slurm.racing import lab, racing  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.ssh import SshHosts
    from tests.command import Result
    from tests.k8s.conftest import User
    from tests.slurm.racing import Racing

pytestmark = [pytest.mark.k8s, pytest.mark.slurm, pytest.mark.ssh, pytest.mark.timeout(600)]

NO_CLUSTER: dict[str, str | None] = {"KUBECONFIG": None, "DISTLAUNCH_NAMESPACE": None, "DISTLAUNCH_IMAGE": None}
NAMES = ("juno", "lab", "rack", "kube")
LIMIT_S = 240
IN_ALL = 300
SAVES = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(0)))
attempt = os.environ.get("DISTLAUNCH_ATTEMPT", "0")
print("attempt", attempt, *([os.environ["DISTLAUNCH_ATTEMPT_REASON"]] if attempt != "0" else []), flush=True)
os.makedirs("out", exist_ok=True)
with open("out/done", "w") as file:
    file.write(attempt)
time.sleep(float(sys.argv[1]) if attempt == "0" else 0)
"""


@dataclass
class Host:
    """The settings name all four."""

    slurm: Racing
    pods: User

    def __call__(self, *args: str) -> Result:
        """Run distlaunch to its end."""
        return self.slurm(*args, env=NO_CLUSTER)

    def json(self, *args: str) -> Any:
        """The result of a command."""
        done = self(*args, "--output", "json")
        assert done.exit_code == 0, done.stderr
        return done.json["result"]

    def detached(self, *args: str) -> str:
        """The id of a run that is not followed."""
        done = self("run", "--detach", *args)
        assert done.exit_code == 0, done.stderr
        return done.stdout.strip()

    def wait_printed(self, run: str, text: str) -> None:
        wait_until(f"{run} to print {text!r}", lambda: text in self("logs", run).stdout, limit_s=LIMIT_S, every_s=0.5)


@pytest.fixture
def host(racing: Racing, pods: User, ssh_hosts: SshHosts) -> Iterator[Host]:  # noqa: F811 - a fixture
    names = [host.name for host in ssh_hosts.hosts[:2]]
    remote = racing.home / "rack"
    remote.mkdir()
    inventory = racing.cli.write(
        "rack.ini",
        "\n".join([*names, "[all:vars]", "ansible_user=root", f"ansible_ssh_common_args=-F {ssh_hosts.config}"]),
    )
    clusters: dict[str, dict[str, object]] = {
        "rack": {
            "backend": "ansible", "inventory": [str(inventory)], "nodes": 1,
            "remote_dir": str(remote), "python": sys.executable,
        },
        "kube": {
            "backend": "k8s", "kubeconfig": str(pods.kubeconfig), "namespace": pods.namespace, "image": pods.image,
            "gpus_per_node": 0,
        },
    }  # fmt: skip
    text = (racing.cli.directory / "system.toml").read_text()
    for name, values in clusters.items():
        text += f"[clusters.{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    racing.cli.write("system.toml", text)
    racing.cli.write("saves.py", SAVES)
    racing.cli.write("steps.py", STEPS)
    made = Host(racing, pods)
    yield made
    for row in made.json("ls")["runs"]:
        if row["state"] in ("running", "pending"):
            made("cancel", "--force", row["run"])


def whole_life(host: Host, name: str) -> None:
    """Submitted, listed, watched, started again, its files fetched, cancelled and removed."""
    run = host.detached("--on", name, "--name", name, "saves.py", "600")
    host.wait_printed(run, "attempt 0")
    state = host.json("status", run)
    assert (state["state"], state["cluster"]) == ("running", name)
    assert run in [row["run"] for row in host.json("ls", "--on", name)["runs"]]
    if name == "rack":  # without a scheduler, a run that runs is ended first
        assert "its agents still run" in host("requeue", run).stderr
        assert host("cancel", run).exit_code == 0
        host("wait", run)
    again = host("requeue", run)
    assert again.exit_code == 0, f"{name}: {again.stderr}"
    assert host("wait", run).exit_code == 0
    lines = [line.partition("] ")[2] for line in host("logs", run).stdout.splitlines()]
    why = "cancelled" if name == "rack" else "preempted"
    assert lines == ["attempt 0", "saved", f"attempt 1 {why}"], name

    fetched = host("run", "--on", name, "--name", f"{name}-kept", "--fetch", "out/*", "saves.py", "0")
    assert (fetched.exit_code, fetched.stdout) == (0, "attempt 0\n"), f"{name}: {fetched.stderr}"
    assert [path.read_text() for path in host.slurm.cli.directory.glob(f"{name}-kept*/out/done")] == ["0"]

    last = host.detached("--on", name, "--name", f"{name}-last", "saves.py", "600")
    host.wait_printed(last, "attempt 0")
    assert host("cancel", last).exit_code == 0
    assert host("wait", last).exit_code == 130
    assert host("rm", last).exit_code == 0


def test_the_whole_life_of_a_run_on_each_of_them_at_the_same_time(host: Host) -> None:
    def all_answer() -> bool:
        """One may take longer than the command waits, as this host does the work of all of them."""
        rows = host.json("clusters", *NAMES)["clusters"]
        assert [row["cluster"] for row in rows] == [*NAMES]
        return all(row["problem"] is None and row["nodes"] for row in rows)

    wait_until("all clusters to answer", all_answer, limit_s=LIMIT_S)

    with ThreadPoolExecutor(len(NAMES)) as pool:
        list(pool.map(lambda name: whole_life(host, name), NAMES))


def test_all_four_race_and_the_run_then_moves_from_one_to_the_next(host: Host) -> None:
    """One of them gets it, and nothing of the others' tries is left; each step is made once, wherever it goes."""
    raced = host.slurm.cli.start(
        "run", "--on", ",".join(NAMES), "--start", "first", "--race", "4", "saves.py", "0",
        env=host.slurm.env(NO_CLUSTER),
    )  # fmt: skip
    out, said = raced.communicate(timeout=LIMIT_S)
    assert (raced.returncode, out) == (0, b"attempt 0\n"), said.decode()
    state = host.json("status", "last")
    tries = {each["cluster"]: each for each in state["race"]["tries"]}
    assert tries.keys() == set(NAMES)
    assert [name for name in NAMES if tries[name]["granted_at"]] == [state["cluster"]]
    if state["cluster"] != "kube":  # a pod that is being deleted goes a moment later
        wait_until("nothing to be left", lambda: not host.pods.left(tries["kube"]["run"]), limit_s=LIMIT_S)

    run = host.detached("--on", ",".join(NAMES), "--start", "soonest", "steps.py", str(IN_ALL))
    host.wait_printed(run, "step 3")
    route = [name for name in NAMES if name != host.json("status", run)["cluster"]]
    for name in route:
        moved = host("move", run, "--to", name, "--carry", "out/**")
        assert moved.exit_code == 0, f"to {name}: {moved.stderr}"
        assert host.json("status", run)["cluster"] == name
        before = host("logs", run).stdout.count("step")
        wait_until("a step there", lambda: host("logs", run).stdout.count("step") > before + 1, limit_s=LIMIT_S)  # noqa: B023
    assert host("wait", run).exit_code == 0
    went_on(host("logs", run).stdout, IN_ALL, len(NAMES))
