"""Metrics in the text format of OpenMetrics.

Only gauges and counters: node_exporter's textfile collector, which reads the older format, understands no other type.
"""

from __future__ import annotations

import math

from launcher.agent.named_tuple import NamedTuple

FAMILIES = {
    "run_info": "A run, with what does not change.",
    "run_state": "1 for the state that the run is in, 0 for every other.",
    "run_created_timestamp_seconds": "When the run was submitted.",
    "run_queued_seconds": "From its submission to its first agent.",
    "run_startup_seconds": "How long each phase of the start took.",
    "run_attempt": "How often the run as a whole was started again.",
    "run_restarts": "How often its workers were restarted.",
    "run_exit_code": "Its exit code, once it has ended.",
    "run_held_seconds": "How long it has had its nodes.",
    "run_lost_seconds": "How long no worker ran because of restarts.",
    "run_gpus": "Its GPUs.",
    "run_gpu_seconds": "GPUs times the time for which it has had them.",
    "run_gpu_use_ratio": "Share of the time in which something ran on its GPUs, the mean of all.",
    "run_cpus": "Its CPUs.",
    "run_cpu_use_ratio": "Share of its CPUs that its ranks kept busy on average.",
    "run_memory_peak_bytes": "Most memory that the ranks of one node had.",
    "run_step": "The step that all ranks have reached.",
    "run_steps": "The number of steps.",
    "run_steps_per_second": "Steps per second in the last minutes.",
    "run_loss": "The loss that the script tells.",
    "run_eta_seconds": "Time to the last step.",
    "run_findings": "Ranks and hosts that differ from the others by more than is usual.",
    "run_hangs": "Whether it hangs: 1 or 0.",
    "node_last_seen_timestamp_seconds": "The last sign of life of a node's agent.",
    "node_workers": "Workers that run on a node.",
    "node_lost_lines": "Lines of a node's workers that were not kept.",
    "node_cpu_busy": "CPUs of a host that are busy, whoever uses them.",
    "node_cpus": "CPUs of a host.",
    "node_memory_bytes": "Memory of a host that is in use.",
    "node_memory_total_bytes": "Memory of a host.",
    "node_received_bytes_per_second": "What a host receives.",
    "node_sent_bytes_per_second": "What a host sends.",
    "node_rdma_received_bytes_per_second": "What a host receives by RDMA.",
    "node_rdma_sent_bytes_per_second": "What a host sends by RDMA.",
    "gpu_use_ratio": "Share of the time in which something ran on a GPU.",
    "gpu_memory_bytes": "Memory of a GPU that is in use.",
    "gpu_memory_total_bytes": "Memory of a GPU.",
    "gpu_power_watts": "Power that a GPU draws.",
    "rank_cpu_busy": "CPUs that a rank keeps busy.",
    "rank_memory_bytes": "Memory of a rank; shared pages count in each.",
    "rank_lines": "Lines that a rank has written.",
    "rank_step": "The step that a rank tells.",
    "serve_viewers": "Pages of `distlaunch serve` that are open.",
    "serve_reads": "How often `distlaunch serve` has read a run, or the list of runs, for its pages.",
}
"""Every metric, without `distlaunch_`, and its help."""

COUNTERS = frozenset(
    {
        "run_restarts",
        "run_held_seconds",
        "run_lost_seconds",
        "run_gpu_seconds",
        "node_lost_lines",
        "rank_lines",
        "serve_reads",
    }
)
"""Those that only grow: their samples end in `_total`."""

EOF = "# EOF\n"
"""The last line."""


class Sample(NamedTuple):
    """One value."""

    name: str
    labels: dict[str, str]
    value: float


class Page:
    """Samples, by family."""

    def __init__(self) -> None:
        self._samples: dict[str, list[Sample]] = {}

    def add(self, name: str, value: float | None, /, **labels: object) -> None:
        """Add a value of this family; None, or infinity, is left out."""
        if name not in FAMILIES:
            raise ValueError(f"unknown metric {name}")
        if value is not None and math.isfinite(value):
            texts = {key: str(text) for key, text in labels.items() if text is not None}
            self._samples.setdefault(name, []).append(Sample(name, texts, float(value)))

    def text(self) -> str:
        """All of it; the last line marks its end."""
        lines: list[str] = []
        for name, about in FAMILIES.items():
            if samples := self._samples.get(name):
                counts = name in COUNTERS
                lines.append(f"# TYPE distlaunch_{name} {'counter' if counts else 'gauge'}")
                lines.append(f"# HELP distlaunch_{name} {about}")
                lines += [_line(sample, "_total" if counts else "") for sample in samples]
        return "\n".join([*lines, EOF])


def _line(sample: Sample, suffix: str) -> str:
    labels = ",".join(f'{key}="{_escaped(text)}"' for key, text in sample.labels.items())
    return f"distlaunch_{sample.name}{suffix}{{{labels}}} {sample.value!r}"


def _escaped(text: str) -> str:
    plain = text.encode("utf-8", "replace").decode()
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
