"""What a failure is blamed on: for a collective that timed out, for a killed process, and what each class means."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent import cause, failures
from launcher.agent.node.analysis import FailureAnalysis
from launcher.agent.node.workers import Worker
from launcher.runs.outcome import EXIT_CODES

if TYPE_CHECKING:
    from launcher.agent.messages import Cause
    from tests.agent.harness import Runner

DOCS = Path(__file__).parents[2] / "docs"

HANGS = """
import datetime, os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
dist.set_timeout(datetime.timedelta(seconds=5))  # once all are there, however late they have come
if dist.get_rank() in map(int, sys.argv[2].split(",")):
    time.sleep(600)
{"all_reduce": lambda: dist.all_reduce(torch.ones(1)),
 "broadcast": lambda: dist.broadcast(torch.ones(1), 2),
 "barrier": dist.barrier}[sys.argv[1]]()
time.sleep(600)
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("collective", "culprits", "nodes", "message"),
    [
        ("all_reduce", "2", "2", "ranks 0, 1, 3 timed out in a collective; rank 2 had not joined it"),
        ("barrier", "0", "2", "ranks 1, 2, 3 timed out in a collective; rank 0 had not joined it"),
        ("broadcast", "2", "1", "ranks 0, 1, 3 timed out in a collective; rank 2 had not joined it"),
        ("all_reduce", "1,3", "2", "ranks 0, 2 timed out in a collective; ranks 1, 3 had not joined it"),
    ],
)
def test_the_rank_that_did_not_join_a_collective_is_named(
    warm_agents: Runner, collective: str, culprits: str, nodes: str, message: str
) -> None:
    run = warm_agents(HANGS, collective, culprits, nodes=nodes, nproc_per_node=str(4 // int(nodes)))

    assert run.result() == "failed"
    found = run.cause()
    assert found["message"].startswith(f"{message}; rank"), run.of("done")
    assert f"never called {collective}:" in found["message"]
    assert "in time.sleep() (script0.py:" in found["message"]
    assert (found["class"], found["rank"]) == ("collective", int(culprits.split(",", maxsplit=1)[0]))
    assert re.match(r"rank \d, which waited for it: .*", found["traceback"])
    assert found["signal"] is found["exit_code"] is None


@pytest.mark.torch
def test_a_restart_names_the_rank_too(warm_agents: Runner) -> None:
    once = HANGS.replace("if dist", "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '1': sys.exit()\nif dist", 1)

    run = warm_agents(once, "all_reduce", "2", nodes="2", nproc_per_node="2", max_restarts=1)

    assert run.result() == "success"
    (restart,) = run.of("restart")
    named = "ranks 0, 1, 3 timed out in a collective; rank 2 had not joined it; rank 2 ("
    assert restart["cause"]["message"].startswith(named)


def ended(tmp_path: Path, code: int, stderr: str, oom_kills: int = 0) -> Cause:
    about: Any = {"rank": 3, "local_rank": 1, "code": code, "time": 1.0}
    none = str(tmp_path / "none")
    return cause.of_worker(
        host="h", node=1, about=about, error_file=none, stderr_tail=stderr.encode(), oom_kills=oom_kills
    )


WATCHDOGS = """\
[rank0]:[E1218 20:27:21.426415540 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=1, OpType=BROADCAST, NumelIn=131072000, NumelOut=131072000, Timeout(ms)=600000) \
ran for 600081 milliseconds \
before timing out.
[rank0]:[E1218 20:27:21.484910731 ProcessGroupNCCL.cpp:2168] [PG ID 1 PG GUID 1 Rank 0]  \
failure detected by watchdog at work \
sequence id: 1 PG status: last enqueued work: 547, last completed work: -1
----
[rank1]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=9801523, NumelOut=9801523, Timeout(ms)=600000) \
ran for 600020 milliseconds \
before timing out.
[rank1]:[E626 06:24:44.906457629 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 1] \
Exception (either an error \
or timeout) detected by watchdog at work: 808, last enqueued NCCL work: 811, last completed NCCL work: 807.
----
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [Rank 6] NCCL watchdog thread terminated with exception: [Rank 6] \
Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=880, OpType=BROADCAST, NumelIn=131137536, NumelOut=131137536, Timeout(ms)=1800000) \
ran for 1800902 milliseconds \
before timing out.
Exception raised from checkTimeout at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:525 (most recent call first):
----
[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=469508, OpType=ALLREDUCE, \
Timeout(ms)=1800000) ran for 1802212 milliseconds before timing out.
"""
"""As logged by torch 2.5, 2.6, 2.1 and 1.12; what surrounds the message differs."""


@pytest.mark.parametrize("said", WATCHDOGS.split("----\n"))
def test_a_message_of_nccls_watchdog_is_a_collective_that_timed_out(tmp_path: Path, said: str) -> None:
    found = ended(tmp_path, -6, "a line before\n" + said)

    assert (found["class"], found["signal"], found["secondary"]) == ("collective", "SIGABRT", False)
    assert found["message"].startswith("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=")
    assert found["message"].endswith("milliseconds before timing out.")
    named = cause.timed_out(found, {0, 1, 3}, range(5))
    assert named["message"] == "ranks 0, 1, 3 timed out in a collective; ranks 2, 4 had not joined it"


OPEN_MPI = """\
[n1:00000] *** An error occurred in {where}
[n1:00000] *** reported by process [2695233537,0]
[n1:00000] *** on {on}
[n1:00000] *** {what}
[n1:00000] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,
[n1:00000] ***    and MPI will try to terminate your MPI job as well)
"""
"""As written by Open MPI 4 and 5 before the process exits with the error's code."""


@pytest.mark.parametrize(
    ("where", "on", "what", "secondary"),
    [
        ("Socket closed", "a NULL communicator", "Unknown error", True),
        ("MPI_Recv", "communicator MPI_COMM_WORLD", "MPI_ERR_TRUNCATE: message truncated", False),
    ],
)
def test_an_error_of_open_mpi_is_the_message_and_a_lost_peer_is_a_consequence(
    tmp_path: Path, where: str, on: str, what: str, secondary: bool
) -> None:
    found = ended(tmp_path, 14, OPEN_MPI.format(where=where, on=on, what=what))

    assert (found["message"], found["secondary"]) == (f"An error occurred in {where}: {what}", secondary)


def test_no_rank_is_blamed_where_all_have_waited(tmp_path: Path) -> None:
    found = cause.timed_out(ended(tmp_path, -6, WATCHDOGS), {0, 1, 2, 3}, range(4))

    assert found["rank"] == 3
    assert found["message"].startswith("all 4 ranks timed out in a collective: Watchdog caught")


def test_many_ranks_are_named_as_ranges(tmp_path: Path) -> None:
    message = cause.timed_out(ended(tmp_path, -6, WATCHDOGS), set(range(4095)), range(4096))["message"]

    assert message == "ranks 0-4094 timed out in a collective; rank 4095 had not joined it"


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        ("OSError: [Errno 30] Read-only file system: '/models/bert_backend-gloo-2'", "user_code"),
        ("ValueError: no backend of the name Gloo", "user_code"),
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Broken pipe [10.0.0.1]:43431",
            "fabric",
        ),
        (
            "RuntimeError: [enforce fail at ../gloo/gloo/transport/tcp/device.cc:84] Unable to find address for: ib9",
            "fabric",
        ),
        ("torch.distributed.DistNetworkError: the client socket has timed out", "fabric"),
    ],
)
def test_the_class_follows_from_the_exception_whatever_else_mentions_a_network(
    tmp_path: Path, raised: str, kind: str
) -> None:
    frames = '  File "x.py", line 1, in gloo\n    init("gloo")  # Connection refused, MemoryError\n    ^^^^^^^^^^^^\n'

    found = ended(tmp_path, 1, f"Traceback (most recent call last):\n{frames}{raised}\n")

    assert (found["class"], found["secondary"]) == (kind, "Broken pipe" in raised)


HANDLED = (
    'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nOSError: it was handled\n'
    "UserWarning: torch\n"
)


@pytest.mark.parametrize(
    ("number", "oom_kills", "kind", "message"),
    [
        (9, 0, "killed", "killed by SIGKILL, sent by another process, not distlaunch"),
        (15, 0, "killed", "killed by SIGTERM, sent by another process, not distlaunch"),
        (2, 0, "killed", "killed by SIGINT, sent by another process, not distlaunch"),
        (10, 0, "killed", "killed by SIGUSR1, sent by another process, not distlaunch"),
        (9, 1, "out_of_memory", "killed by SIGKILL, sent by the kernel's out-of-memory killer"),
        (11, 0, "user_code", "killed by SIGSEGV"),
        (7, 0, "node", "killed by SIGBUS"),
    ],
)
def test_a_signal_is_named_with_its_sender_and_without_earlier_output(
    tmp_path: Path, number: int, oom_kills: int, kind: str, message: str
) -> None:
    found = ended(tmp_path, -number, HANDLED, oom_kills)

    assert (found["class"], found["message"], found["traceback"]) == (kind, message, None)


def test_the_table_of_classes_in_the_docs_is_the_programs() -> None:
    text = (DOCS / "agent-stream.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| (yes|no) \| ([^|]+) \|$", text, re.MULTILINE)

    assert {name: rest for name, *rest in rows} == {
        each: [
            each.about.text,
            str(each.about.exit_code or "2, 3 or 4"),
            "yes" if each.about.may_come_back else "no",
            each.about.when,
        ]
        for each, about in ((each, each.about) for each in failures.Failure)
    }
    assert {name: str(code) for name, code in re.findall(r"^\| `(\w+)` \| (\d+) \|$", text, re.MULTILINE)} == {
        name: str(code) for name, code in failures.RESULTS.items()
    }


def test_every_final_state_has_an_exit_code() -> None:
    assert set(EXIT_CODES) == {"success", "failed", *failures.ENDS}
    assert set(failures.RESULTS) == {"success", "failed", "lost", *failures.ENDS}


def test_a_class_is_its_name_wherever_it_is_written_or_read() -> None:
    for each in failures.Failure:
        assert json.loads(json.dumps({each: each})) == {each.value: each.value}
        assert f"{each} {each!s}" == f"{each.value} {each.value}"
        assert failures.Failure.named(each.value) is failures.Failure.named(each) is each


def test_an_unknown_class_is_reported_by_its_name() -> None:
    assert failures.text("user_code") == "the script failed"
    assert failures.text("of_tomorrow") == "of_tomorrow"
    assert [failures.may_come_back(why) for why in (None, {"class": "of_tomorrow"}, {"class": "killed"})] == [
        False,
        False,
        True,
    ]


def place_of(directory: Path, contract: str) -> Any:
    job, scratch = SimpleNamespace(contract=contract), SimpleNamespace(path=str(directory))
    return SimpleNamespace(host="h", node_rank=1, directory="kept", scratch=scratch, job=job)


@pytest.mark.parametrize(("contract", "code", "secondary"), [("mpi", 14, True), ("mpi", 3, False), ("env", 14, False)])
def test_a_rank_of_open_mpi_that_has_lost_another_is_not_the_first_cause(
    tmp_path: Path, contract: str, code: int, secondary: bool
) -> None:
    about: Any = {"rank": 3, "local_rank": 1, "round": 0, "pid": 9}
    worker = Worker(about, {})
    exited: Any = {**about, "code": code, "stopped": False, "time": 6.0}
    worker.exited = exited

    (found,) = FailureAnalysis(place_of(tmp_path, contract)).of_workers([worker])

    assert (found["message"], found["secondary"]) == (f"exited with code {code}", secondary)


def test_a_worker_that_raised_and_was_then_stopped_is_not_called_killed(tmp_path: Path) -> None:
    """In its exit hooks, by our SIGTERM, as another node's worker had failed first."""
    (tmp_path / "errors").mkdir()
    raised = {"message": {"message": "RuntimeError: Connection closed by peer", "extraInfo": {"timestamp": 5}}}
    (tmp_path / "errors/0-1.json").write_text(json.dumps(raised))
    place = place_of(tmp_path, "torchrun")
    about: Any = {"rank": 3, "local_rank": 1, "round": 0, "pid": 9}
    exited: Any = {**about, "code": -15, "stopped": True, "time": 6.0}
    worker = Worker(about, {})
    worker.exited = exited

    (found,) = FailureAnalysis(place).of_workers([worker])

    assert (found["class"], found["secondary"], found["signal"], found["time"]) == ("fabric", True, None, 5.0)
    assert found["message"] == "RuntimeError: Connection closed by peer"
