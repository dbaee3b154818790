"""Whether what a fork server has imported is what the next run's would import: the variables, the modules, their files.

Torch and the libraries below it read only known variables at their import (`early.py`). Of other modules nothing is
known, so if such were imported, every variable counts, except those that belong to one run or one login.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Dict, List, Mapping, Sequence, Tuple

from .early import is_read_at_import
from .forks import READ_AT_START
from .imported import Files

_OF_ONE_RUN = (
    "DISTLAUNCH_\\w+|TORCHELASTIC_\\w+|((GROUP|LOCAL|ROLE)_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|"
    "PWD|OLDPWD|SHLVL|_|SSH_\\w+|TERM|TERM_\\w+|COLORTERM|COLUMNS|LINES|TMUX\\w*|STY|WINDOW\\w*|"
    "XDG_(SESSION_\\w+|VTNR|SEAT)|INVOCATION_ID|JOURNAL_STREAM|SYSTEMD_EXEC_PID|PYTEST_\\w+"
)
_BY_ALL = (
    "HOME|PATH|TMPDIR|TEMP|TMP|USER|LOGNAME|LNAME|USERNAME|SHELL|XDG_(CACHE|CONFIG|DATA)_\\w+|NLSPATH|"
    "(AMD|CUDA|GLOO|GPU|HF|HIP|HSA|MIOPEN|NCCL|NVIDIA|RCCL|ROCM|ROCR|SSL|TRITON|UCX|XLA)_\\w*|CUDA\\w*"
)
"""Where the C library, Python's own modules and the drivers' libraries look for files and devices."""

_WHEN_USED = "(CUDA|HIP|ROCR|NVIDIA)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL"
"""Read when a process first uses a GPU, which none does before it is forked: a lease may give other GPUs each time."""

_ONLY_TORCH = frozenset(("torch", "torch.distributed", "torch.distributed.nn", "torch._dynamo"))


def changed(then: Mapping[str, str], now: Mapping[str, str], modules: Sequence[str]) -> List[str]:
    """The variables that differ and may have been read by the import of these modules; sorted."""
    differ = sorted(name for name in {*then, *now} if then.get(name) != now.get(name))
    return [name for name in differ if _counts(name, only_torch=_ONLY_TORCH.issuperset(modules))]


def read(env: Mapping[str, str], modules: Sequence[str]) -> Dict[str, str]:
    """The variables that count."""
    only_torch = _ONLY_TORCH.issuperset(modules)
    return {name: value for name, value in env.items() if _counts(name, only_torch=only_torch)}


def _counts(name: str, *, only_torch: bool) -> bool:
    if re.fullmatch(_WHEN_USED, name):
        return not only_torch
    if name.startswith(READ_AT_START) or is_read_at_import("torch", name) or re.fullmatch(_BY_ALL, name):
        return not name.startswith("TORCHELASTIC_")
    return not only_torch and not re.fullmatch(_OF_ONE_RUN, name)


def base(env: Mapping[str, str], cwd: str) -> str:
    """The directory to which a part of PYTHONPATH is relative, such as an empty one; empty if all are absolute."""
    path = env.get("PYTHONPATH")
    return os.path.realpath(cwd) if path and not all(map(os.path.isabs, path.split(os.pathsep))) else ""


def files(search: Sequence[str]) -> Files:
    """All files of the loaded modules and native libraries, the directories of `sys.path`, and their .pth files."""
    paths = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths |= {line.split(None, 5)[5].rstrip("\n") for line in maps if line.count("/") > 0}
    for directory in filter(os.path.isdir, search):
        paths |= {directory, *(os.path.join(directory, name) for name in os.listdir(directory) if name[-4:] == ".pth")}
    found: Files = {}
    for path in paths:
        if isinstance(path, str) and path.startswith("/") and ".pyz" not in path and not path.startswith("/dev/"):
            found[path] = _about(path)
    return found


def changed_files(before: Files) -> List[str]:
    """Those of them that have changed since; sorted."""
    return sorted(path for path, about in before.items() if _about(path) != about)


def _about(path: str) -> Tuple[int, int, int]:
    try:
        about = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (about.st_mtime_ns, about.st_size, about.st_ino)
