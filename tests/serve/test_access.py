"""Who gets the pages: who has the token, by a name of this machine, and only to read."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.openmetrics import parser

from launcher.cli.commands import serve
from launcher.server import process
from launcher.service import observe
from tests.serve.conftest import Server, serving

if TYPE_CHECKING:
    from launcher.results.serve import Serving
    from tests.command import Cli

parse: Any = parser.text_string_to_metric_families


def test_nothing_is_shown_without_the_token(server: Server) -> None:
    for path in ("/", "/runs.json", "/runs/last", "/events", "/metrics", "/nowhere"):
        for token, headers in [(None, {}), ("wrong", {}), (None, {"Cookie": f"distlaunch-{server.port}=wrong"})]:
            answer = server.ask(path, token=token, **headers)
            assert answer.status == 401
            assert answer.text.startswith("open the URL that distlaunch serve has printed")
            assert "set-cookie" not in answer.headers
    assert server.ask("/?token=wrong").status == 200  # the bearer counts
    assert server.ask("/?token=wrong", token=None).status == 401
    assert server.ask("/?token=", token=None).status == 401


def test_the_url_is_exchanged_for_a_cookie_that_is_of_no_use_elsewhere(server: Server) -> None:
    answer = server.ask(f"//evil.example/x?token={server.token}", token=None)

    name, _, rest = answer.headers["set-cookie"].partition("=")
    value, *attributes = rest.split("; ")
    assert name == f"distlaunch-{server.port}"
    assert value != server.token
    assert {each.lower() for each in attributes} == {"httponly", "path=/", "samesite=strict"}
    assert 'url=/evil.example/x"' in answer.text
    assert server.token not in answer.text
    others = f"a=b; bad cookie; {name}={value}; x=1"
    assert server.ask("/runs.json", token=None, Cookie=others).status == 200


def test_another_sites_name_for_this_machine_is_refused(server: Server) -> None:
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example", "", "localhost.evil.example"):
        answer = server.ask("/", Host=host)
        assert (answer.status, "<html" in answer.text) == (421, False)
    for host in ("localhost", "127.0.0.1", f"localhost:{server.port}", "localhost:9999", "[::1]:8000"):
        assert server.ask("/runs.json", Host=host).status == 200


def test_pages_can_only_be_read(server: Server) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
        for token in ("", None):
            answer = server.ask("/", method, token=token, Origin="https://evil.example")
            assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
    for path in ("/", "/runs.json", "/metrics", "/events"):
        answer = server.ask(path, "HEAD")
        assert (answer.status, answer.text) == (200, "")


def test_every_answer_forbids_what_a_page_does_not_need(reporter: Cli) -> None:
    assert reporter("local", "work.py").exit_code == 0
    with serving(reporter) as server:
        (run,) = [each["run"] for each in server.json("/runs.json")["runs"]]
        for path in ("/", f"/runs/{run}", f"/runs/{run}.json", "/metrics", "/nowhere", "/runs/nowhere"):
            headers = server.ask(path, Origin="https://evil.example").headers
            policy = headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; ")
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert headers["cache-control"] == "no-store"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["x-content-type-options"] == "nosniff"
            assert not [name for name in headers if name.startswith("access-control")]
            assert "server" not in headers


def test_metrics_are_read_with_the_token_of_a_file_that_lasts_as_long_as_the_server(reporter: Cli) -> None:
    assert reporter("local", "--name", "measured", "work.py").exit_code == 0
    path = reporter.directory / "token"
    with serving(reporter, "--token-file", str(path)) as server:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        answer = server.ask("/metrics", token=path.read_text().strip())

        assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        families = {family.name: family for family in parse(answer.text)}
        (about,) = families["distlaunch_run_info"].samples
        assert about.labels["name"] == "measured"
        assert families["distlaunch_serve_viewers"].samples[0].value == 0
        assert server.end() == (0, server_notes(server))
    assert not path.exists()


def server_notes(server: Server) -> str:
    there = f"ssh -L {server.port}:127.0.0.1:{server.port} {socket.gethostname()}"
    return f"open this URL in a browser; from another machine, first: {there}\nCtrl-C ends it\n"


def test_it_listens_on_this_machine_only(server: Server) -> None:
    table = Path("/proc/net/tcp").read_text().splitlines()[1:]
    listening = {line.split()[1] for line in table if line.split()[3] == "0A"}
    port = f"{server.port:04X}"

    assert [address for address in listening if address.endswith(f":{port}")] == [f"0100007F:{port}"]


def test_the_command_for_ssh_has_an_address_with_colons_in_brackets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(observe, "directory", lambda _: tmp_path)
    found: Serving = {"url": "http://[::1]:8123/", "host": "::1", "port": 8123, "token_file": None}
    monkeypatch.setattr(process, "serve", lambda *_, ready, **__: ready(found))

    serve.serve()

    assert "ssh -L 8123:[::1]:8123 " in capfd.readouterr().err


def test_the_file_of_the_token_is_removed_from_another_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with process.background(tmp_path, port=0, token_file="token"):
        assert (tmp_path / "token").exists()
        monkeypatch.chdir("/")

    assert not (tmp_path / "token").exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org"])
def test_another_address_is_refused_with_the_way_out(distlaunch: Cli, host: str) -> None:
    done = distlaunch("serve", "--host", host, "--port", "8123")

    assert done.exit_code == 2
    assert done.stderr.startswith(f"error[bad_request]: --host {host}: pages are only served on this machine\n")
    assert f"ssh -L 8123:127.0.0.1:8123 {socket.gethostname()}" in done.stderr


@pytest.mark.parametrize("port", ["70000", "-1"])
def test_what_is_not_a_port_is_refused(distlaunch: Cli, port: str) -> None:
    done = distlaunch("serve", f"--port={port}")

    assert (done.exit_code, done.stderr.splitlines()[0]) == (2, f"error[bad_request]: {port} is not a port")


def test_it_can_listen_on_another_loopback_address(reporter: Cli) -> None:
    with serving(reporter, "--host", "127.0.0.2") as server:
        connection = socket.create_connection(("127.0.0.2", server.port), timeout=60)
        connection.close()
        assert server.url.startswith(f"http://127.0.0.2:{server.port}/?token=")


def test_two_servers_have_ports_and_tokens_of_their_own(reporter: Cli, server: Server) -> None:
    taken = reporter("serve", "--port", str(server.port))
    with serving(reporter) as other:
        assert other.port != server.port
        assert other.ask("/", token=server.token).status == 401
        assert (other.ask("/").status, server.ask("/").status) == (200, 200)

    assert taken.exit_code == 2
    assert taken.stderr == (
        f"error[bad_request]: cannot listen on port {server.port} of 127.0.0.1: Address already in use\n"
        "  hint: without --port, a free one is taken\n"
    )


def test_a_missing_library_is_named_with_its_extra(distlaunch: Cli) -> None:
    distlaunch.write("without/uvicorn.py", "raise ModuleNotFoundError(name='uvicorn')\n")
    lacks: dict[str, str | None] = {"PYTHONPATH": f"{distlaunch.directory}/without:{distlaunch.env()['PYTHONPATH']}"}

    done = distlaunch("serve", env=lacks, real=True)

    assert done.exit_code == 4
    assert done.stderr.startswith("error[command_failed]: serve needs uvicorn, which is not installed\n")
    assert "[serve]" in done.stderr


def test_a_token_that_cannot_be_written_is_one_error(distlaunch: Cli) -> None:
    done = distlaunch("serve", "--token-file", "none/token")

    assert (done.exit_code, os.listdir(distlaunch.directory)) == (4, [])
    named = str(distlaunch.directory / "none/token")
    assert done.stderr == f"error[storage]: cannot write {named!r}: No such file or directory\n"
