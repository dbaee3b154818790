"""The resources of a node, counted without torch and without initializing CUDA."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from . import cgroup, nvml

THREADS = "OMP_NUM_THREADS"
_CUDA, _HIP, _ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"


def python_version() -> str:
    """The version of this interpreter."""
    return ".".join(map(str, sys.version_info[:3]))


def cpus() -> int:
    """The number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def _amd_gpus() -> int:
    """The number of GPUs that the amdgpu driver shows (KFD nodes with SIMD units)."""
    nodes = "/sys/class/kfd/kfd/topology/nodes"
    try:
        entries = os.listdir(nodes)
    except OSError:
        return 0
    found = 0
    for entry in entries:
        try:
            with open(f"{nodes}/{entry}/properties", encoding="ascii") as file:
                found += any(
                    line.split()[0] == "simd_count" and line.split()[1] != "0" for line in file if line.strip()
                )
        except OSError:
            continue
    return found


def visible(variable: Optional[str], count: int) -> List[str]:
    """The ids, out of `count` devices, in a *_VISIBLE_DEVICES variable; as in CUDA, the first invalid id ends it."""
    if variable is None:
        return [str(index) for index in range(count)]
    chosen: List[str] = []
    for raw in variable.split(","):
        name = raw.strip()
        if name.isdigit():
            if int(name) >= count:
                break
        elif not name.startswith(("GPU-", "MIG-")):
            break
        chosen.append(name)
    return chosen


def visible_of_amd(env: Mapping[str, str], count: int) -> List[str]:
    """The ids, out of `count` devices of AMD, that this environment leaves.

    ROCR hides devices from HIP, which reads CUDA's variable as well, and numbers those that are left.
    """
    variable, chosen = _listed_of_amd(env, count)
    if variable == _ROCR:
        return chosen
    left = visible(env.get(_ROCR), count)
    return [left[int(name)] if name.isdigit() else name for name in chosen]


def _listed_of_amd(env: Mapping[str, str], count: int) -> Tuple[str, List[str]]:
    left = visible(env.get(_ROCR), count)
    variable = next((name for name in (_HIP, _CUDA) if name in env), None)
    return (variable, visible(env[variable], len(left))) if variable else (_ROCR if _ROCR in env else _CUDA, left)


def listed(env: Mapping[str, str]) -> Tuple[str, List[str]]:
    """The GPUs that workers with this environment would see, as in the variable that lists them, and its name.

    Raises `NoAnswerError`, see `nvml`.
    """
    found = nvml.gpus()
    if found:
        return _CUDA, visible(env.get(_CUDA), found)
    found = _amd_gpus()
    return _listed_of_amd(env, found) if found else (_CUDA, [])


def gpus(env: Mapping[str, str]) -> List[str]:
    """The ids of the GPUs that workers with this environment would see. Raises `NoAnswerError`, see `nvml`."""
    found = nvml.gpus()
    if found:
        return visible(env.get(_CUDA), found)
    found = _amd_gpus()
    return visible_of_amd(env, found) if found else []


def of_process(names: Sequence[str], *, apart: bool = False) -> int:
    """How many of these GPUs one process can use: of MIG instances, CUDA shows it only the first.

    `apart`: each process is shown one of its own.
    """
    return len(names) if apart or not any(name.startswith("MIG-") for name in names) else 1


def gpu_count(env: Mapping[str, str], *, apart: bool = True) -> Optional[int]:
    """How many GPUs these are, or of them `of_process`; None if their driver does not answer."""
    try:
        return of_process(gpus(env), apart=apart)
    except nvml.NoAnswerError:
        return None


def oom_kills() -> int:
    """How many processes of our cgroup the kernel's OOM killer has killed; those of the host if that is not counted.

    The cgroup comes first, since a host is shared: an OOM kill of another user's process says nothing about a worker.
    """
    for path in (*cgroup.memory_counters(), "/proc/vmstat"):
        try:
            with open(path, encoding="ascii") as file:
                found = [int(line.split()[1]) for line in file if line.split()[:1] == ["oom_kill"]]
        except (OSError, ValueError):
            continue
        if found:
            return found[0]
    return 0


def load_average() -> Optional[float]:
    """The load of this machine; None if it cannot be read, as in a container without /proc/loadavg."""
    with contextlib.suppress(OSError):
        return round(os.getloadavg()[0], 2)
    return None


def load() -> str:
    """The load of this machine, as text."""
    average = load_average()
    text = f"{cpus()} CPUs" if average is None else f"load {average:.1f} on {cpus()} CPUs"
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as file:
        available = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
        text += f", {available / (1 << 20):.1f} GiB of memory available"
    return text


def host(env: Mapping[str, str]) -> Dict[str, Any]:
    """The fields of the `host_facts` event that do not need torch."""
    return {
        "cpus": cpus(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": gpu_count(env),
        "kernel": os.uname().release,
        "python_version": python_version(),
    }


def threads(env: Dict[str, str], *, shared: bool) -> Tuple[Optional[str], str]:
    """OMP_NUM_THREADS of a node's workers, and the reason: torchrun's rule, on all backends. None: not set.

    `shared`: whether several workers share the host.
    """
    if THREADS in env:
        return env[THREADS], "as it was set"
    if shared:
        return "1", "several workers share the host, and it was not set: torchrun's rule"
    return None, "one worker has the host, or what the scheduler gives it: torchrun's rule"
