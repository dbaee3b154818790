"""What a node's GPUs do: use, memory and power. From NVIDIA's NVML, or the amdgpu driver's files."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set

from ..named_tuple import NamedTuple
from ..system import facts, nvml

_MIB = 1 << 20
_DRM = "/sys/class/drm"
_PATIENCE_S = 2.0
"""How long a sample waits for the GPUs; then it has the rest, and GPUs follow once their driver answers."""


class Gpu(NamedTuple):
    """One GPU now; None: not known."""

    use: Optional[int] = None
    """Percent of the last interval of the driver, a second at most, in which something ran on it."""

    memory_mib: Optional[int] = None
    memory_total_mib: Optional[int] = None
    power_w: Optional[int] = None


class Gpus:
    """The GPUs that workers with this environment see."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._devices: Optional[Sequence[Any]] = None
        self._reading: Optional[threading.Thread] = None
        self._found: List[Gpu] = []
        self._error: Optional[Exception] = None
        self._warned: Set[str] = set()
        self._troubles: List[str] = []

    def now(self) -> List[Gpu]:
        """All of them, in the order of the workers' device numbers; none while their driver does not answer."""
        if self._devices is not None and not self._devices:
            return []
        if self._reading is None or not self._reading.is_alive():
            self._reading = threading.Thread(target=self._read, daemon=True, name="gpus")
            self._reading.start()
        self._reading.join(_PATIENCE_S)
        if self._reading.is_alive():
            if self._devices is not None:  # at first, it may only be slow
                self._warn("the driver of the GPUs does not answer")
            return []
        if self._error is not None:
            raise self._error
        return self._found

    def troubles(self) -> List[str]:
        """What is wrong with GPUs, since the last call; each once."""
        found, self._troubles = self._troubles, []
        return found

    def _read(self) -> None:
        try:
            if self._devices is None:
                self._devices = _nvidia(self._env) or _amd(self._env)
            self._found = [device.now() for device in self._devices]
            for device in self._devices:
                if trouble := device.trouble:
                    self._warn(trouble)
        except Exception as error:  # noqa: BLE001 - for the thread that asks
            self._error = error

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._troubles.append(text)


class _Nvidia:
    """A device of NVML; a MIG instance has no use and no power of its own."""

    trouble = ""

    def __init__(self, library: nvml.Nvml, name: str, handle: ctypes.c_void_p, code: int) -> None:
        """`code`: that with which NVML has returned the handle."""
        self._nvml, self._name, self._handle, self._code = library, name, handle, code

    def now(self) -> Gpu:
        use, memory, power = (ctypes.c_uint * 2)(), (ctypes.c_ulonglong * 3)(), ctypes.c_uint()
        values: Dict[str, int] = {}
        if self._gives("nvmlDeviceGetUtilizationRates", use):  # gpu, memory
            values["use"] = use[0]
        if self._gives("nvmlDeviceGetMemoryInfo", memory):  # total, free, used
            values.update(memory_mib=memory[2] // _MIB, memory_total_mib=memory[0] // _MIB)
        if self._gives("nvmlDeviceGetPowerUsage", ctypes.byref(power)):  # milliwatts
            values["power_w"] = round(power.value / 1000)
        if self._code == nvml.LOST:
            self.trouble = f"GPU {self._name} is lost: it has fallen off the bus, or was reset (see dmesg for its Xid)"
        return Gpu(**values)

    def _gives(self, name: str, into: Any) -> bool:
        if self._code == nvml.LOST:  # and it stays lost
            return False
        code = self._nvml.call(name, self._handle, into)
        self._code = code if code == nvml.LOST else self._code
        return code == nvml.OK


def _nvidia(env: Mapping[str, str]) -> List[_Nvidia]:
    """One for each of the workers' device numbers, also if NVML cannot open it; as in CUDA, an unknown one ends it."""
    library = nvml.opened()
    found: List[_Nvidia] = []
    for name in facts.visible(env.get("CUDA_VISIBLE_DEVICES"), library.count()) if library else ():
        handle = ctypes.c_void_p()
        code = library.device(name, handle) if library else nvml.NOT_FOUND
        if library is None or code == nvml.NOT_FOUND:
            break
        found.append(_Nvidia(library, name, handle, code))
    return found


class _Amd:
    """A device of the amdgpu driver, by its directory in sysfs."""

    trouble = ""

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
    return [_Amd(paths[int(name)]) for name in facts.visible_of_amd(env, len(paths)) if name.isdigit()]
