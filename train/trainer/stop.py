"""Signals: all ranks stop at the same step, no matter which ranks receive a signal, or when."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Optional

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from trainer.world import World

STATUS = 128 + signal.SIGTERM
"""Exit status of a run that was asked to stop: when started again, it resumes from its checkpoint."""
TOGETHER_S = 2.0
"""Signals this close to the first are the same request, which may arrive by two paths. Slurm repeats its own for
longer, and has SIGKILL for a forced end: in its jobs, a second signal changes nothing."""


class StopVote:
    """Turns SIGTERM and SIGUSR1 into an agreement of all ranks. Must be created on the main thread.

    Ranks vote after each step and read the result one step later, when it has long arrived: no step waits for it.
    """

    def __init__(self, world: World, every: int = 1) -> None:
        self.world, self.every = world, every
        self.signal_name = ""
        """The signal that stopped the run, once all agree."""
        self.deadline: Optional[float] = None
        """Unix seconds at which this run will be killed, if known, once all agree."""
        self._number, self._first_s, self._calls, self._closed = 0, 0.0, 0, False
        self._asked: tuple[torch.Tensor, Optional[dist.Work]] = (torch.zeros(2), None)
        self._heard, mouth = socket.socketpair()
        mouth.setblocking(False)
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, _noted)
        signal.set_wakeup_fd(mouth.detach(), warn_on_full_buffer=False)
        threading.Thread(target=self._listen, name="signals", daemon=True).start()

    def _listen(self) -> None:
        """Runs on a thread: Python runs its handlers on the main thread, which may be waiting for a peer in C++."""
        while True:
            for number in self._heard.recv(64):
                if number in (signal.SIGTERM, signal.SIGUSR1):
                    self._ask(number)

    def _ask(self, number: int) -> None:
        now_s = time.monotonic()
        if self._number and now_s - self._first_s > TOGETHER_S and "SLURM_JOB_ID" not in os.environ:
            if not self._closed:
                os.write(2, b"second signal: ended at once, without a further checkpoint\n")
            os._exit(STATUS)
        if not self._number:
            self._number, self._first_s = number, now_s

    def agreed(self) -> bool:
        """After a step: whether any rank was asked to stop before the last vote; the same on all ranks."""
        self._calls += 1
        return not self._calls % self.every and self.vote()

    def vote(self) -> bool:
        """Vote now; whether any rank was asked to stop before the last vote. The same on all ranks."""
        answer, pending = self._asked
        if pending is not None:
            pending.wait()
            if answer[0] > 0:
                self.signal_name = signal.Signals(int(answer[0])).name
                self.deadline = -float(answer[1]) if answer[1] > -float("inf") else None
                self._asked = answer, None
                return True
        question = torch.tensor([self._number, -_deadline()], dtype=torch.float64)
        self._asked = question, dist.all_reduce(question, dist.ReduceOp.MAX, async_op=True)
        return False

    def close(self) -> None:
        """Wait for the last vote: no rank may leave while another one still needs the result.

        From now on a further signal costs no checkpoint: a launcher sends it once another rank has exited.
        """
        self._closed = True
        if self._asked[1] is not None:
            self._asked[1].wait()
            self._asked = self._asked[0], None


def _noted(*_: object) -> None:
    """Ignore a signal on the main thread; the listening thread handles it."""


def _deadline() -> float:
    """Unix seconds in the file that DISTLAUNCH_DEADLINE_FILE names; infinite if there is none."""
    try:
        with open(os.environ["DISTLAUNCH_DEADLINE_FILE"], encoding="utf-8") as file:
            return float(file.read())
    except (KeyError, OSError, ValueError):
        return float("inf")
