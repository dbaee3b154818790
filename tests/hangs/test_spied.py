"""Workers that were not forked are shown by py-spy, and if it cannot, in the kernel's words, with the reason."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from testbed import wait_until
from tests.frameworks.conftest import in_pods
from tests.hangs.conftest import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.command import Cli
    from tests.frameworks.place import Place

__all__ = ["in_pods"]
SPY = Path(sys.executable).with_name("py-spy")
SCRIPT = """
import ctypes, os, signal, sys, threading, time

def aside():
    time.sleep(600)

def asleep():
    time.sleep(600)

def native():
    ctypes.CDLL(None).pause()

def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)

threading.Thread(target=aside, daemon=True).start()
print("ready", flush=True)
globals()[sys.argv[1]]()
"""


@pytest.fixture
def spied(distlaunch: Cli, start: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """What `distlaunch stacks` has of a spawned worker, with a py-spy that is this shell script."""

    def seen(how: str, spy: str = f'exec {SPY} "$@"', *words: str) -> dict[str, Any]:
        distlaunch.write("bin/py-spy", f"#!/bin/sh\n{spy}\n").chmod(0o755)
        monkeypatch.setenv("PATH", f"{distlaunch.directory / 'bin'}:{os.environ['PATH']}")
        run = start(*(words or ("--start-method", "spawn")), str(distlaunch.write("spawned.py", SCRIPT)), how, ranks=1)
        (group,) = distlaunch("stacks", run, "--output", "json").json["result"]["groups"]
        assert distlaunch("status", run, "--output", "json").json["result"]["state"] == "running"
        return dict(group)

    return seen


def places(frames: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(frame["function"], frame["line"]) for frame in frames if frame["file"].endswith("/spawned.py")]


def test_all_threads_of_a_spawned_worker_are_shown(spied: Callable[..., dict[str, Any]]) -> None:
    group = spied("asleep")

    assert places(group["frames"]) == [("asleep", 8), ("<module>", 18)]
    assert group["frames"][0]["text"] == "time.sleep(600)"
    assert [places(thread) for thread in group["threads"]] == [[("aside", 5)]]
    assert group["summary"] == "is in time.sleep() (spawned.py:8)"


def test_a_spawned_worker_in_native_code_is_shown(spied: Callable[..., dict[str, Any]]) -> None:
    assert places(spied("native")["frames"]) == [("native", 11), ("<module>", 18)]


@pytest.mark.k8s
def test_a_spawned_worker_in_a_pod_is_shown(in_pods: Place) -> None:
    """By the py-spy of its image, without more rights than a container has."""
    in_pods.work.joinpath("spawned.py").write_text(SCRIPT)
    words = [
        "--nproc-per-node=1",
        "--start-method=spawn",
        "--detach",
        f"--volume=hostpath:{in_pods.work}:{in_pods.work}",
    ]
    done = in_pods.other("k8s", *in_pods.where, *words, "spawned.py", "native")
    assert done.exit_code == 0, done.stderr
    run = done.stdout.strip()
    wait_until("the worker", lambda: "ready" in in_pods.other("logs", run).stdout, limit_s=LIMIT_S)

    (group,) = in_pods.other("stacks", run, "--output", "json").json["result"]["groups"]

    assert places(group["frames"]) == [("native", 11), ("<module>", 18)], group
    in_pods.other("cancel", "--force", run)


def test_a_stopped_one_is_shown_as_stopped(spied: Callable[..., dict[str, Any]]) -> None:
    group = spied("stopped")

    assert (group["frames"], group["state"]) == ([], "T (stopped)")


AGAIN = """
import os, sys, time
name = "OMP_NUM_" + "THREADS"
os.environ[name] = "1"
import torch

def asleep():
    time.sleep(600)

print("ready", flush=True)
asleep()
"""


@pytest.mark.torch
def test_a_worker_that_started_again_in_its_own_interpreter_is_shown(
    distlaunch: Cli, start: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{SPY.parent}:{os.environ['PATH']}")
    run = start("--env", "OMP_NUM_THREADS=2", str(distlaunch.write("again.py", AGAIN)), ranks=1)

    (group,) = distlaunch("stacks", run, "--output", "json").json["result"]["groups"]
    (stream,) = distlaunch.runs.glob("*/nodes/0/stream")
    assert "start again, each in its own interpreter" in stream.read_text()
    assert group["summary"] == "is in time.sleep() (again.py:8)"


@pytest.mark.skipif(shutil.which("setpriv") is None or os.getuid() != 0, reason="only root can give up that right")
def test_the_reason_is_shown_if_the_kernel_refuses(spied: Callable[..., dict[str, Any]]) -> None:
    group = spied("asleep", f'exec setpriv --bounding-set=-sys_ptrace {SPY} "$@"')

    assert group["frames"] == []
    assert re.fullmatch(
        r"S \(sleeping\).*; py-spy: the kernel does not let it read the process \(ptrace\)", group["state"]
    ), group["state"]


@pytest.mark.parametrize(
    ("spy", "why"),
    [
        ("exec sleep 60", "no answer within 3 s"),
        ("kill -SEGV $$", "ended by signal 11"),
        ("exit 3", "exit code 3"),
        ("echo '[{\"frames\": 3}]'", r"an answer that is none \(KeyError\)"),
        ("echo '[]'", "no stack of the main thread"),
        ("printf '['", r"an answer that is none \(JSONDecodeError\)"),
    ],
    ids=["hangs", "crashes", "fails", "nonsense", "nothing", "half"],
)
def test_a_broken_spy_costs_a_moment_and_is_the_reason(
    spied: Callable[..., dict[str, Any]], spy: str, why: str
) -> None:
    group = spied("asleep", spy)

    assert group["frames"] == []
    assert re.fullmatch(rf"S \(sleeping\).*; py-spy: {why}", group["state"]), group["state"]


def test_a_program_that_is_no_python_is_shown_in_the_kernels_words_alone(
    distlaunch: Cli, start: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{SPY.parent}:{os.environ['PATH']}")
    path = distlaunch.write("plain", "#!/bin/sh\necho ready\nexec sleep 600\n")
    path.chmod(0o755)
    run = start("--no-python", str(path), ranks=1)

    (group,) = distlaunch("stacks", run, "--output", "json").json["result"]["groups"]
    assert re.fullmatch(r"S \(sleeping\), (clock_)?nanosleep, in \w+( < \w+)*", group["state"]), group["state"]


def test_the_watchdog_names_a_spawned_rank(distlaunch: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{SPY.parent}:{os.environ['PATH']}")
    script = distlaunch.write(
        "four.py", SCRIPT.replace("sys.argv[1]", "'asleep' if os.environ['RANK'] == '1' else 'native'")
    )
    words = (
        "--nproc-per-node",
        "3",
        "--start-method",
        "spawn",
        "--hang-after",
        "3s",
        "--on-hang",
        "end",
        "--grace",
        "2s",
    )

    run = distlaunch("local", "--output", "json", *words, str(script))

    cause = run.json["result"]["cause"]
    assert (cause["class"], cause["rank"]) == ("no_progress", 1), cause
    assert "is in time.sleep() (four.py:8); ranks 0, 2 are in native (four.py:11" in cause["message"]
