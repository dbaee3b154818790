"""`distlaunch doctor` as a user runs it: on this machine, and on a real Slurm whose hosts have faults."""

from __future__ import annotations

import importlib.metadata
import json
import re
import resource
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launcher.settings import quarantine
from testbed import SlurmOptions, fixtures
from tests.fabric.conftest import Nodes
from tests.receivers import receiver

if TYPE_CHECKING:
    from testbed.testbed import Testbed
    from tests.command import Cli

FASTER = ("--seconds", "0.2")


@pytest.mark.torch
def test_this_machine_is_examined(distlaunch: Cli) -> None:
    done = distlaunch("doctor", "local", "--nodes", "3", *FASTER, "--output", "json", timeout_s=240)

    assert done.exit_code in (0, 1), done.stderr  # other tests may fill its disks or use up its CPUs meanwhile
    told = done.json["result"]
    assert [node["reported"] for node in told["nodes"]] == [True] * 3
    assert not [finding for finding in told["findings"] if finding["check"] in ("versions", "clock", "gpu")]
    events = [
        json.loads(line)
        for line in (distlaunch.runs / told["run"] / "nodes/1/stream").read_text().splitlines()
        if '"facts"' in line
    ]
    assert events[0]["nics"][0]["name"] == "lo"


@pytest.mark.torch
@pytest.mark.parametrize("contract", ["env", "jax", "tensorflow"])
def test_settings_of_jobs_are_not_those_of_the_examination(distlaunch: Cli, contract: str) -> None:
    with receiver() as told:
        lines = (f'contract = "{contract}"', f'notify = ["{told.url}"]', "no_python = true", "max_restarts = 3")
        distlaunch.write(".config/distlaunch/config.toml", "\n".join(["[defaults]", *lines, 'notify_secret = "NONE"']))
        env: dict[str, str | None] = {"DISTLAUNCH_ON_HANG": "end", "DISTLAUNCH_HANG_AFTER": "2s"}

        done = distlaunch("doctor", "local", "--nodes", "2", *FASTER, "--output", "json", env=env)

        assert done.exit_code in (0, 1), done.stderr
        assert [node["reported"] for node in done.json["result"]["nodes"]] == [True] * 2
        assert told.got == []
    (run,) = distlaunch.runs.iterdir()
    settings = json.loads((run / "run.json").read_text())["settings"]
    used = [settings[name]["value"] for name in ("contract", "max_restarts", "on_hang", "hang_after")]
    assert used == ["torchrun", 0, "warn", "5m"]


@pytest.mark.torch
def test_few_open_files_are_those_of_the_workers(distlaunch: Cli) -> None:
    command = [sys.executable, "-m", "launcher", "doctor", "local", "--nodes", "2", *FASTER, "--output", "json"]
    limited = ["sh", "-c", 'ulimit -Hn 8192; ulimit -Sn 1024; exec "$@"', "sh", *command]

    done = subprocess.run(
        limited, env=distlaunch.env(), cwd=distlaunch.directory, capture_output=True, timeout=240, check=False
    )

    assert done.returncode in (0, 1), done.stderr
    found = [each for each in json.loads(done.stdout)["result"]["findings"] if each["check"] == "limits"]
    few = [(each["node"], each["status"]) for each in found if each["reason"] == "at most 1024 open files"]
    assert sorted(few) == [(0, "warn"), (1, "warn")]


def break_hosts(testbed: Testbed, directory: Path) -> None:
    """n1 stays healthy; each of the others gets several faults."""
    nodes = Nodes(testbed, directory)
    for number, host in enumerate(testbed.hosts):
        nodes.second_link(host, "rail0", f"10.99.0.{number + 1}/24", bridge="rail")
    _, n2, n3, n4 = testbed.hosts
    n2.run(("ip", "link", "set", "eth0", "mtu", "1400"), check=True)
    n2.run(("ip", "-netns", n2.switch, "link", "set", "n2rail0", "down"), check=True)
    n3.slow_link(rate_kbit=40_000)
    n4.private_directory(Path("/dev/shm"), size_bytes=64 << 20)
    n4.fill(Path("/dev/shm"))
    for process in n4.processes():
        resource.prlimit(process.pid, resource.RLIMIT_MEMLOCK, (1 << 16, 1 << 16))
    late = "import time\nthe_time = time.time\ntime.time = lambda: the_time() - 300\n"
    (version,) = (path for path in importlib.metadata.files("torch") or () if str(path) == "torch/version.py")
    text = Path(str(version.locate())).read_text()
    for host, spoilt in ((n3, text + late), (n4, text + "__version__ = '2.1.0'\n")):
        path = directory / f"version-{host.name}.py"
        path.write_text(spoilt)
        host.run(("mount", "--bind", str(path), str(version.locate())), check=True, cwd="/")


@pytest.mark.slurm
def test_each_fault_is_named_at_its_host_and_bad_hosts_are_left_out_later(distlaunch: Cli) -> None:
    distlaunch.write(".config/distlaunch/config.toml", '[clusters.lab]\nbackend = "slurm"\n')
    with fixtures.make(4, slurm=SlurmOptions()) as testbed:
        env: dict[str, str | None] = {
            key: value for key, value in testbed.slurm.env().items() if key.startswith(("SLURM", "PATH"))
        }
        break_hosts(testbed, distlaunch.directory)

        done = distlaunch("doctor", "--on", "lab", "--nodes", "4", *FASTER, "--quarantine", env=env, timeout_s=200)

        assert done.exit_code == 1, done.stderr
        rows = {
            row.split()[0]: row.split()[2:]
            for row in done.stdout.splitlines()
            if re.match(r"n\d +\d +(OK|warn|FAIL) ", row)
        }
        head = done.stdout.splitlines()[0].split()[2:]
        marks = {
            host: {check: mark for check, mark in zip(head, row, strict=True) if mark != "OK"}
            for host, row in rows.items()
        }
        for host, found in marks.items():  # they share their CPUs, and so the load on their links
            by_load = {found.pop("SPEED", ""), found.pop("LINKS", "") if host != "n3" else ""}
            if host == "n1" and "FAIL" in by_load:
                distlaunch("doctor", "--on", "lab", "--release", "n1", env=env)
        assert marks == {
            "n1": {},
            "n2": {"NETWORK": "FAIL"},
            "n3": {"CLOCK": "FAIL", "LINKS": "FAIL"},
            "n4": {"VERSIONS": "FAIL", "DISK": "FAIL", "LIMITS": "warn"},
        }
        told = (
            "n2: network: eth0 has MTU 1400, elsewhere 1500",
            "n2: network: rail0 is down, elsewhere it is up",
            "n3: clock: clock 300.0 s behind the others",
            "n4: versions: torch 2.1.0, where most nodes have",
            "n4: disk: /dev/shm: No space left on device",
            "n4: limits: locked memory 64 KiB",
        )
        assert [line for line in told if line not in done.stdout] == []
        assert re.search(r"FAIL  n3: links: [\d.]+ GB/s with most hosts", done.stdout)
        (picture,) = distlaunch.runs.glob("*/links.svg")
        assert len(ET.parse(picture).getroot().findall("{*}rect")) == 1 + 2 * 16
        pairs = done.stdout.partition("bandwidth of each pair, GB/s: ")[2].partition("latency of each pair")[0]
        fastest = {
            row.split()[0]: max(float(cell) for cell in row.split()[1:] if cell != "-")
            for row in pairs.splitlines()[2:6]
        }
        assert min(fastest, key=lambda host: fastest[host]) == "n3"

        after = distlaunch("run", "--on", "lab", "--nodes", "1", "--log-ranks", "all", "reduce.py", env=env)
        assert after.exit_code == 0, after.stderr
        assert {re.search(r" on (n\d)", line)[1] for line in after.stdout.splitlines() if " on n" in line} == {"n1"}  # type: ignore[index]
        assert set(re.search(r"leaving out (.*):", after.stderr)[1].split(", ")) == {"n2", "n3", "n4"}  # type: ignore[index]
        left = distlaunch("doctor", "--on", "lab", "--release", "n3", "--release", "n2", env=env).stdout.strip()
        assert left == "left out of lab: n4"


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("nowhere",), 2, "doctor nowhere: no backend and no cluster is named"),
        (("local", "--quarantine"), 2, "--quarantine needs a cluster"),
        (("--on", "x"), 2, "unknown cluster 'x'"),
        (("--on", "x", "--release", "n1"), 2, "unknown cluster 'x'"),
        (("--on", "x", "--release"), 2, "--release: which host?"),
        (("local", "train.py"), 2, "unexpected extra argument"),
        (("local", "--nodes", "many"), 2, "nodes 'many' is not a number"),
    ],
)
def test_wrong_input_is_one_clear_error(distlaunch: Cli, args: tuple[str, ...], code: int, message: str) -> None:
    done = distlaunch("doctor", *args)

    assert done.exit_code == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_without_arguments_it_prints_its_usage(distlaunch: Cli) -> None:
    assert "--quarantine" in distlaunch("doctor").stdout
    slurm = distlaunch("doctor", "slurm", "--help").stdout
    assert "--partition" in slurm
    assert not [word for word in ("SCRIPT", "--detach", "--max-restarts", "--array", "--preload") if word in slurm]


@pytest.mark.parametrize(
    ("backend", "settings", "expected"),
    [
        ("ansible", 'inventory = ["n1,n2,n3,n4,"]', "n1 n3"),
        ("k8s", 'image = "torch"\nexclude = "n9"', "n9 n2 n4"),
        ("local", "", "has no effect"),
    ],
)
def test_later_runs_leave_quarantined_hosts_out(distlaunch: Cli, backend: str, settings: str, expected: str) -> None:
    distlaunch.write(".config/distlaunch/config.toml", f'[clusters.lab]\nbackend = "{backend}"\n{settings}\n')
    quarantine.add("lab", {"n2": "slow", "n4": "full"}, {"HOME": str(distlaunch.directory)})

    done = distlaunch("run", "--on", "lab", "--dry-run", "--output", "json", "reduce.py")

    assert done.exit_code == 0, done.stderr
    if backend == "local":
        assert expected in done.stderr
        return
    assert "leaving out n2, n4: they are in lab's quarantine (distlaunch hosts --on lab)" in done.stderr
    told = done.json["result"]
    hosts = [node["host"] for node in told["nodes"]]
    if backend == "k8s":
        hosts = re.findall(
            r"key: metadata.name\n\s+operator: NotIn\n\s+values:\n\s+- (\S+)", "".join(told["files"].values())
        )
    assert " ".join(hosts) == expected
