"""NVIDIA's library NVML, through ctypes: a call that this driver's library lacks fails like any other."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, List, Optional

OK, NOT_SUPPORTED, NOT_FOUND, LOST = 0, 3, 6, 15
_LACKS = 13
"""NVML_ERROR_FUNCTION_NOT_FOUND."""

_INVALID = 2
_LIBRARY = "libnvidia-ml.so.1"
_UUID_BYTES = 96
_LIMIT_S = 30.0
"""Without persistence mode, the driver starts all GPUs of a host at the first call, which takes seconds."""

_silent = False
"""Whether the driver of this host has not answered this process."""


class NoAnswerError(OSError):
    """The driver does not answer."""


class Nvml:
    """The library, initialized."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def call(self, name: str, *args: Any) -> int:
        """Call a function; returns NVML's code, 0 for success."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            return _LACKS
        return int(function(*args))

    def newest(self, name: str, *args: Any) -> int:
        """Call the second version of a function, or else the first."""
        code = self.call(f"{name}_v2", *args)
        return self.call(name, *args) if code == _LACKS else code

    def count(self) -> int:
        """The number of GPUs, without MIG instances."""
        count = ctypes.c_uint(0)
        return count.value if self.newest("nvmlDeviceGetCount", ctypes.byref(count)) == OK else 0

    def device(self, name: str, handle: ctypes.c_void_p) -> int:
        """Fill in the handle of a GPU or MIG instance, by a name that CUDA_VISIBLE_DEVICES may have; returns the code.

        As in CUDA, a UUID may be abbreviated to as much as names one GPU only.
        """
        if name.isdigit():
            return self.newest("nvmlDeviceGetHandleByIndex", ctypes.c_uint(int(name)), ctypes.byref(handle))
        code = self.call("nvmlDeviceGetHandleByUUID", name.encode(), ctypes.byref(handle))
        if code not in (NOT_FOUND, _INVALID):
            return code
        matches = [index for index in range(self.count()) if self._uuid(index).startswith(name)]
        return self.device(str(matches[0]), handle) if len(matches) == 1 else NOT_FOUND

    def gpu_of(self, instance: str) -> str:
        """The UUID of the GPU that a MIG instance is a part of; empty if the driver does not know it."""
        part, gpu = ctypes.c_void_p(), ctypes.c_void_p()
        code = self.device(instance, part)
        if code == OK:
            code = self.call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", part, ctypes.byref(gpu))
        return self._uuid_of(gpu) if code == OK else ""

    def _uuid(self, index: int) -> str:
        handle = ctypes.c_void_p()
        return self._uuid_of(handle) if self.device(str(index), handle) == OK else ""

    def _uuid_of(self, handle: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(_UUID_BYTES)
        self.call("nvmlDeviceGetUUID", handle, text, ctypes.c_uint(_UUID_BYTES))
        return text.value.decode("ascii", "replace")


def opened() -> Optional[Nvml]:
    """The library; None if there is none, or it has no driver. May take seconds, or never return."""
    try:
        nvml = Nvml(ctypes.CDLL(_LIBRARY))
    except OSError:
        return None
    return nvml if nvml.newest("nvmlInit") == OK else None


def gpu_of(instance: str) -> str:
    """The UUID of the GPU that a MIG instance is a part of; empty if that is unknown. To be called after `gpus`."""
    nvml = opened()
    return nvml.gpu_of(instance) if nvml else ""


def gpus() -> int:
    """The number of GPUs of this host. Raises `NoAnswerError` if the driver does not tell it in time."""
    global _silent  # noqa: PLW0603 - the driver is that of the host: a second look would wait as long
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return 0
    found: List[int] = []

    def ask() -> None:
        nvml = opened()
        found.append(nvml.count() if nvml else 0)

    if not _silent:
        thread = threading.Thread(target=ask, daemon=True, name="nvml")
        thread.start()
        thread.join(_LIMIT_S)
        _silent = not found
    if not found:
        raise NoAnswerError(f"the driver of NVIDIA's GPUs does not answer within {_LIMIT_S:.0f} s: see dmesg")
    return found[0]
