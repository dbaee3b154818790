"""Missing rights, for a program that uses the API: it gets the error, and the Role as a message."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher import output
from launcher.backends.kubernetes import rights
from launcher.backends.kubernetes.options import KubernetesOptions
from launcher.backends.local.backend import LocalBackend
from launcher.backends.local.options import LocalOptions
from launcher.errors import BackendUnavailableError
from launcher.service.rival import News, Rival, say
from launcher.system import listener
from tests.runs.test_runs import make

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from launcher.runs.records import Run
    from launcher.system.listener import Kind


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Ask a cluster that grants nothing for the right to create a job."""

    def nothing(_cluster: object, about: str, _spec: object) -> dict[str, Any]:
        return {"resourceRules": []} if about == "rules" else {"allowed": False}

    monkeypatch.setattr(rights, "_ask", nothing)
    monkeypatch.setattr(rights, "_who", lambda _cluster: "somebody")
    cluster: Any = SimpleNamespace(namespace="lab")
    return lambda: rights.check(cluster, KubernetesOptions(), [{"apiVersion": "batch/v1", "kind": "Job"}])


def test_a_program_gets_the_role_as_a_message_and_nothing_is_printed(
    check: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    heard: list[tuple[Kind, str]] = []
    with (
        listener.told_to(lambda *message: heard.append(message)),
        pytest.raises(BackendUnavailableError, match="somebody may not create jobs") as caught,
    ):
        check()

    ((kind, text),) = heard
    assert (kind, "kind: Role" in text) == ("warning", True)
    assert "the Role that `distlaunch k8s --print-role --kind job --namespace lab` prints" in str(caught.value.hint)
    assert capfd.readouterr() == ("", "")


def test_on_one_of_several_clusters_the_role_keeps_its_lines_and_foreign_text_gets_none(
    check: Callable[[], None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = make(tmp_path, "train-20250101-000000-abcd", result=None)
    news: queue.Queue[News] = queue.Queue()

    def send() -> Run:
        output.note("the first line", "from the server: one\nkind: Forged")
        check()
        return run

    rival = Rival(run, LocalBackend(LocalOptions()), "cloud", news)
    rival.begin(send)
    rival.leave()
    *told, ended = [news.get(timeout=60) for _ in range(news.qsize())]
    for each in told:
        say(each.what, each.text, *each.more)

    lines = capfd.readouterr().err.splitlines()
    assert ended.text.startswith("somebody may not create jobs")
    assert lines[0] == "cloud: the first line"
    assert lines[1].startswith("from the server: one")
    assert {"kind: Role", "rules:"} <= {*lines}
    assert "kind: Forged" not in lines
    assert "kubectl create rolebinding distlaunch" in lines[-1]
