"""The backend without hosts: what it sends, when it starts a run again, which hosts are lost, which signals fail."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.protocol import encode_event
from launcher.backends.ansible import backend as ansible
from launcher.backends.ansible import lost, silence
from launcher.backends.ansible import stream as streams
from launcher.backends.ansible.backend import AnsibleBackend
from launcher.backends.ansible.options import AnsibleOptions
from launcher.errors import CommandError, SpecError
from launcher.runs.restarts import may_follow
from launcher.spec import JobSpec, NodeRange, parse_size
from launcher.system import install
from tests.ansible.test_stream import ANSWERS, Clock, node
from tests.command import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.backends.ansible.handle import AnsibleHandle

pytestmark = pytest.mark.usefixtures("ansible_asked_once")


def plan(directory: Path, *command: str, spec: dict[str, Any] | None = None, **options: Any) -> Any:
    """What would be sent from a working directory."""
    backend = AnsibleBackend(AnsibleOptions(inventory=("n1,n2,n3,",), **options))
    return backend.plan(
        JobSpec(name="x", command=command, cwd=str(directory), env={}, **(spec or {})), directory / "runs/x-1"
    )


def test_the_files_and_the_command_are_those_of_the_working_directory_or_of_the_scripts(tmp_path: Path) -> None:
    here = tmp_path / "here"
    for path in ("here/train.py", "here/sub/other.py", "here/pkg/__init__.py", "there/script.py", "there/beside.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")

    def sent(*command: str, **more: Any) -> tuple[Any, list[str], str]:
        made = plan(here, *command, **more)
        files = [file.path for file in made.snapshot.files] if made.snapshot else None
        assert bool(made.variables["distlaunch_digest"]) is bool(files)
        return files, made.job.command, made.variables["distlaunch_cwd"]

    own = ["pkg/__init__.py", "sub/other.py", "train.py"]
    assert sent("train.py", "--lr", "1") == (own, ["train.py", "--lr", "1"], "")
    assert sent("sub/../sub/other.py") == (own, ["sub/other.py"], "")
    assert sent("../there/script.py") == (["beside.py", "script.py"], ["script.py"], "")
    assert sent("train.py", spec={"kind": "module"}) == (own, ["train.py"], "")
    assert sent("train.py", in_place=True) == (None, ["train.py"], str(here))
    files, command, cwd = sent(str(install.data("train") / "reduce.py"), in_place=True)
    assert ("reduce.py" in files, command, cwd) == (True, ["reduce.py"], ""), "the hosts have no bundled scripts"


def test_the_plan_has_what_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "x.py").touch()
    spec = {"python": "/opt/python", "workers_per_node": 3, "nodes": NodeRange(min=1, max=2), "secrets": ("TOKEN",)}

    made = plan(tmp_path, "x.py", spec=spec, spares=1, remote_dir="/data/runs", host_timeout=7)

    wanted = {
        "distlaunch_run": "x-1",
        "distlaunch_hosts": ["n1", "n2", "n3"],
        "distlaunch_nodes": 2,
        "distlaunch_least_nodes": 1,
        "distlaunch_dir": "/data/runs",
        "distlaunch_secrets": ["TOKEN"],
        "distlaunch_timeout_s": 7,
        "distlaunch_python": "/opt/python",
        "distlaunch_workers": 3,
    }
    assert {key: made.variables[key] for key in wanted} == wanted
    assert [(node.node_rank, node.host, node.workers) for node in made.nodes] == [(0, "n1", 3), (1, "n2", 3)]
    assert (made.spares, made.job.min_nodes, made.job.max_nodes) == (("n3",), 1, 2)
    assert made.master == "n1 (port chosen at start)"
    plain = plan(tmp_path, "x.py").variables
    assert not {"distlaunch_python", "distlaunch_workers"} & set(plain), "each host's own"


def test_a_missing_secret_is_reported_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.py").touch()
    monkeypatch.delenv("TOKEN", raising=False)

    with pytest.raises(SpecError, match="secret TOKEN: not set in the current environment"):
        AnsibleBackend(AnsibleOptions()).submit(plan(tmp_path, "x.py", spec={"secrets": ("TOKEN",)}))

    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("text", "number"), [("500KB", 500_000), ("1.5 mb", 1_500_000), ("2GB", 2_000_000_000), ("0.0001KB", 0)]
)
def test_sizes(text: str, number: int) -> None:
    assert parse_size(text, "snapshot-limit") == number


@pytest.mark.parametrize(
    ("spares", "restarts", "state", "cause", "again"),
    [
        (1, 0, "failed", "node", True),
        (1, 1, "failed", "fabric", True),
        (1, 2, "failed", "node", False),  # no restarts are left
        (0, 0, "failed", "node", False),  # no spare takes its place
        (1, 0, "failed", "user_code", False),
        (1, 0, "failed", None, False),
        (1, 0, "cancelled", "node", False),
    ],
)
def test_a_run_continues_with_a_spare_where_a_host_was_lost(
    tmp_path: Path, spares: int, restarts: int, state: str, cause: str | None, again: bool
) -> None:
    (tmp_path / "ansible").mkdir()
    (tmp_path / "ansible/job.json").write_text(json.dumps({"max_restarts": 2, "attempt": 5}))
    outcome: Any = SimpleNamespace(state=state, cause={"class": cause} if cause else None)

    handle: AnsibleHandle = {"run_dir": str(tmp_path), "restarts": restarts}
    left = AnsibleBackend(AnsibleOptions(spares=spares)).restarts_left(handle)
    assert (left > 0 and may_follow(outcome)) is again


def tail(rank: int, state: str, *, silent_since: float | None = None, problem: str = "", ending: str = "") -> Any:
    """What the connection to a node knows."""
    about = {"rank": rank, "host": f"n{rank + 1}"}
    told = {"message": ending} if ending else {}
    return SimpleNamespace(
        node=about, state=state, lost_at=silent_since, problem=problem, ending=told, finished=state == "ended"
    )


def test_a_host_is_lost_once_another_has_ended_or_waits_without_it_and_it_was_silent_for_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stream = tmp_path / "stream"
    stream.write_bytes(encode_event("agent_started", 0) + encode_event("rendezvous", 0))
    clock = Clock()
    monkeypatch.setattr(lost, "time", clock)
    now = clock.monotonic()

    def said(*tails: Any) -> Any:
        backend = AnsibleBackend(AnsibleOptions())
        for each in tails:
            each.stream = stream
        backend._streams = SimpleNamespace(tails=tails)  # type: ignore[assignment]
        return backend.liveness({"run_dir": str(tmp_path), "hosts": ["n1", "n2"]})

    silent = tail(1, "running", silent_since=now, problem="ssh: timed out")
    both = said(tail(0, "running"), silent)
    assert (both.nodes, both.detail, both.causes) == (("running", "unknown"), "no connection to n2: ssh: timed out", {})
    assert said(tail(0, "ended"), silent).nodes == ("ended", "unknown"), "it may come back"
    clock.ahead_s += 60
    assert said(tail(0, "running"), silent).nodes == ("running", "unknown"), "the run continues"
    alone = encode_event("agent_started", 0)
    once_more = encode_event("agent_started", 0, attempt=1)
    for text in (alone, alone + encode_event("rendezvous", 0) + once_more):
        stream.write_bytes(text)
        assert said(tail(0, "running"), silent).nodes == ("running", "ended"), "no other node would miss it"
    stream.write_bytes(
        once_more + encode_event("rendezvous", 0, attempt=1) + b'0.0| {"event":"agent_started",\n' * 9000
    )
    assert said(tail(0, "running"), silent).nodes == ("running", "unknown"), "it has met them long ago"
    gone = said(tail(0, "ended"), silent)
    assert gone.nodes == ("ended", "ended")
    assert gone.causes == {1: {"class": "node", "message": "host n2 does not answer any more: ssh: timed out"}}
    assert said(tail(0, "ended"), tail(1, "running")).nodes == ("ended", "running")
    killed = said(tail(0, "ended", ending="the agent was killed"), tail(1, "unknown"))
    assert killed.nodes == ("ended", "unknown")
    assert killed.causes == {0: {"class": "node", "message": "host n1: the agent was killed"}}


def test_a_host_that_answers_no_call_of_a_process_is_silent_since_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a command that waits asks again and again, and each call ends long before a host counts as lost."""
    gate = tmp_path / "gate"
    nodes = [node(tmp_path, 0, f"[ -e {gate} ] || exit 1; {ANSWERS}"), node(tmp_path, 1, "exit 1")]

    def silent_since() -> list[float]:
        return [tail.lost_at or 0.0 for tail in streams.fetch({"run_dir": str(tmp_path), "nodes": nodes}, 0.5)]

    first = silent_since()
    assert silent_since() == first
    gate.touch()
    silent_since()
    gate.unlink()
    again = silent_since()
    assert again[0] > first[0], "it has answered meanwhile"
    assert again[1] == first[1]
    monkeypatch.setattr(silence, "_APART_S", 0.0)
    assert min(silent_since()) > again[0], "no one has asked for long"


def test_hosts_that_a_signal_did_not_reach_are_reported_with_what_to_do(tmp_path: Path) -> None:
    answers = """printf '\\ndistlaunch-host-1 {"signalled": true}\\n'"""
    refuses = "echo 'user@n1: Permission denied (publickey).' >&2; exit 255"
    told = f'echo "$*" > {tmp_path}/told; {answers}'
    nodes = [node(tmp_path, 0, told), node(tmp_path, 1, refuses), node(tmp_path, 2, "exit 7")]

    with pytest.raises(CommandError) as error:
        AnsibleBackend(AnsibleOptions()).cancel(handle_of(nodes), force=True)

    assert error.value.message == "n1: user@n1: Permission denied (publickey).; n2: ssh ended with code 7"
    assert "ssh-copy-id HOST" in str(error.value.hint)
    assert f"signal /x 0 {int(signal.SIGTERM)} --force" in (tmp_path / "told").read_text()
    AnsibleBackend(AnsibleOptions()).signal(handle_of(nodes[:1]), signal.SIGUSR1)
    assert f"signal /x 0 {int(signal.SIGUSR1)}'" in (tmp_path / "told").read_text()


def handle_of(nodes: list[Any]) -> AnsibleHandle:
    return {"run_dir": "/x", "nodes": nodes}


def told_to_start(run_dir: Path, nodes: list[dict[str, Any]]) -> AnsibleHandle:
    """What there is of a submission once the hosts were told to start; the handle that was recorded before."""
    lines: list[dict[str, Any]] = [{"choice": {"ranks": {node["host"]: node["rank"] for node in nodes}}}]
    for each in nodes:
        facts = {key: each[key] for key in ("ssh", "directory", "agent_path")}
        facts |= {"python_used": each["python"], "python_version": "3.12.3", "torch": None, "gpus": 0, "free_bytes": 1}
        lines.append({"step": "preflight", "host": each["host"], "answer": facts})
    lines.append({"step": "start", "hosts": [each["host"] for each in nodes]})
    (run_dir / "ansible").mkdir(parents=True, exist_ok=True)
    (run_dir / "ansible/report").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"run_dir": str(run_dir), "hosts": [each["host"] for each in nodes]}


def test_a_start_that_failed_is_not_over_as_long_as_a_host_that_was_told_to_start_does_not_answer(
    tmp_path: Path,
) -> None:
    answers = """printf '\\ndistlaunch-host-1 {"signalled": true}\\n'"""
    silent = "echo 'ssh: connect to host n1 port 22: Connection timed out' >&2; exit 255"
    handle = told_to_start(tmp_path / "run", [node(tmp_path, 0, answers), node(tmp_path, 1, silent)])
    backend = AnsibleBackend(AnsibleOptions())

    for _ in range(2):  # what is known of the hosts is kept
        with pytest.raises(CommandError, match=r"^n1: ssh: connect to host n1 port 22: Connection timed out$"):
            backend.undo(handle)


def test_an_interrupt_when_all_agents_have_started_does_not_lose_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.py").touch()
    made = plan(tmp_path, "x.py")
    nodes = [node(tmp_path, 0, "exit 1")]
    monkeypatch.setattr(ansible, "start", lambda run_dir, *_: {**told_to_start(run_dir, nodes), "nodes": nodes})
    backend, recorded = AnsibleBackend(AnsibleOptions()), []

    def record(handle: Any) -> None:
        recorded.append(handle)
        if "nodes" in handle:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backend.submit(made, record)

    recovered = backend.recover(recorded[0])
    assert recovered is not None
    assert [node["host"] for node in recovered["nodes"]] == ["n0"]
    assert backend.submit(made, recorded.append)["nodes"] == nodes
    assert recorded[-1]["nodes"] == nodes
    assert backend.recover(recorded[0]) is None, "once they are on record, what the hosts have answered is not kept"


ASKS = """
import signal, time
from launcher.backends.ansible import ssh
signal.signal(signal.SIGTERM, signal.default_int_handler)
def ask(node):
    print("asked", flush=True)
    time.sleep(3600)
ssh.call_all({"nodes": [{"host": "n1"}]}, ask)
"""


def test_an_interrupt_does_not_wait_for_a_host_that_does_not_answer() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ASKS], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as asking:
        assert asking.stdout
        assert asking.stdout.readline() == b"asked\n"
        asking.terminate()
        try:
            _, said = asking.communicate(timeout=60)
        finally:
            asking.kill()

    assert said.endswith(b"KeyboardInterrupt\n")
