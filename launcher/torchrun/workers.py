"""How many workers a node has, counted as in torchrun, and which Python runs them."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from launcher.agent.system import facts
from launcher.torchrun.options import TorchrunUsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_IMPORT_S = 120.0
"""How long another Python may take to import torch."""


def count(text: str, env: Mapping[str, str], python: str) -> int:
    """How many workers a node has, counted as in torchrun."""
    if text.lstrip("+-").isdigit():
        if int(text) < 1:
            raise TorchrunUsageError(f"--nproc-per-node {text}: a node has 1 worker or more")
        return int(text)
    if text == "cpu":
        return facts.cpus()
    try:
        gpus = facts.of_process(facts.gpus(env)) if text in ("auto", "gpu") and _knows_gpus() else 0
    except OSError as error:
        raise TorchrunUsageError(f"--nproc-per-node {text}: {error}") from error
    if gpus:
        return gpus
    if text == "auto" and not _other_accelerators():
        return facts.cpus()
    return _ask_torch(text, python)


def _knows_gpus() -> bool:
    """Whether our torch was built for GPUs, according to its files; True without one, as another Python may have it."""
    import re

    found = find_spec("torch")
    if found is None or not found.origin:
        return True
    try:
        with open(os.path.join(os.path.dirname(found.origin), "version.py"), encoding="utf-8") as file:
            return re.search(r"^(cuda|hip)\b[^=]*=\s*['\"]", file.read(), re.MULTILINE) is not None
    except OSError:
        return True


def _other_accelerators() -> bool:
    """Whether this machine has devices that torch may count but we do not."""
    return any(os.path.exists(path) for path in ("/dev/dri", "/dev/accel", "/dev/davinci_manager", "/dev/hl0"))


def _ask_torch(text: str, python: str) -> int:
    """The number of devices that torch itself counts."""
    from launcher.system import proc

    code = "from torch.distributed.run import determine_local_world_size as count; print(count(sys.argv[1]))"
    done = proc.run([python, "-c", proc.WITHOUT_HERE + code, text], timeout_s=_IMPORT_S)
    last = (done.stdout or done.stderr).strip().rpartition("\n")[2]
    if done.returncode or not last.isdigit():
        raise TorchrunUsageError(f"--nproc-per-node {text}: {last.partition(': ')[2] or last}")
    return int(last)


def own_python(env: Mapping[str, str]) -> str:
    """The interpreter that has torch: ours, else the one on PATH."""
    if find_spec("torch") is not None:
        return sys.executable
    import shutil

    from launcher.system import proc

    found = shutil.which("python3", path=env.get("PATH")) or shutil.which("python", path=env.get("PATH"))
    code = f"{proc.WITHOUT_HERE}import importlib.util; sys.exit(importlib.util.find_spec('torch') is None)"
    if found and proc.run([found, "-c", code], timeout_s=_IMPORT_S).returncode == 0:
        return found
    return sys.executable
