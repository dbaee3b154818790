"""Ways in which a run ends early, goes on, or writes much; each is the same for all frameworks and backends."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, Any

from testbed import wait_until
from tests.chaos.processes import AGENT, WORKER
from tests.frameworks.place import NODES, found_of, left, lines, new_mark, nothing_left

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from testbed.running import Running
    from tests.chaos.processes import Found
    from tests.frameworks.catalog import Framework
    from tests.frameworks.place import Place

LINES = 100_000
DAEMONS = re.compile(r"^\S*(orted|prted|hydra_pmi_proxy)( |$)")
MPIRUNS = re.compile(r"^\S*(mpirun|mpiexec(\.hydra)?|orterun|prterun|srun --quiet --mpi=\w+)( |$)")
BY_MPIRUN = "--env=DISTLAUNCH_MPI_START=mpirun"
"""Slurm starts the ranks by default, if it speaks what the MPI speaks."""


class Case:
    """One framework on one backend, in one of these ways."""

    def __init__(self, place: Place, framework: Framework, name: str) -> None:
        self.place, self.framework = place, framework
        self.mark = new_mark(f"{name}-{framework.name}")
        self.world = NODES * framework.workers
        self.victim = framework.workers
        """The first rank of node 1."""

        self.options = (f"--name={self.mark}", f"--nproc-per-node={framework.workers}")

    def fails(self, how: str, *options: str) -> dict[str, Any]:
        """The first cause of a run in which a rank fails in this way."""
        with nothing_left(self.mark):
            done = self.place.run(self.framework, *self.options, *options, then=f"{how}={self.victim}")

        assert done.exit_code == 1, done.stdout + done.stderr
        state = self.place.state(self.mark)
        assert state["state"] == "failed", state
        cause: dict[str, Any] = state["cause"]
        assert (cause["node"], cause["rank"], bool(cause["host"])) == (1, self.victim, True), (cause, done.stderr)
        assert f"first failure: rank {self.victim}, host " in done.stderr, done.stderr
        return cause

    def while_it_waits(self, act: Callable[[Running], object], *options: str) -> tuple[int, str]:
        """Act once all ranks wait; the exit code and the messages."""
        with nothing_left(self.mark):
            running = self.place.start(self.framework, *self.options, *options, then="wait")
            try:
                running.until("waits", count=self.world)
                workers = [one for one in found_of(self.mark) if one.kind == WORKER]
                assert len(workers) == self.world, left(self.mark)  # so those that are left would be found, too
                act(running)
                return running.end(), running.stderr
            finally:
                running.close()

    def kill(self, wanted: Callable[[Found], bool]) -> None:
        """Kill the first process of the run that is wanted."""
        found = wait_until("the process to kill", lambda: [one for one in found_of(self.mark) if wanted(one)])
        found[0].process.send(signal.SIGKILL)

    def cancel(self, _: Running) -> None:
        """Cancel the run by a command."""
        done = self.place.other("cancel", self.place.id_of(self.mark))
        assert done.exit_code == 0, done.stderr

    def kills(self, wanted: Callable[[Found], bool], *options: str) -> dict[str, Any]:
        """The first cause once a process of the launcher's side has been killed."""

        code, said = self.while_it_waits(lambda _: self.kill(wanted), *options)
        assert code == 1, said
        cause: dict[str, Any] = self.place.state(self.mark)["cause"]
        assert cause["host"], cause
        return cause


def raises(case: Case) -> None:
    cause = case.fails("raise")
    assert cause["message"] == "ValueError: this rank cannot go on", cause
    assert "then.py" in cause["traceback"], cause


def exits(case: Case) -> None:
    assert case.fails("exit")["exit_code"] == 7


def segv(case: Case) -> None:
    assert case.fails("segv")["signal"] == "SIGSEGV"


def sigkill(case: Case) -> None:
    assert case.fails("kill")["signal"] == "SIGKILL"


def cancelled(case: Case) -> None:
    code, said = case.while_it_waits(case.cancel)

    assert code == 130, said
    assert case.place.state(case.mark)["state"] == "cancelled"


def time_limit(case: Case) -> None:
    """At whatever the ranks do by then."""
    with nothing_left(case.mark):
        done = case.place.run(case.framework, *case.options, "--time=8s", "--grace=2s", then="wait")

    assert done.exit_code == 124, done.stderr
    assert case.place.state(case.mark)["state"] == "timeout"


def restart(case: Case) -> None:
    with nothing_left(case.mark):
        done = case.place.run(case.framework, *case.options, "--max-restarts=1", then=f"once={case.victim}")

    assert done.exit_code == 0, done.stdout + done.stderr
    sums = [sum(": sum " in text for text in texts) for _, texts in sorted(lines(done).items())]
    assert sums == [2] * case.world, done.stdout


def lines_kept(case: Case) -> None:
    with nothing_left(case.mark):
        done = case.place.run(case.framework, *case.options, then=f"lines={LINES}")

    assert done.exit_code == 0, done.stderr
    for rank in range(case.world):
        node = rank // case.framework.workers
        start = f"[{node}:{rank}] line "
        numbers = [text.removeprefix(start) for text in done.stdout.splitlines() if text.startswith(start)]
        assert numbers == [f"{number} of rank {rank}" for number in range(LINES)], (rank, len(numbers))
    assert done.stdout.count(" of rank ") == LINES * case.world


def no_agent(case: Case) -> None:
    """Kubernetes starts its pod again, and the ranks of all nodes with it; elsewhere the run ends."""

    def of_node_1(one: Found) -> bool:
        return one.kind == AGENT and one.node == 1

    def replaced(running: Running) -> None:
        case.kill(of_node_1)
        running.until("waits", count=2 * case.world)
        case.cancel(running)

    if case.place.backend == "k8s":
        assert case.while_it_waits(replaced)[0] == 130
        return
    cause = case.kills(of_node_1)
    assert cause["node"] == 1, cause
    assert "SIGKILL" in f"{cause['message']} {cause['signal']}", cause


def no_mpirun(case: Case) -> None:
    cause = case.kills(lambda one: bool(MPIRUNS.match(one.process.command())))
    assert cause["node"] == 0, cause
    assert cause["message"].startswith(("mpirun was killed by SIGKILL", "srun was killed by SIGKILL")), cause


def no_daemon(case: Case) -> None:
    """That of node 1: hydra has one on node 0, too."""
    cause = case.kills(lambda one: bool(DAEMONS.match(one.process.command())) and not is_of_node_0(one), BY_MPIRUN)
    assert cause["node"] == 1 or case.framework.name == "intel-mpi", cause  # whose daemons do not tell their node
    died = ("the daemon of mpirun was killed by SIGKILL", "the daemon of mpirun has died: rank ")
    assert cause["message"].startswith(died), cause  # Intel's remote shell outlives the daemon


def is_of_node_0(one: Found) -> bool:
    """Whether a daemon is hydra's for the first host."""
    return "--proxy-id 0" in one.process.command()


OF_ALL: Mapping[str, Callable[[Case], None]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        raises,
        exits,
        segv,
        sigkill,
        cancelled,
        time_limit,
        restart,
        lines_kept,
        no_agent,
    )
}
OF_MPI: Mapping[str, Callable[[Case], None]] = {
    each.__name__.replace("_", "-"): each for each in (no_mpirun, no_daemon)
}
