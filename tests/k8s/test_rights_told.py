"""Missing rights, for a program that uses the API: it gets the error, and the Role as a message."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher.backends.kubernetes import rights
from launcher.backends.kubernetes.options import KubernetesOptions
from launcher.errors import BackendUnavailableError
from launcher.system import listener

if TYPE_CHECKING:
    from launcher.system.listener import Kind


def test_a_program_gets_the_role_as_a_message_and_nothing_is_printed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def nothing(_cluster: object, about: str, _spec: object) -> dict[str, Any]:
        return {"resourceRules": []} if about == "rules" else {"allowed": False}

    heard: list[tuple[Kind, str]] = []
    monkeypatch.setattr(rights, "_ask", nothing)
    monkeypatch.setattr(rights, "_who", lambda _cluster: "somebody")
    cluster: Any = SimpleNamespace(namespace="lab")
    with (
        listener.told_to(lambda *message: heard.append(message)),
        pytest.raises(BackendUnavailableError, match="somebody may not create jobs") as caught,
    ):
        rights.check(cluster, KubernetesOptions(), [{"apiVersion": "batch/v1", "kind": "Job"}])

    ((kind, text),) = heard
    assert (kind, "kind: Role" in text) == ("warning", True)
    assert "the Role that `distlaunch k8s --print-role --kind job --namespace lab` prints" in str(caught.value.hint)
    assert capfd.readouterr() == ("", "")
