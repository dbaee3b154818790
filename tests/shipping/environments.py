"""Small Python environments, and nodes with disks of their own that get one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from testbed import Host

NODE = Path(__file__).with_name("node.py")
ROOT = NODE.parents[2]
LIMIT_S = 120


def prefix(directory: Path, *, large_bytes: int = 0) -> Path:
    """A Python in one directory: a wrapper of the tests' own, a module with bytecode, and a file of some pieces."""
    packages = directory / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "brought.py").write_text("WHERE = __file__\n")
    subprocess.run([sys.executable, "-m", "compileall", "-q", packages], check=True)
    (packages / "data.bin").write_bytes(os.urandom(large_bytes))
    (packages / "alias.py").symlink_to("brought.py")
    (directory / "bin").mkdir()
    return directory


def venv(directory: Path) -> Path:
    """A virtual environment of the tests' Python with one module."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
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
