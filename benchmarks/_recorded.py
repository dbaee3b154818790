"""Runs of any size as the launcher and the agents record them, for what reads recorded runs."""

from __future__ import annotations

import json
import math
import os
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BEGAN = 1_763_600_000.0
_QUEUE_S = 312.0
_CHUNK = 1000
_PER_SAMPLE_S = 10


@dataclass(frozen=True)
class Recorded:
    """A run that failed after a restart; one node starts slowly, one has idle GPUs, one has a slow network."""

    name: str = "pretrain-20251120-010640-a1b2"
    nodes: int = 8
    ranks_per_node: int = 8
    lines_per_rank: int = 1000
    hours: float = 0.0
    """How long its samples say that it ran; 0: none."""

    def write(self, root: Path) -> Path:
        """Write it to a directory of runs; returns its own."""
        path = root / self.name
        path.mkdir(parents=True, mode=0o700)
        hosts = [f"gpu-{node:03}" for node in range(self.nodes)]
        planned = [{"node_rank": node, "host": host, "workers": self.ranks_per_node} for node, host in enumerate(hosts)]
        record = {
            "backend": "slurm", "cluster": "juno", "created": BEGAN, "nodes": str(self.nodes), "cwd": "/home/me/llm",
            "command": ["pretrain.py", "--config", "7b.yaml"], "options": {}, "workers": str(self.ranks_per_node),
            "plan": {"nodes": planned, "has_queue": True, "min_nodes": self.nodes},
            "given": {"script": "pretrain.py", "args": ["--config", "7b.yaml"], "max_restarts": 2},
            "settings": {
                "max_restarts": {"value": 2, "source": "flag"},
                "nproc_per_node": {"value": str(self.ranks_per_node), "source": "/home/me/llm/distlaunch.toml:7"},
                "nodes": {"value": str(self.nodes), "source": "DISTLAUNCH_NODES"},
                "time": {"value": "1d", "source": "/etc/distlaunch.toml:3"},
                **{name: {"value": "", "source": "default"} for name in ("claim", "name", "mpi_args", "numa_binding")},
            },
            "handle": {"run_dir": str(path), "hosts": hosts, "job_id": "48213"},
        }  # fmt: skip
        (path / "run.json").write_text(json.dumps(record))
        for node in range(self.nodes):
            directory = path / "nodes" / str(node)
            directory.mkdir(parents=True)
            with (directory / "stream").open("wb") as file:
                file.writelines(self._stream(node, hosts[node]))
            ended = BEGAN + _QUEUE_S + 41.0 + self._length_s
            os.utime(directory / "stream", (ended, ended))
        return path

    @property
    def _length_s(self) -> float:
        return self.hours * 3600 or 600.0

    def _stream(self, node: int, host: str) -> Iterator[bytes]:
        """One node's stream: a round that fails half-way, then another one."""
        start = BEGAN + _QUEUE_S + 0.4 * random.Random(node).random() + 21.0 * (node == self.nodes - 1)
        meets = BEGAN + _QUEUE_S + 34.0 + 0.05 * node
        half = meets + self._length_s / 2
        ranks = range(node * self.ranks_per_node, (node + 1) * self.ranks_per_node)
        yield _event("agent_started", start, node, version=1, run=self.name, host=host, pid=100, cwd="/home/me/llm")
        yield _event("host_facts", start + 7.5 + 0.3 * random.Random(node).random(), node, cpus=96, gpus=8)
        yield from self._round(node, ranks, 0, meets)
        yield from self._output(node, ranks, meets, half)
        message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB"
        cause = {
            "class": "out_of_memory", "message": message, "host": "gpu-001", "node": 1, "rank": 9, "local_rank": 1,
            "exit_code": 1, "signal": None, "time": half, "secondary": False,
            "traceback": f'Traceback (most recent call last):\n  File "pretrain.py", line 212, in <module>\n'
            f'  File "pretrain.py", line 188, in main\n    loss.backward()\n{message}\n',
        }  # fmt: skip
        yield _event("restart", half + 2, node, restarts=1, max_restarts=2, cause=cause)
        yield from self._round(node, ranks, 1, half + 6)
        yield from self._output(node, ranks, half + 6, half + self._length_s / 2)
        end = half + self._length_s / 2
        yield _event("failure", end, node, cause={**cause, "time": end})
        yield _event("done", end + 1, node, result="failed", exit_code=1, cause={**cause, "time": end}, restarts=1,
                     duration_s=self._length_s)  # fmt: skip

    def _round(self, node: int, ranks: range, number: int, when: float) -> Iterator[bytes]:
        world = self.nodes * self.ranks_per_node
        yield _event(
            "rendezvous", when, node, round=number, restarts=number, master_addr="gpu-000", master_port=29400,
            nodes=self.nodes, world_size=world, ranks=list(ranks),
        )  # fmt: skip
        for local, rank in enumerate(ranks):
            yield _event("worker_started", when + 0.1, node, rank=rank, local_rank=local, round=number, pid=200 + local)
        yield _event("first_line", when + 4.2 + 0.1 * node, node, rank=ranks[0], round=number)

    def _output(self, node: int, ranks: range, start: float, end: float) -> Iterator[bytes]:
        """Half of the lines, with the half of the samples between them."""
        lines = self.lines_per_rank // 2
        marks = list(self._samples(node, ranks, start, end)) if self.hours else []
        written = 0
        while written < lines or marks:
            count = min(_CHUNK if not marks else max(1, lines // len(marks)), lines - written)
            yield from (
                b"%d.%d| %s\n" % (node, rank, _text(rank, written + number))
                for number in range(count)
                for rank in ranks
            )
            written += count
            if marks:
                yield marks.pop(0)

    def _samples(self, node: int, ranks: range, start: float, end: float) -> Iterator[bytes]:
        """Samples in which everything has changed since the one before."""
        noise = random.Random(node)
        for number in range(int((end - start) / _PER_SAMPLE_S)):
            when = start + number * _PER_SAMPLE_S
            step = int((when - BEGAN - _QUEUE_S) / 2)
            whole = {} if number % 6 else {"whole": True}
            use = [round(noise.uniform(86, 97)) if node != 5 else round(noise.uniform(0, 4)) for _ in ranks]
            slow = 0.2 if node == 3 else 1.0
            yield _event(
                "sample", when, node, sample=number, **whole, cpu=round(noise.uniform(22, 30), 1), cpus=96,
                memory_mib=round(noise.uniform(180e3, 190e3)), memory_total_mib=1031000,
                received=round(slow * noise.uniform(1.0e9, 1.3e9)), sent=round(slow * noise.uniform(1.0e9, 1.3e9)),
                gpu_use=use, gpu_memory_mib=[round(noise.uniform(61e3, 70e3)) for _ in ranks],
                gpu_memory_total_mib=[81559] * len(ranks), gpu_power_w=[round(noise.uniform(560, 690)) for _ in ranks],
                ranks=list(ranks), rank_memory_mib=[8000 + rank for rank in ranks], rank_step=[step] * len(ranks),
                rank_loss=[round(2.1 + 8 * math.exp(-step / 4000) + noise.uniform(0, 0.1), 3)] * len(ranks),
                rank_time=[when] * len(ranks),
            )  # fmt: skip


def _event(name: str, when: float, node: int, **fields: Any) -> bytes:
    return (
        json.dumps({"event": name, "time": round(when, 3), "node": node, **fields}, separators=(",", ":")).encode()
        + b"\n"
    )


def _text(rank: int, number: int) -> bytes:
    return b"[rank %d] step %d loss=%.4f grad_norm=%.3f tokens/s=%d" % (
        rank, number, 2.1 + 8 / (number + 1), 0.7 + (number % 7) / 10, 11200 + number % 97
    )  # fmt: skip
