"""Requests to an API server that is busy, restarts, or answers nonsense."""

from __future__ import annotations

import ctypes
import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from launcher.backends.kubernetes import api, connecting, submission
from launcher.backends.kubernetes.api import ApiError, UnreachableError
from launcher.backends.kubernetes.pod import RUN_LABEL
from launcher.errors import LaunchError
from tests.command import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from launcher.backends.kubernetes.api import Cluster
    from launcher.backends.kubernetes.handle import KubernetesHandle
    from tests.command import Cli

FINE = '{"a": 1}'
GONE = None
"""No answer: the connection ends."""


@contextmanager
def answering(directory: Path, answers: list[tuple[int, str] | None]) -> Iterator[tuple[Cluster, list[str]]]:
    """A server that gives these answers, one after the other; the methods that it was asked with."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            asked.append(self.command)
            given = answers[len(asked) - 1]
            if given is None:
                self.close_connection = True
                return
            status, text = given
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815 - the library's names

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield connecting.connect(str(kubeconfig(directory, server.server_address[1])), "", ""), asked
        server.shutdown()


def kubeconfig(directory: Path, port: int) -> Path:
    """A kubeconfig that leads to a port of this host."""
    place = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    config = {"clusters": [place], "contexts": [context], "users": [{"name": "u", "user": {}}], "current-context": "c"}
    path = directory / "config"
    path.write_text(json.dumps(config))
    return path


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between tries, in seconds; here they take no time."""
    found: list[float] = []
    for module in (api, submission):
        monkeypatch.setattr(
            module, "time", SimpleNamespace(sleep=found.append, monotonic=time.monotonic)
        )  # theirs alone: other threads sleep, too
    return found


@pytest.mark.parametrize("bad", [(429, ""), (500, ""), (502, ""), (503, "{}"), (504, "x"), (200, '{"a":'), GONE])
def test_temporary_errors_are_retried_after_longer_and_longer_pauses(
    tmp_path: Path, pauses: list[float], bad: tuple[int, str] | None
) -> None:
    with answering(tmp_path, [bad, bad, bad, (200, FINE)]) as (cluster, asked):
        assert cluster.call("GET", "/x") == {"a": 1}

    assert len(asked) == 4
    assert pauses == [0.2, 0.4, 0.8]


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [((503, '{"message": "etcd is away"}'), ApiError, "etcd is away"), (GONE, UnreachableError, "http://127.0.0.1:")],
)
def test_the_fourth_bad_answer_is_the_last(
    tmp_path: Path, pauses: list[float], bad: tuple[int, str] | None, error: type[Exception], words: str
) -> None:
    with answering(tmp_path, [bad] * 4) as (cluster, asked), pytest.raises(error, match=words):
        cluster.call("DELETE", "/x")

    assert asked == ["DELETE"] * 4
    assert len(pauses) == 3


@pytest.mark.parametrize(
    ("method", "bad", "error"),
    [
        ("GET", (404, ""), ApiError),
        ("GET", (403, ""), ApiError),
        ("POST", (503, ""), ApiError),
        ("POST", GONE, UnreachableError),
    ],
)
def test_refusals_and_requests_that_may_have_taken_effect_are_not_retried(
    tmp_path: Path, pauses: list[float], method: str, bad: tuple[int, str] | None, error: type[Exception]
) -> None:
    with answering(tmp_path, [bad]) as (cluster, asked), pytest.raises(error):
        cluster.call(method, "/x", {"b": 2} if method == "POST" else None)

    assert asked == [method]
    assert pauses == []


def test_a_missing_object_is_none(tmp_path: Path) -> None:
    with answering(tmp_path, [(404, "")]) as (cluster, _):
        assert cluster.find("/x") is None


OURS = {"kind": "ConfigMap", "metadata": {"name": "x-1", "labels": {RUN_LABEL: "x-1"}}}
EXISTS = (409, '{"reason": "AlreadyExists", "message": "it exists"}')


@pytest.mark.parametrize("bad", [(503, ""), GONE])
def test_an_object_is_created_once_even_if_answers_are_lost(
    tmp_path: Path, pauses: list[float], bad: tuple[int, str] | None
) -> None:
    """The third try was received, and its answer was not."""
    with answering(tmp_path, [bad, bad, bad, EXISTS, (200, json.dumps(OURS))]) as (cluster, asked):
        assert submission._create(cluster, OURS) == OURS

    assert asked == ["POST"] * 4 + ["GET"]
    assert pauses == [0.5, 1.0, 2.0]


QUOTA = 'Operation cannot be fulfilled on resourcequotas "q": the object has been modified'


def test_a_quota_that_others_use_at_the_same_time_delays_a_run(tmp_path: Path, pauses: list[float]) -> None:
    """Whether it still has room is then not known: the API server asks to be asked again."""
    busy = (409, json.dumps({"reason": "Conflict", "message": QUOTA}))
    with answering(tmp_path, [busy, busy, (201, json.dumps(OURS))]) as (cluster, asked):
        assert submission._create(cluster, OURS) == OURS
    assert asked == ["POST"] * 3

    with answering(tmp_path, [busy, (200, FINE)]) as (cluster, asked):
        assert cluster.call("PATCH", "/x", {}) == {"a": 1}
    with answering(tmp_path, [busy]) as (cluster, asked), pytest.raises(ApiError, match="cannot be fulfilled"):
        cluster.call("DELETE", "/x", {"preconditions": {"uid": "another"}})


def test_a_train_job_waits_until_the_webhook_has_seen_its_runtime(tmp_path: Path, pauses: list[float]) -> None:
    why = (
        "admission webhook denied the request: spec.runtimeRef: Invalid value: "
        "specified trainingRuntime must be created before"
    )
    refused = (403, json.dumps({"reason": "Forbidden", "message": why}))
    job = {**OURS, "kind": "TrainJob"}
    with answering(tmp_path, [refused, (201, json.dumps(job))]) as (cluster, asked):
        assert submission._create(cluster, job) == job
    assert (asked, pauses) == (["POST"] * 2, [0.5])

    with (
        answering(tmp_path, [refused] * 4) as (cluster, asked),
        pytest.raises(ApiError, match="must be created before"),
    ):
        submission._create(cluster, job)
    assert asked == ["POST"] * 4


def test_another_runs_object_of_that_name_is_not_ours(tmp_path: Path, pauses: list[float]) -> None:
    theirs = {"kind": "ConfigMap", "metadata": {"name": "x-1", "labels": {RUN_LABEL: "x-2"}}}
    with (
        answering(tmp_path, [EXISTS, (200, json.dumps(theirs))]) as (cluster, _),
        pytest.raises(ApiError, match="it exists"),
    ):
        submission._create(cluster, OURS)

    assert pauses == []


def handle(kind: str, run: str) -> KubernetesHandle:
    """Of the objects x-1."""
    where = {"run_dir": "", "namespace": "", "context": "", "kubeconfig": "", "python": ""}
    return {**where, "run": run, "name": "x-1", "kind": kind, "nodes": 1, "min_nodes": 1}  # type: ignore[typeddict-item]


def test_looking_for_a_run_deletes_nothing_and_cancelling_it_deletes_what_has_no_owner(tmp_path: Path) -> None:
    """A launcher may have died when only the TrainingRuntime was there, or still run on a host with another clock."""
    missing = (404, "")
    with answering(tmp_path, [missing, missing, (200, "{}"), missing, missing]) as (cluster, asked):
        assert submission.find(cluster, handle("trainjob", "x-1")) is None
        assert asked == ["GET"]
        submission.remove(cluster, handle("trainjob", "x-1"))
        assert asked[1:] == ["GET", "DELETE"]
        submission.remove(cluster, handle("trainjob", "x-1"))  # it was removed already


def test_another_runs_objects_are_neither_found_nor_removed(tmp_path: Path) -> None:
    with answering(tmp_path, [(200, json.dumps(OURS))] * 2) as (cluster, asked):
        assert submission.find(cluster, handle("job", "x-2")) is None
        submission.remove(cluster, handle("job", "x-2"))

    assert asked == ["GET"] * 2


OWNED = {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "x-1", "labels": {RUN_LABEL: "x-1"}}}
CREATED = (201, json.dumps({**OURS, "metadata": {**OURS["metadata"], "uid": "7"}}))  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("answers", "unsure"), [([GONE] * 4, True), ([CREATED, *[GONE] * 4], False), ([(403, "no")], False)]
)
def test_objects_may_still_appear_only_if_the_creation_of_their_owner_was_not_answered(
    tmp_path: Path,
    pauses: list[float],
    monkeypatch: pytest.MonkeyPatch,
    answers: list[tuple[int, str] | None],
    unsure: bool,
) -> None:
    """Nothing that an owner owns is left once the owner is deleted."""
    for name in ("check", "ttl"):
        monkeypatch.setattr(submission, name, Mock())
    made = [{**OURS, "apiVersion": "v1"}, OWNED, {"kind": "Pod", "metadata": OWNED["metadata"]}]
    plan: Any = SimpleNamespace(objects=made, has_key=False, secrets=(), name="x-1")
    opts: Any = SimpleNamespace(queue="", kind="pods", gpus_per_node=0)
    begun = Mock()
    with answering(tmp_path, answers) as (cluster, _), pytest.raises(LaunchError) as raised:
        submission.send(cluster, opts, plan, begun)

    begun.assert_called_once()
    assert raised.value.in_part is unsure


def test_a_run_that_never_reached_the_api_server_has_ended(tmp_path: Path, distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")
    with socket.socket() as silent:  # it has the port, and does not listen
        silent.bind(("127.0.0.1", 0))

        config = kubeconfig(tmp_path, silent.getsockname()[1])
        done = distlaunch("k8s", "--image", "x", "--kubeconfig", str(config), "x.py")

    assert done.exit_code == 3, done.stderr
    assert "the API server cannot be reached" in done.stderr
    assert "may still be running" not in done.stderr
    assert distlaunch("status", "last", "--output", "json").json["result"]["state"] == "failed"


MALLOC = """
import contextlib, ctypes, sys
from launcher.backends.kubernetes import connecting
from launcher.system import listener

class Info(ctypes.Structure):
    _fields_ = [("before", 3 * ctypes.c_size_t), ("hblks", ctypes.c_size_t), ("after", 6 * ctypes.c_size_t)]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype, libc.malloc.restype = Info, ctypes.c_void_p
with listener.told_to(print) if sys.argv[2] == "program" else contextlib.nullcontext():
    connecting.connect(sys.argv[1], "", "")
before = libc.mallinfo2().hblks
blocks = [libc.malloc(ctypes.c_size_t(20_000)) for _ in range(50)]
print(libc.mallinfo2().hblks - before > 10)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="not the GNU C library 2.33 or later")
@pytest.mark.parametrize(("who", "mappings"), [("command", "True"), ("program", "False")])
def test_how_memory_is_allocated_is_changed_in_our_commands_only(tmp_path: Path, who: str, mappings: str) -> None:
    """Mappings return OpenSSL's buffers of a followed log, and would slow down a program that uses the Python API."""
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "current-context": "c",
    }
    (tmp_path / "config").write_text(json.dumps(config))
    argv = [sys.executable, "-c", MALLOC, str(tmp_path / "config"), who]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == [mappings], done.stderr
