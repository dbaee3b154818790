"""What a node's GPUs do: use, memory and power. From NVIDIA's NVML, or the amdgpu driver's files."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ..system import facts

_MIB = 1 << 20
_DRM = "/sys/class/drm"


class Gpu(NamedTuple):
    """One GPU now; None: not known."""

    use: Optional[int] = None
    """Percent of the last interval of the driver, a second at most, in which something ran on it."""

    memory_mib: Optional[int] = None
    memory_total_mib: Optional[int] = None
    power_w: Optional[int] = None


class Gpus:
    """The GPUs that workers with this environment see. The first reading may take a second."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._devices: Optional[Sequence[Any]] = None

    def now(self) -> List[Gpu]:
        """All of them, in the order of the workers' device numbers."""
        if self._devices is None:
            self._devices = _nvidia(self._env) or _amd(self._env)
        return [device.now() for device in self._devices]


class _Nvidia:
    """A device of NVML."""

    def __init__(self, nvml: Any, handle: ctypes.c_void_p) -> None:
        self._nvml, self._handle = nvml, handle

    def now(self) -> Gpu:
        use, memory, power = (ctypes.c_uint * 2)(), (ctypes.c_ulonglong * 3)(), ctypes.c_uint()
        values: Dict[str, int] = {}
        if self._nvml.nvmlDeviceGetUtilizationRates(self._handle, use) == 0:  # gpu, memory
            values["use"] = use[0]
        if self._nvml.nvmlDeviceGetMemoryInfo(self._handle, memory) == 0:  # total, free, used
            values.update(memory_mib=memory[2] // _MIB, memory_total_mib=memory[0] // _MIB)
        if self._nvml.nvmlDeviceGetPowerUsage(self._handle, ctypes.byref(power)) == 0:  # milliwatts
            values["power_w"] = round(power.value / 1000)
        return Gpu(**values)


def _nvidia(env: Mapping[str, str]) -> List[_Nvidia]:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return []
    count = ctypes.c_uint(0)
    if nvml.nvmlInit_v2() != 0 or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return []
    found = []
    for name in facts.visible(env.get("CUDA_VISIBLE_DEVICES"), count.value):
        handle = ctypes.c_void_p()
        if name.isdigit():
            code = nvml.nvmlDeviceGetHandleByIndex_v2(int(name), ctypes.byref(handle))
        else:
            code = nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
        found += [_Nvidia(nvml, handle)] if code == 0 else []
    return found


class _Amd:
    """A device of the amdgpu driver, by its directory in sysfs."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        with contextlib.suppress(OSError):
            self._power = [f"hwmon/{name}/power1_average" for name in os.listdir(f"{directory}/hwmon")]

    _power: Sequence[str] = ()

    def now(self) -> Gpu:
        used, total = self._number("mem_info_vram_used"), self._number("mem_info_vram_total")
        power = next((watt for path in self._power if (watt := self._number(path)) is not None), None)
        return Gpu(
            use=self._number("gpu_busy_percent"),
            memory_mib=None if used is None else used // _MIB,
            memory_total_mib=None if total is None else total // _MIB,
            power_w=None if power is None else round(power / 1e6),
        )

    def _number(self, name: str) -> Optional[int]:
        with contextlib.suppress(OSError, ValueError), open(f"{self._directory}/{name}", encoding="ascii") as file:
            return int(file.read())
        return None


def _amd(env: Mapping[str, str]) -> List[_Amd]:
    paths: List[str] = []
    with contextlib.suppress(OSError):
        cards = (os.path.realpath(f"{_DRM}/{name}/device") for name in os.listdir(_DRM) if name[4:].isdigit())
        paths = sorted({path for path in cards if os.path.exists(f"{path}/gpu_busy_percent")})
    shown = facts.visible(env.get("HIP_VISIBLE_DEVICES", env.get("ROCR_VISIBLE_DEVICES")), len(paths))
    return [_Amd(paths[int(name)]) for name in shown if name.isdigit()]
