"""The limit of login plugins, and what becomes of one that exceeds it."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import yaml

from launcher.backends.kubernetes import api, connecting, login
from launcher.backends.kubernetes.api import UnreachableError
from testbed.waiting import wait_until
from tests.command import ROOT
from tests.k8s.test_api import kubeconfig

if TYPE_CHECKING:
    from pathlib import Path


def test_a_plugin_that_does_not_end_is_ended_after_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"

    class Call(login._Call):
        def join(self, timeout: float | None = None) -> None:
            """The limit counts from when the plugin can be told to end."""
            wait_until("the plugin to have begun", begun.exists)
            super().join(timeout)

    for name, value in (("LIMIT_S", 0.5), ("ASKED_LIMIT_S", 0.5), ("_TELL_S", 0.1), ("_Call", Call)):
        monkeypatch.setattr(login, name, value)
    plugin = f"trap 'touch {ended}; exit' TERM; touch {begun}; while :; do sleep 0.05; done"

    with pytest.raises(login.LoginError, match="it did not end within"):
        login.run(lambda: subprocess.run(["sh", "-c", plugin], check=False))

    wait_until("the plugin's end", ended.exists)
    assert login.run(lambda: 5) == 5, "the next one has its turn"


ENDS = """
import json, pathlib
runs = pathlib.Path(__file__).with_name("runs")
with runs.open("a") as file:
    file.write("x")
if len(runs.read_text()) > 1:
    raise SystemExit("the session has ended")
status = {"token": "t", "expirationTimestamp": "2020-01-01T00:00:00Z"}
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}))
"""


def test_a_plugin_that_fails_when_a_login_ends_is_run_once_and_left_alone_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower with hundreds of logs would run it without a pause."""
    (tmp_path / "ends.py").write_text(ENDS)
    how = {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable, "interactiveMode": "Never"}
    user = {"exec": {**how, "args": [str(tmp_path / "ends.py")]}}
    config = yaml.safe_load(kubeconfig(tmp_path, 1).read_text())
    (tmp_path / "config").write_text(yaml.dump({**config, "users": [{"name": "u", "user": user}]}))
    cluster = connecting.connect(str(tmp_path / "config"), "", "")

    for _ in range(3):
        with pytest.raises(UnreachableError) as raised:
            cluster.call("GET", "/x")
    told = api.explained(raised.value, cluster, "to watch the run")
    assert len((tmp_path / "runs").read_text()) == 2, "the first time, it succeeded"
    monkeypatch.setattr(login, "time", SimpleNamespace(monotonic=lambda: float("inf")))  # theirs alone
    with pytest.raises(UnreachableError):
        cluster.call("GET", "/x")

    assert len((tmp_path / "runs").read_text()) == 3
    assert "login plugin of the cluster failed: process returned 1. the session has ended" in told.message
    assert told.hint == "log in to the cluster again"


def test_errors_that_the_library_only_logs_are_raised_and_raised_ones_are_unchanged() -> None:
    def logs() -> None:
        logging.getLogger().error("exec: you are\nnot logged in")

    def fails() -> None:
        raise ValueError("no such file")

    with pytest.raises(login.LoginError, match=r"^you are not logged in$"):
        login.run(logs)
    with pytest.raises(ValueError, match="no such file"):
        login.run(fails)


def test_what_another_part_of_the_program_logs_is_no_error_of_a_plugin() -> None:
    def work() -> int:
        other = threading.Thread(target=lambda: logging.getLogger("app").error("a request has failed"))
        other.start()
        other.join()
        return 5

    assert login.run(work) == 5


def test_the_client_library_is_whole_for_a_program_that_imports_it_after_us() -> None:
    """We import parts of it; what an OIDC login needs is imported when it is used."""
    code = (
        "import sys; from launcher.backends.kubernetes import library; found = library.load().kube_config; "
        "assert not {'pydantic', 'requests_oauthlib', 'oauthlib'} & sys.modules.keys(); "
        "assert found.OAuth2Session(client_id='x').client_id == 'x'; "
        "assert issubclass(found.oauthlib.oauth2.rfc6749.errors.InvalidClientIdError, Exception); "
        "from kubernetes import client, config, utils; "
        "print(client.CoreV1Api.__name__, client.ApiClient.__name__, utils.create_from_yaml.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (["CoreV1Api", "ApiClient", "create_from_yaml"], "")
