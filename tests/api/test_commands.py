"""Each command of the command line has its function, and both report the same about the same runs."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

import distlaunch
from launcher import backends
from launcher.cli.group import command_names
from testbed.running import Running
from tests import envelope
from tests.api.commands import ended, login, metrics, report, result_of, serve, stacks, top
from tests.command import Cli

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GATE = """\
import os, time
print("rank", os.environ["RANK"], flush=True)
while not os.path.exists("gate"):
    time.sleep(0.01)
raise ValueError("this is wrong")
"""


def as_result(run: distlaunch.Run) -> dict[str, Any]:
    """What every launch of one script results in."""
    result = run.wait(120)
    cause = result.cause
    return {
        "state": result.state,
        "exit_code": result.exit_code,
        "restarts": result.restarts,
        "attempt": result.attempt,
        "cause": cause and (cause.failure_class, cause.message, cause.rank, cause.host, cause.traceback),
    }


def of_command(data: dict[str, Any]) -> dict[str, Any]:
    """The same in a command's JSON."""
    cause = data["cause"]
    return {
        **{key: data[key] for key in ("state", "exit_code", "restarts", "attempt")},
        "cause": cause and tuple(cause[key] for key in ("class", "message", "rank", "host", "traceback")),
    }


def launches(here: Path) -> None:
    for args in ([], ["fail"]):
        run = distlaunch.submit("work.py", args, nproc_per_node=2)
        assert of_command(result_of(here, "local", "--nproc-per-node", "2", "work.py", *args)) == as_result(run)
    ours = distlaunch.plan("work.py", nodes=2, time=60).to_json()
    theirs = result_of(here, "local", "--nodes", "2", "--time", "60s", "--dry-run", "work.py")
    assert json.dumps(ours).replace(ours["plan"]["spec"]["run"], "ID") == json.dumps(theirs).replace(
        theirs["plan"]["spec"]["run"], "ID"
    )


def runs_on(here: Path) -> None:
    (here / "distlaunch.toml").write_text('[clusters.lab]\nbackend = "local"\nnproc_per_node = 2\n')
    run = distlaunch.submit("work.py", cluster="lab")
    data = result_of(here, "run", "--on", "lab", "work.py")
    assert of_command(data) == as_result(run)
    assert distlaunch.get(data["run"]).cluster == run.cluster == "lab"


def ls(here: Path) -> None:
    for _ in range(2):
        ended(here)
    rows = result_of(here, "ls")["runs"]
    assert [(row["run"], row["state"], row["command"]) for row in rows] == [
        (run.id, run.state, list(run.command)) for run in distlaunch.runs()
    ]
    (here / "distlaunch.toml").write_text('[clusters.lab]\nbackend = "local"\n')
    waits = distlaunch.submit("work.py", ["wait"])
    (ours, theirs) = (
        [row for row in found if row["run"] == waits.id]
        for found in (distlaunch.cluster_runs("lab"), result_of(here, "ls", "--on", "lab")["runs"])
    )
    assert ours == theirs != []
    waits.cancel(force=True)


def hosts(here: Path) -> None:
    waits = distlaunch.submit("work.py", ["wait"])
    ours, theirs = distlaunch.cluster_hosts("local"), result_of(here, "hosts", "--on", "local")["hosts"]
    waits.cancel(force=True)

    assert [each["host"] for each in ours] == [each["host"] for each in theirs] == [socket.gethostname()]
    for (host,) in (ours, theirs):
        assert waits.id in [lease["run"] for lease in host["leases"]]
        assert host["state"] == "up"


def clusters(here: Path) -> None:
    (here / "distlaunch.toml").write_text('[clusters.lab]\nbackend = "local"\n[clusters.off]\nbackend = "slurm"\n')
    theirs = result_of(here, "clusters", "--nodes", "2")["clusters"]
    ours = distlaunch.cluster_overviews(nodes=2)
    for each in (*ours, *theirs):
        if each["start"]:
            each["start"]["at"] = 0.0
        if each["cluster"] == "lab":  # another test's runs count too, and come and go
            assert [type(each.pop(count)) for count in ("nodes_free", "gpus_free", "own_runs")] == [int] * 3
    assert ours == theirs
    assert next((each["cluster"], each["nodes"], each["problem"] is None) for each in ours) == ("lab", 1, True)


def status(here: Path) -> None:
    run = ended(here, "fail")
    assert result_of(here, "status", run) == distlaunch.get(run).status()


def logs(here: Path) -> None:
    run = ended(here)
    done = Cli(here)("logs", run, "--rank", "1")
    assert done.stdout.splitlines() == [line.text for line in distlaunch.get(run).logs(rank=1)]


def attach(here: Path) -> None:
    """Its lines and its end are what `events` gives."""
    (here / "gate.py").write_text(GATE)
    run = distlaunch.submit("gate.py", nproc_per_node=2)
    attached = Running(Cli(here).start("attach", run.id, "--tail", "all", "--output", "jsonl"))
    attached.until('"type": "line"')  # of a run that has ended, it shows only how
    (here / "gate").touch()
    assert attached.end() == 1
    shown = [json.loads(line) for line in attached.stdout.splitlines()]
    attached.close()
    events = list(run.events())
    assert of_command(shown[-1]["result"]) == as_result(run)
    lines = [each["text"] for each in shown if each["type"] == "line"]
    assert lines == [each.text for each in events if isinstance(each, distlaunch.WorkerLine) and each.rank == 0]
    assert lines


def wait(here: Path) -> None:
    run = distlaunch.submit("work.py", ["fail"], nproc_per_node=2)
    done = Cli(here)("wait", run.id, "--output", "json")
    result = run.wait(120)
    assert done.exit_code == result.exit_code == 1
    assert [(each["run"], each["state"]) for each in done.json["result"]["runs"]] == [(run.id, result.state)]
    endless = distlaunch.submit("work.py", ["wait"])
    late = Cli(here)("wait", "--timeout", "0.1s", endless.id)
    assert (late.exit_code, "has not ended within 0.1s" in late.stderr) == (5, True)
    with pytest.raises(TimeoutError, match=r"has not ended within 0\.1 s"):
        endless.wait(0.1)
    endless.cancel(force=True)


def shell(here: Path) -> None:
    """A person's, at a terminal: tests/terminal/leaves.py opens some. Programs have `call`."""
    done = Cli(here)("shell", ended(here), "--output", "json")
    assert (done.exit_code, done.json["error"]["code"]) == (2, "bad_request")


def fetch(here: Path) -> None:
    run = ended(here)
    ours = distlaunch.get(run).fetch("work.py", to=here / "ours")
    theirs = result_of(here, "fetch", run, "work.py", "--to", "theirs")
    assert (
        (here / "ours/work.py").read_text() == (here / "theirs/work.py").read_text() == (here / "work.py").read_text()
    )
    assert ours["files"] == theirs["files"]


def rm(here: Path) -> None:
    runs = [ended(here), ended(here)]
    distlaunch.get(runs[0]).remove()
    assert result_of(here, "rm", runs[1]) == {"runs": [runs[1]]}
    assert not distlaunch.runs()


def prune(here: Path) -> None:
    runs = [ended(here), ended(here, "fail")]
    assert result_of(here, "prune", "--older-than", "0.001s", "--dry-run")["runs"] == sorted(runs)
    assert [run.id for run in distlaunch.prune(older_than=0.001, keep_failed=True, dry_run=True)] == [runs[0]]
    assert [run.id for run in distlaunch.prune(older_than=0.001)] == sorted(runs)
    assert result_of(here, "prune", "--older-than", "0.001s")["runs"] == []


def cancel(here: Path) -> None:
    ids = []
    for _ in range(2):
        run = distlaunch.submit("work.py", ["wait"])
        assert next(line for line in run.logs(follow=True) if line.text == "waits")
        ids.append(run.id)
    result = distlaunch.get(ids[0]).cancel(force=True)
    assert result
    told = {"run": ids[1], "state": result.state, "exit_code": result.exit_code}
    assert result_of(here, "cancel", "--force", ids[1]) == told


def requeue(here: Path) -> None:
    ids = [ended(here), ended(here)]
    attempt = distlaunch.get(ids[0]).requeue()
    assert result_of(here, "requeue", ids[1]) == {"run": ids[1], "attempt": attempt}
    assert [distlaunch.get(run).wait(120).attempt for run in ids] == [attempt, attempt]


def move(here: Path) -> None:
    (here / "distlaunch.toml").write_text('[clusters.lab]\nbackend = "local"\n')
    ours, theirs = (distlaunch.submit("work.py", ["wait"]) for _ in range(2))
    assert (ours.move("lab").id, distlaunch.get(ours.id).cluster) == (ours.id, "lab")
    assert result_of(here, "move", theirs.id, "--to", "lab") == {"run": theirs.id, "cluster": "lab", "attempt": 1}
    assert [run.cancel(force=True).attempt for run in (ours, theirs)] == [1, 1]  # type: ignore[union-attr]


def adopt(here: Path) -> None:
    """A run that is nowhere; tests/runs/test_here.py adopts some."""
    (here / "distlaunch.toml").write_text('[clusters.lab]\nbackend = "local"\n')
    with pytest.raises(distlaunch.RunNotFoundError) as caught:
        distlaunch.adopt("x-20250101-120000-abcd", cluster="lab")
    done = Cli(here)("adopt", "x-20250101-120000-abcd", "--on", "lab", "--output", "json")
    assert {key: done.json["error"][key] for key in ("code", "message")} == {
        "code": caught.value.code,
        "message": caught.value.message,
    }


def config(here: Path) -> None:
    (here / "distlaunch.toml").write_text(
        '[defaults]\nnodes = 3\n[clusters.lab]\nbackend = "local"\nshare_gpus = true\n'
    )
    for ours, words in ((distlaunch.settings(), ()), (distlaunch.settings("lab"), ("--cluster", "lab"))):
        theirs = Cli(here)("config", *words, "--output", "json").json["result"]
        for said in (ours, theirs):  # the one thing in which the two requests differ
            del said["settings"]["output"]
        assert theirs == ours


def doctor(here: Path) -> None:
    ours, theirs = (
        distlaunch.doctor(nodes=2, seconds=0.1),
        result_of(here, "doctor", "local", "--nodes", "2", "--seconds", "0.1"),
    )
    assert ours["nodes"] == theirs["nodes"]
    envelope.check_result("doctor", ours)
    assert (ours["ok"], distlaunch.get(ours["run"]).state) == (theirs["ok"], distlaunch.get(theirs["run"]).state)


def torchrun(here: Path) -> None:
    for args, code in (([], 0), (["fail"], 1)):
        words = ["--standalone", "--nproc-per-node", "2", "work.py", *args]
        call = f"import distlaunch; raise SystemExit(distlaunch.torchrun({words!r}))"
        ours, theirs = Cli(here)(python=("-c", call), real=True), Cli(here)("torchrun", *words)
        assert (ours.exit_code, theirs.exit_code) == (code, code)
        assert (
            sorted(ours.stdout.splitlines())
            == sorted(theirs.stdout.splitlines())
            == [f"rank {rank}" + "".join(f" {arg}" for arg in args) for rank in (0, 1)]
        )
    with pytest.raises(distlaunch.SpecError, match="args is a single string"):
        distlaunch.torchrun("--standalone work.py")


CALLS: dict[str, Callable[[Path], None]] = {
    **dict.fromkeys(backends.names(), launches),
    "run": runs_on,
    "ls": ls,
    "status": status,
    "top": top,
    "logs": logs,
    "report": report,
    "metrics": metrics,
    "serve": serve,
    "attach": attach,
    "wait": wait,
    "shell": shell,
    "fetch": fetch,
    "rm": rm,
    "prune": prune,
    "cancel": cancel,
    "stacks": stacks,
    "requeue": requeue,
    "move": move,
    "adopt": adopt,
    "hosts": hosts,
    "clusters": clusters,
    "login": login,
    "config": config,
    "doctor": doctor,
    "torchrun": torchrun,
}
"""Each command, compared with the function that does the same."""
NAMES = ["local", *(name for name in CALLS if name not in (*backends.names(), "doctor"))]


def test_every_command_has_its_call() -> None:
    assert set(CALLS) == {*backends.names(), *command_names()}


@pytest.mark.parametrize("name", [*NAMES, pytest.param("doctor", marks=pytest.mark.torch)])
def test_the_call_does_what_the_command_does(here: Path, name: str) -> None:
    CALLS[name](here)
