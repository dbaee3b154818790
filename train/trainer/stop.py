"""Signals: one step at which all ranks stop, however many of them were asked to, and whenever."""

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
"""With this a run ends that was asked to stop: start me again, I go on from my checkpoint."""
TOGETHER_S = 2.0
"""Signals this close to the first are the same request, which may come by two ways. Slurm repeats its own for longer, and has
SIGKILL for those who mean it: in its jobs a second signal changes nothing."""


class StopVote:
    """Turns SIGTERM and SIGUSR1 into an agreement of all ranks. Make it on the main thread.

    The question is asked after each step and answered one step later, when the answer is long there: no step waits for it.
    """

    def __init__(self, world: World, every: int = 1) -> None:
        self.world, self.every = world, every
        self.signal_name = ""
        """Of the signal that stopped the run, once all agree."""
        self.deadline: Optional[float] = None
        """Unix seconds at which this run will be killed, once all agree, if anybody knows."""
        self._number, self._first_s, self._calls = 0, 0.0, 0
        self._asked: tuple[torch.Tensor, Optional[dist.Work]] = (torch.zeros(2), None)
        self._heard, mouth = socket.socketpair()
        mouth.setblocking(False)
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, _noted)
        signal.set_wakeup_fd(mouth.detach(), warn_on_full_buffer=False)
        threading.Thread(target=self._listen, name="signals", daemon=True).start()

    def _listen(self) -> None:
        """On a thread of its own: Python runs its handlers on the main thread, which may be waiting for a peer, in C++."""
        while True:
            for number in self._heard.recv(64):
                if number in (signal.SIGTERM, signal.SIGUSR1):
                    self._ask(number)

    def _ask(self, number: int) -> None:
        now_s = time.monotonic()
        if self._number and now_s - self._first_s > TOGETHER_S and "SLURM_JOB_ID" not in os.environ:
            os.write(2, b"second signal: ended at once, without a further checkpoint\n")
            os._exit(STATUS)
        if not self._number:
            self._number, self._first_s = number, now_s

    def agreed(self) -> bool:
        """Whether any rank was asked to stop, before its last call of this; the answer is the same on all ranks."""
        self._calls += 1
        if self._calls % self.every:
            return False
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
        """Wait for the last question: no rank leaves while another one still needs its answer."""
        if self._asked[1] is not None:
            self._asked[1].wait()
            self._asked = self._asked[0], None


def _noted(*_: object) -> None:
    """What the main thread does for a signal: nothing, but the thread that listens has heard of it."""


def _deadline() -> float:
    """Unix seconds in the file that DISTLAUNCH_DEADLINE_FILE names; infinite if there is none."""
    try:
        with open(os.environ["DISTLAUNCH_DEADLINE_FILE"], encoding="utf-8") as file:
            return float(file.read())
    except (KeyError, OSError, ValueError):
        return float("inf")
