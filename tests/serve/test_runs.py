"""Whatever runs are like, the others are shown, and browsers that come and go leave nothing behind."""

from __future__ import annotations

import json
import shutil
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from testbed import wait_until
from tests.reports.conftest import content
from tests.serve.conftest import serving

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Cli
    from tests.serve.conftest import Server

MOST = 64
NOWHERE = "http://127.0.0.1:9"


def stream(server: Server, path: str = "/events") -> socket.socket:
    """A connection on which events have begun to arrive."""
    found = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n\r\n"
    found.sendall(head.encode())
    data = b""
    while b"event: parts" not in data and b"HTTP/1.1 503" not in data:
        data += (more := found.recv(65536))
        assert more, data
    return found


def test_a_run_as_json_is_the_report(reporter: Cli, server: Server) -> None:
    assert server.json("/runs.json") == {"runs": []}
    assert reporter("local", "--nodes", "2", "--name", "told", "work.py").exit_code == 0
    (run,) = reporter.runs.iterdir()

    found = server.json(f"/runs/{run.name}.json")

    wanted = content(reporter, "last")
    assert {**found, "made": 0} == {**wanted, "made": 0}
    assert server.ask("/runs/last").headers["location"] == f"/runs/{run.name}"
    assert server.ask("/runs/told.json").headers["location"] == f"/runs/{run.name}.json"
    assert f"<title>{wanted['verdict']}: {run.name}</title>" in server.ask(f"/runs/{run.name}").text


def test_a_damaged_run_and_one_that_is_gone_are_told_and_the_others_shown(reporter: Cli, server: Server) -> None:
    for name in ("sound", "broken", "gone"):
        assert reporter("local", "--name", name, "work.py").exit_code == 0
    runs = {path.name.partition("-")[0]: path for path in reporter.runs.iterdir()}
    (runs["broken"] / "run.json").write_text("{")
    assert server.ask(f"/runs/{runs['gone'].name}").status == 200
    shutil.rmtree(runs["gone"])

    states = {each["run"]: each["state"] for each in server.json("/runs.json")["runs"]}
    broken = server.ask(f"/runs/{runs['broken'].name}")
    nowhere = server.ask("/runs/nowhere.json")

    assert states == {runs["sound"].name: "success", runs["broken"].name: "unknown"}
    assert server.ask(f"/runs/{runs['sound'].name}").status == 200
    assert broken.status == 500
    assert f"{runs['broken'].name} cannot be read as a run" in broken.text
    assert nowhere.status == 404
    assert json.loads(nowhere.text)["error"]["code"] == "run_not_found"
    assert server.ask(f"/events/{runs['gone'].name}x").status == 404
    code, stderr = server.end()
    assert (code, "Traceback" in stderr) == (0, False)


def test_a_run_that_disappears_while_it_is_looked_at_is_told(reporter: Cli, server: Server) -> None:
    assert reporter("local", "--detach", "work.py", "wait").exit_code == 0
    (run,) = reporter.runs.iterdir()
    with stream(server, f"/events/{run.name}") as events:
        reporter("cancel", "--force", run.name)
        shutil.rmtree(run)

        data = b""
        while more := events.recv(65536):
            data += more
            if b"event: end" in data:
                break

    assert b"event: end" in data


def test_browsers_that_vanish_leave_no_file_and_no_viewer(server: Server) -> None:
    server.ask("/")
    before = server.files()
    for _ in range(3):
        found = [stream(server) for _ in range(10)]
        assert server.metric("serve_viewers") == 10
        for each in found[:5]:
            each.close()
        for each in found[5:]:  # as of a machine that is switched off
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            each.close()
        wait_until("no viewer is left", lambda: server.metric("serve_viewers") == 0, limit_s=60)

    wait_until("all sockets are closed", lambda: server.files() <= before, limit_s=60)


def test_too_many_pages_are_refused_and_metrics_are_not(server: Server) -> None:
    found = [stream(server) for _ in range(MOST)]
    try:
        answer = server.ask("/events")
        assert (answer.status, answer.text) == (503, "too many pages are open: close some\n")
        assert server.metric("serve_viewers") == MOST
        found.pop().close()
        wait_until("one is left", lambda: server.metric("serve_viewers") == MOST - 1, limit_s=60)
        found.append(stream(server))
    finally:
        for each in found:
            each.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_in_order_while_pages_are_open(reporter: Cli, number: signal.Signals) -> None:
    proxies: dict[str, str | None] = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "all_proxy"), NOWHERE)
    with serving(reporter, env=proxies) as server, stream(server) as events:
        code, stderr = server.end(number)

        assert (code, stderr.count("\n")) == (0, 2)
        while more := events.recv(65536):
            assert b"Traceback" not in more


def test_a_full_disk_does_not_end_it(small_disk: Path, reporter: Cli) -> None:
    runs = small_disk / "runs"
    env: dict[str, str | None] = {"DISTLAUNCH_RUNS_DIR": str(runs)}
    assert reporter("local", "work.py", env=env).exit_code == 0
    (run,) = runs.iterdir()
    with (small_disk / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 65536):
                pass
        except OSError:
            pass
    with serving(reporter, env=env) as server:
        assert server.ask(f"/runs/{run.name}").status == 200
        assert [each["state"] for each in server.json("/runs.json")["runs"]] == ["success"]
    assert reporter("serve", "--token-file", str(small_disk / "token"), env=env).stderr == (
        f"error[storage]: cannot write '{small_disk}/token': No space left on device\n"
    )
