"""Over SSH, the second run starts from what the first one has left standing on its hosts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

import distlaunch
from launcher.agent.system import processes

if TYPE_CHECKING:
    from tests.ansible.conftest import Rack

pytestmark = [pytest.mark.ssh, pytest.mark.torch]

SUM = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("sum", total.item(), os.getcwd() == os.environ["PWD"], flush=True)
dist.destroy_process_group()
"""


def told(rack: Rack, name: str) -> list[dict[str, Any]]:
    """What the nodes of a run say about servers that stand."""
    streams = (rack.remote / "runs" / rack.id_of(name)).glob("nodes/*/stream")
    events = [json.loads(line) for path in streams for line in path.read_text().splitlines() if line[:1] == "{"]
    return [event for event in events if event["event"] in ("warm_start", "warm_left")]


def test_hosts_keep_what_they_have_imported_for_the_next_run(rack: Rack) -> None:
    rack.write("sum.py", SUM)
    seen = []
    try:
        for name in ("cold", "warm"):
            done = rack("--nodes", "2", "--warm", "2m", "--name", name, "sum.py")
            assert done.exit_code == 0, done
            assert "sum 2.0" in done.stdout
            seen.append(told(rack, name))
    finally:
        left = [event["pid"] for events in seen for event in events if "pid" in event]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    assert [event["used"] for event in seen[0] if "used" in event] == [False, False], seen
    assert len(left) == 2
    assert [(event["used"], event.get("reason")) for event in seen[1] if "used" in event] == [(True, None)] * 2, seen


def test_what_stands_on_the_hosts_of_a_cluster_is_listed_and_ended_from_here(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"gpu1": "ansible_host=n1", "again": "ansible_host=n1", "gone": "ansible_host=n2 ansible_port=1"}
    both = rack.inventory("".join(f"{name} {how}\n" for name, how in named.items()))
    settings = rack.cli.directory / ".config/distlaunch/config.toml"

    def cluster(limit: str) -> None:
        where = f'inventory = ["{both}"]\nlimit = "{limit}"\nremote_dir = "{rack.remote}"\npython = "{sys.executable}"'
        rack.cli.write(str(settings), f'[clusters.lab]\nbackend = "ansible"\n{where}\n')

    def asked(command: str) -> Any:
        done = rack.shell(command, "--warm", "--on", "lab", "--output", "json")
        assert done.exit_code == 0, done
        return done.json["result"]["warm" if command == "ls" else "ended"]

    rack.write("one.py", "import torch\nprint(torch.ones(1).item())\n")
    cluster("gpu1")
    run = rack.shell("run", "--on", "lab", "--warm", "2m", "--name", "one", "one.py")
    assert run.exit_code == 0, run
    (pid,) = [event["pid"] for event in told(rack, "one") if event["event"] == "warm_left"]
    try:
        (server,) = [each for each in asked("ls") if each["pid"] == pid]
        assert (server["host"], server["runs"], "torch" in server["modules"]) == ("gpu1", 0, True)
        assert server["memory_bytes"] > 50_000_000
        shown = rack.shell("ls", "--warm", "--on", "lab").stdout
        assert f"gpu1  {pid}" in shown, shown
        cluster("gpu1:again")
        assert len([each for each in asked("ls") if each["pid"] == pid]) == 1, "two names of one host"
        monkeypatch.setenv("HOME", str(rack.cli.directory))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(settings.parent.parent))
        assert pid in [each["pid"] for each in distlaunch.warm_servers("lab")]

        cluster("all")
        listed = rack.shell("ls", "--warm", "--on", "lab")
        assert listed.exit_code == 0
        assert str(pid) in listed.stdout
        assert "not all hosts have answered: gone: " in listed.stderr, listed
        cluster("gone")
        for command in ("ls", "cancel"):
            done = rack.shell(command, "--warm", "--on", "lab")
            assert (done.exit_code, "no host has answered: gone: " in done.stderr) == (3, True), done
        assert processes.start_ticks(pid) is not None

        cluster("all")
        done = rack.shell("cancel", "--warm", "--on", "lab")
        assert "1 server ended" in done.stderr, done
        assert (done.exit_code, "but not all hosts have answered: gone: " in done.stderr) == (4, True), done
        assert processes.start_ticks(pid) is None, done
        cluster("gpu1")
        assert pid not in [each["pid"] for each in asked("ls") + asked("cancel")]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_where_nothing_stays_is_said(rack: Rack) -> None:
    for command in ("ls", "cancel"):
        done = rack.shell(command, "--warm", "--on", "slurm")
        assert (done.exit_code, "nothing stays after a run on slurm" in done.stderr) == (3, True), done
    done = rack.shell("ls", "--warm", "--on", "nowhere")
    assert (done.exit_code, "no cluster or backend 'nowhere'" in done.stderr) == (2, True), done
