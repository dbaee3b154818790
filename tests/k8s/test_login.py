"""The limit of login plugins, and what becomes of one that exceeds it."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from launcher.backends.kubernetes import login
from testbed.waiting import wait_until
from tests.command import ROOT

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
