"""Ranks on this machine as torchrun starts them, without torchrun: with its variables, streams of lines and one end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, final

from launcher.agent.network import ports

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Popen = Callable[..., Any]
"""As `subprocess.Popen`, whatever starts the process."""

SHOWN_CHARS = 8_000
"""How much of each stream is shown when a test fails."""


@dataclass(frozen=True)
class Done:
    """The results of ranks that have ended."""

    codes: list[int]
    """Exit code of each rank, or minus its signal."""

    outs: list[str]
    """What each rank wrote to stdout."""

    errs: list[str]
    """And to stderr."""

    errors: list[dict[str, Any] | None]
    """What torch's `record` wrote down of each rank's exception, for torchrun to show."""

    @property
    def returncode(self) -> int:
        """0 if all ranks succeeded, else the code of the first in their order that failed by itself."""
        return next((code for code in self.codes if code not in (0, -signal.SIGTERM)), max(map(abs, self.codes)))

    @property
    def stdout(self) -> str:
        """Of all ranks, one after the other."""
        return "".join(self.outs)

    @property
    def stderr(self) -> str:
        """The same of stderr."""
        return "".join(self.errs)


@final
class Ranks:
    """Running ranks; leaving the block kills what is left of them, with all that they have started."""

    def __init__(
        self,
        popen: Popen,
        argv: Sequence[str],
        *,
        count: int,
        env: Mapping[str, str],
        directory: Path,
        watched: bool = True,
    ) -> None:
        """Start `count` ranks of `argv`; if they are `watched`, as by torchrun, the failure of one ends the others."""
        self._held = ports.lent()
        self._said: list[tuple[list[str], list[str]]] = [([], []) for _ in range(count)]
        self._ended: dict[int, int] = {}
        self._changed, self._watched = threading.Condition(), watched
        self._errors = [directory / f"error-{rank}.json" for rank in range(count)]
        self.processes: list[Any] = []
        self._threads: list[threading.Thread] = []
        pipe = subprocess.PIPE
        for rank in range(count):
            place = {**env, **variables(rank, count, ports.port_of(self._held))}
            place["TORCHELASTIC_ERROR_FILE"] = str(self._errors[rank])
            pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe}
            self.processes.append(popen(argv, env=place, cwd=directory, start_new_session=True, text=True, **pipes))
        for rank in range(count):
            self._threads.append(threading.Thread(target=self._follow, args=(rank,), daemon=True))
            self._threads[-1].start()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for rank, process in enumerate(self.processes):
            if rank not in self._ended:
                kill_group(process.pid)
                process.kill()  # it may not have a session of its own yet
        for thread in self._threads:
            thread.join()
        self._held.close()
        for rank, streams in enumerate(self._said):  # pytest shows it where the test fails
            for name, lines in zip(("stdout", "stderr"), streams, strict=True):
                text = "".join(lines)[-SHOWN_CHARS:]
                sys.stdout.write(
                    f"--- {name} of rank {rank}, exit code {self._ended.get(rank)}\n{text}" if text else ""
                )

    def line(self, rank: int, begin: str) -> str:
        """Wait for the first line of a rank's stdout that starts with `begin`; fails if the rank ends without it."""
        seen = 0
        with self._changed:
            while True:
                lines = self._said[rank][0]
                found = next((line for line in lines[seen:] if line.startswith(begin)), None)
                if found is not None:
                    return found
                seen = len(lines)
                if rank in self._ended:
                    raise AssertionError(
                        f"rank {rank} ended with {self._ended[rank]}, and no line begins with {begin!r}"
                    )
                self._changed.wait()

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank's own process."""
        self.processes[rank].send_signal(number)

    def has_ended(self, rank: int) -> bool:
        """Whether a rank has ended."""
        return rank in self._ended

    def status(self, rank: int) -> str:
        """What the kernel reports about a rank's process."""
        return Path(f"/proc/{self.processes[rank].pid}/status").read_text()

    def ended(self, rank: int) -> int:
        """Wait for the end of one rank; return its exit code."""
        with self._changed:
            self._changed.wait_for(lambda: rank in self._ended)
            return self._ended[rank]

    def kill(self) -> None:
        """Kill all ranks, and wait until they have ended."""
        self._watched = False
        for process in self.processes:
            process.kill()
        self.done()

    def done(self) -> Done:
        """Wait for the end of all ranks."""
        codes = [self.ended(rank) for rank in range(len(self.processes))]
        outs, errs = (["".join(streams[which]) for streams in self._said] for which in (0, 1))
        return Done(
            codes, outs, errs, [json.loads(path.read_text()) if path.exists() else None for path in self._errors]
        )

    def _follow(self, rank: int) -> None:
        """On a thread for each rank: its lines as they come, then its end."""
        process = self.processes[rank]
        beside = threading.Thread(target=self._read, args=(process.stderr, self._said[rank][1]), daemon=True)
        beside.start()
        self._read(process.stdout, self._said[rank][0])
        beside.join()
        code = process.wait()
        with self._changed:
            self._ended[rank] = code
            self._changed.notify_all()
            others = (
                [other for other in range(len(self.processes)) if other not in self._ended]
                if code and self._watched
                else []
            )
        for other in others:
            self.processes[other].terminate()

    def _read(self, stream: Any, lines: list[str]) -> None:
        with stream:
            for line in stream:
                with self._changed:
                    lines.append(line)
                    self._changed.notify_all()


def variables(rank: int, count: int, port: int) -> dict[str, str]:
    """The variables that `torchrun --standalone --nproc-per-node COUNT` gives a rank."""
    mine = dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank))
    size = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(count))
    node = {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "ROLE_NAME": "default", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    elastic = {"RESTART_COUNT": "0", "MAX_RESTARTS": "0", "RUN_ID": "tests", "USE_AGENT_STORE": "False"}
    elastic["SIGNALS_TO_HANDLE"] = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    about = {f"TORCHELASTIC_{name}": value for name, value in elastic.items()}
    return {**mine, **size, **node, **about, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def kill_group(leader: int) -> None:
    """Kill a process and all that it has started in its session."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return
