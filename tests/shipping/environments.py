"""Small Python environments, and nodes with disks of their own that get one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from testbed import Host
    from tests.command import Cli

NODE = Path(__file__).with_name("node.py")
ROOT = NODE.parents[2]
LIMIT_S = 120
SYSTEM = "/usr/bin/python3"
SCRIPT = """\
import os, sys
import brought
print(f"rank {os.environ['RANK']}:", sys.executable, brought.WHERE, os.environ["PATH"].split(":")[0])
"""


def venv(directory: Path) -> Path:
    """A virtual environment with one module, based on the system's Python if there is one: that does not travel."""
    python = SYSTEM if os.path.exists(SYSTEM) else sys.executable
    subprocess.run([python, "-m", "venv", "--without-pip", directory], check=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "brought.py").write_text("WHERE = __file__\n")
    tool = directory / "bin/tool"
    tool.write_text(f"#!{directory}/bin/python\nimport brought\nprint(brought.WHERE)\n")
    tool.chmod(0o755)
    return directory


class Part(NamedTuple):
    """A node that was started."""

    rank: int
    process: subprocess.Popen[str]

    def result(self) -> dict[str, Any]:
        """What it says at its end."""
        out, _ = self.process.communicate(timeout=LIMIT_S)
        assert self.process.returncode == 0, out
        return dict(json.loads(out.splitlines()[-1]))


def start(
    directory: Path, source: Path, ranks: Sequence[int], nodes: int, *, hosts: Mapping[int, Host] | None = None,
    dirs: Mapping[int, Path] | None = None, wait_s: float = 60.0,
) -> dict[int, Part]:  # fmt: skip
    """Start these nodes of a run, each with a store of its own; `hosts`: where, by rank."""
    (directory / "run").mkdir(exist_ok=True)
    if 0 in ranks:  # neither the address nor the end of an earlier run: another process may have that port by now
        for name in ("rendezvous.json", "rendezvous.json.end"):
            (directory / "run" / name).unlink(missing_ok=True)
    found = {}
    for rank in ranks:
        store = (dirs or {}).get(rank) or directory / f"disk{rank}"
        about = {"source": str(source), "dir": str(store), "quota_bytes": 10**12}
        meet = {"file": f"{directory}/run/rendezvous.json", "everywhere": True}
        told = {"run": "r", "directory": f"{directory}/run", "rendezvous": meet, "max_nodes": nodes, "min_nodes": nodes}
        job = json.dumps({**told, "env_ship": about, "key": "k" * 64, "rdzv_timeout_s": wait_s})
        words = (sys.executable, str(NODE), job, str(rank))
        env = {"PYTHONPATH": str(ROOT), "DISTLAUNCH_HOST": f"n{rank}"}
        if hosts:
            process = hosts[rank].popen(words, env=env, stdout=subprocess.PIPE, text=True, cwd=str(ROOT))
        else:
            process = subprocess.Popen(words, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True)
        found[rank] = Part(rank, process)
    return found


def lines(text: str) -> dict[int, list[Path]]:
    """What ranks have printed."""
    found = re.findall(r"rank (\d+): (.*)", text)
    return {int(rank): [Path(word) for word in words.split()] for rank, words in found}


def latest(cli: Cli) -> str:
    """The id of the last run."""
    return max(cli.runs.glob("where-2*"), key=lambda path: json.loads((path / "run.json").read_text())["created"]).name


def check(shown: dict[int, list[Path]], ranks: int, store: Path) -> None:
    """All ranks ran in the environment that was brought."""
    assert sorted(shown) == list(range(ranks))
    for paths in shown.values():
        assert len(paths) == 3
        assert all(path.is_relative_to(store / "envs") for path in paths), paths
