"""`kubectl logs` of a run's pods is for people, and has everything that the run's own commands need."""

from __future__ import annotations

import re
import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from testbed import wait_until
from tests.k8s.conftest import index_of

if TYPE_CHECKING:
    from tests.k8s.conftest import User

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(300)]

SHOWS = """
import os, signal, sys, time
rank, told = os.environ["RANK"], []
signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
print("to stderr from", rank, file=sys.stderr, flush=True)
sys.stdout.buffer.write(b"bytes \\xff\\x00 of " + rank.encode() + b", blanks  \\n\\n[7] a tag\\n")
sys.stdout.buffer.write(b"x" * 200_000 + b'\\ndistlaunch: done result=failed\\n{"event":"done"}\\n0.0| a record\\n')
sys.stdout.flush()
for piece in ("half ", "a ", "line of "):
    print(piece, end="", flush=True)
    time.sleep(0.3)
print(rank, flush=True)
while not told:
    time.sleep(0.05)
print("signalled", flush=True)
print("no newline", end="", flush=True)
"""
LINE = r"distlaunch: \w+( [\w.]+=(\"([^\"\\]|\\.)*\"|[\[{].*?[\]}]|[^ \"]+))+"


def printed(rank: int) -> str:
    """What a rank prints to stdout, as text."""
    first = f"bytes \ufffd\0 of {rank}, blanks  \n\n[7] a tag\n{'x' * 200_000}\n"
    looks = 'distlaunch: done result=failed\n{"event":"done"}\n0.0| a record\n'
    return f"{first}{looks}half a line of {rank}\nsignalled\nno newline"


def test_kubectl_logs_shows_what_workers_print_and_nothing_is_lost_for_the_runs_own_commands(pods: User) -> None:
    pods.write("shows.py", SHOWS)
    alone = pods.follow("--nodes", "1", "shows.py")
    shared = pods.follow("--nodes", "2", "--nproc-per-node", "2", "--log-ranks", "all", "shows.py")
    both = {follower.run: follower for follower in (alone, shared)}
    names = {run: [pod["metadata"]["name"] for pod in sorted(pods.wait_pods(run, count), key=index_of)]
             for run, count in zip(both, (1, 2), strict=True)}  # fmt: skip
    for run, pod_names in names.items():
        pods.wait_printed(run, "line of ", len(pod_names))

    # A run that is silent for some seconds still shows what its worker has printed last.
    tail = ("logs", names[alone.run][0], "--tail=1", "-n", pods.namespace)
    wait_until("the last piece of its line", lambda: pods.kube.kubectl(*tail).stdout.rstrip() == "0")
    for follower in both.values():
        follower.process.send_signal(signal.SIGUSR1)
    followed = pods.kube.kubectl("logs", "-f", names[alone.run][0], "-n", pods.namespace).stdout
    done = {run: follower.result() for run, follower in both.items()}
    logs = {name: pods.kube.kubectl("logs", name, "-n", pods.namespace).stdout for run in both for name in names[run]}

    assert all(result.exit_code == 0 for result in done.values()), [result.stderr for result in done.values()]
    assert followed == logs[names[alone.run][0]]
    for log in logs.values():
        ours = [line for line in log.splitlines() if line.startswith("distlaunch: ") and not line.endswith("  ")]
        assert all(re.fullmatch(LINE, line) for line in ours), ours
        assert "success" in ours[-1]
        assert "heartbeat" not in log
    (text,) = (logs[name] for name in names[alone.run])
    lines = [line.rstrip(" \t") for line in text.split("\n")]
    assert {"to stderr from 0", "bytes \ufffd\0 of 0, blanks", '{"event":"done"}', "signalled"} <= set(lines)
    for node, name in enumerate(names[shared.run]):
        for rank in (2 * node, 2 * node + 1):
            assert re.search(rf"^\[{rank}\] bytes \ufffd\0 of {rank}, blanks +$", logs[name], re.MULTILINE)
            assert re.search(rf"^\[{rank}\] signalled$", logs[name], re.MULTILINE)

    # Followed, and read from the pods by another user later: the same bytes.
    shutil.rmtree(pods.cli.runs)
    assert done[alone.run].stdout.removesuffix("\n") == printed(0)
    for run, ranks in ((alone.run, 1), (shared.run, 4)):
        for rank in range(ranks):
            later = pods("logs", run, "--on", "k8s", "--rank", str(rank))
            assert "\n".join(re.sub(r"^\[\d:\d\] ", "", line) for line in later.stdout.split("\n")).rstrip("\n") == (
                printed(rank)
            )
            assert "to stderr from" in later.stderr
