"""What a run has used, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.console.summary import duration
from launcher.system import amounts

if TYPE_CHECKING:
    from launcher.results.usage import Usage

HEADER = ("RUN", "STATE", "WAITED", "RAN", "LOST", "GPUS", "GPU-HOURS", "GPU USE", "CPU USE", "MEMORY")


def line(usage: Usage) -> str:
    """One line: `ran 3 h 5 min, 8 GPUs for 24.7 GPU-hours at 87 %, 64 CPUs at 12 %, ...`."""
    parts = [f"ran {duration(usage['ran_s'])}"]
    if usage["gpus"]:
        parts.append(
            f"{amounts.counted(usage['gpus'], 'GPU')} for {usage['gpu_hours']:.4g} GPU-hours{_at(usage['gpu_use'])}"
        )
    if usage["cpus"]:
        parts.append(amounts.counted(usage["cpus"], "CPU") + _at(usage["cpu_use"]))
    if usage["memory_peak_bytes"]:
        parts.append(f"{_memory(usage)} of memory on one node")
    if usage["lost_s"]:
        again = amounts.counted(usage["restarts"], "restart")
        parts.append(f"{duration(usage['lost_s'])} lost by {again}")
    return ", ".join(parts) + ("" if usage["whole"] else " (from the ends of its streams)")


def row(usage: Usage | None) -> tuple[str | None, ...]:
    """The columns of `ls --usage` after the run and its state."""
    if usage is None:
        return (None,) * (len(HEADER) - 2)
    return (
        None if usage["waited_s"] is None else duration(usage["waited_s"]),
        duration(usage["ran_s"]),
        duration(usage["lost_s"]) if usage["lost_s"] else None,
        str(usage["gpus"]) if usage["gpus"] else None,
        f"{usage['gpu_hours']:.4g}" if usage["gpus"] else None,
        _percent(usage["gpu_use"]),
        _percent(usage["cpu_use"]),
        _memory(usage) or None,
    )


def _at(percent: float | None) -> str:
    return "" if percent is None else f" at {percent:.0f} %"


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f} %"


def _memory(usage: Usage) -> str:
    peak, total = usage["memory_peak_bytes"], usage["memory_bytes"]
    return "" if peak is None else amounts.size(peak) + (f" of {amounts.size(total)}" if total else "")
