"""One connection to a host, without a host: a program in place of ssh, which prints what servers and logins print."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.protocol import encode_event
from launcher.agent.ssh import run
from launcher.agent.ssh.user_files import HostError
from launcher.agent.system import processes
from launcher.agent.system import trust as rule
from launcher.payload import agent_archive
from launcher.system import install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DIRECTORY = install.data("playbooks") / "roles/distlaunch/plugin_utils"
ANSWER = r"""printf '\ndistlaunch-host-1 {"said": "yes"}\n' """
LISTENS = "read request"


def loaded(name: str) -> Any:
    """A module, as Ansible's plugin loads it."""
    spec = importlib.util.spec_from_file_location(name, _DIRECTORY / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def plugin() -> Any:
    return loaded("distlaunch_session")


@pytest.fixture(scope="module")
def command() -> Any:
    return loaded("distlaunch_ssh")


@pytest.fixture
def session(plugin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """A session whose ssh is this shell program; `tried` has a line for each connection. Its pauses take no time."""
    pauses: list[float] = []
    monkeypatch.setattr(plugin, "time", SimpleNamespace(monotonic=plugin.time.monotonic, sleep=pauses.append))
    made = []

    def make(program: str) -> Any:
        ssh = tmp_path / "ssh"
        ssh.write_text(f"#!/bin/sh\necho x >> {tmp_path}/tried\n{program}\n")
        ssh.chmod(0o700)
        made.append(plugin.Session([str(ssh), "host"], "/opt/a python", "pass"))
        return made[-1]

    yield make
    for each in made:
        each.close()


def tried(directory: Path) -> int:
    """How many connections there were."""
    return len((directory / "tried").read_text().split())


BUSY = "kex_exchange_identification: Connection closed by remote host"


def test_a_server_with_too_many_connections_is_asked_again_but_not_forever(session: Any, tmp_path: Path) -> None:
    shut = f"[ $(wc -l < {tmp_path}/tried) -ge %d ] || {{ echo '{BUSY}' >&2; exit 255; }}\n{LISTENS}\n{ANSWER}"

    assert session(shut % 4).ask({}, limit_s=60) == {"said": "yes"}
    assert tried(tmp_path) == 4
    (tmp_path / "tried").unlink()
    given_up = session(shut % 5).ask({}, limit_s=60)
    assert (given_up["problem"], given_up["unreachable"]) == (BUSY, True)
    assert tried(tmp_path) == 4


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            "echo 'ssh: connect to host h port 22: No route to host' >&2; exit 255",
            "ssh: connect to host h port 22: No route to host",
        ),
        ("exit 255", "ssh ended with code 255"),
        ("exit 127", "there is no /opt/a python (looked for along the PATH of a login without a terminal)"),
        (
            f"{LISTENS}; echo 'first' >&2; echo 'MemoryError' >&2; exit 1",
            "/opt/a python ended with code 1: MemoryError",
        ),
        (
            f"{LISTENS}; echo 'This account is disabled.'; exit 1",
            "/opt/a python ended with code 1: This account is disabled.",
        ),
        (f"{LISTENS}; exit 1", "/opt/a python ended with code 1: it said nothing"),
    ],
)
def test_why_there_is_no_answer_is_reported_after_one_try(
    session: Any, tmp_path: Path, program: str, words: str
) -> None:
    assert session(program).ask({"call": "preflight"}, limit_s=60)["problem"] == words
    assert tried(tmp_path) == 1


@pytest.mark.parametrize(
    "program", ["exec cat 3>&1 >/dev/null", "exec cat >/dev/null"], ids=["silent", "stdout closed"]
)
def test_a_host_that_sends_nothing_is_given_up_at_the_limit_and_not_asked_again(
    plugin: Any, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """Hours pass at once when it has been asked."""
    asked = tmp_path / "tried"
    monkeypatch.setattr(plugin, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 10_000 * asked.exists()))
    hanging = session(program)

    for _ in range(2):
        assert hanging.ask({}, limit_s=1000) == {"problem": "no answer within the time limit", "late": True}

    assert tried(tmp_path) == 1


def test_how_much_of_a_large_payload_was_sent_is_reported(
    plugin: Any, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "_SENT_EVERY_S", 0.0)
    told: list[tuple[int, int]] = []
    connection = session(f"{LISTENS}; head -c 3000000 > /dev/null; {ANSWER}")
    connection.on_sent = lambda sent, size: told.append((sent, size))

    assert connection.ask({}, b"x" * 3_000_000, limit_s=60) == {"said": "yes"}

    assert len(told) > 3
    assert told == sorted(told)
    assert told[-1] == (3_000_000, 3_000_000)


def test_what_a_login_prints_is_not_an_answer_and_requests_may_be_followed_by_bytes(
    session: Any, tmp_path: Path
) -> None:
    payload = b"\0\xff\n" * 100_000
    (tmp_path / "payload").write_bytes(payload)
    program = f"""echo WELCOME; printf 'no newline'
{LISTENS}; echo "$request" > {tmp_path}/first; {ANSWER}; echo noise
exec {sys.executable} -c 'if True:
    import json, sys
    request = json.loads(sys.stdin.buffer.readline())
    data = sys.stdin.buffer.read(request["bytes"])
    said = [request["call"], len(data), data[:3] == bytes([0, 255, 10])]
    print("\\ndistlaunch-host-1 " + json.dumps({{"said": said}}), flush=True)
    sys.stdin.buffer.read()'"""
    connection = session(program)

    assert connection.ask({"call": "look"}, limit_s=60) == {"said": "yes"}
    assert (tmp_path / "first").read_text() == '{"call": "look"}\n'
    assert connection.ask({"call": "files"}, str(tmp_path / "payload"), limit_s=60) == {
        "said": ["files", len(payload), True]
    }
    assert tried(tmp_path) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "words"),
    [
        (f"{LISTENS}; exec yes", "it has printed more than 16 MB that are no answer"),
        (f"{LISTENS}; exec {sys.executable} -c 'import os\nwhile True: os.write(2, bytes(65536))'", "16 MB on stderr"),
        (f"{LISTENS}; printf '\\ndistlaunch-host-1 [1]\\n'; read more", "its answer is not an agent's: b'[1]'"),
        (f"{LISTENS}; printf '\\ndistlaunch-host-1 {{\\n'; read more", "its answer is not an agent's: b'{'"),
    ],
)
def test_a_hosts_answer_is_limited_and_validated(session: Any, program: str, words: str) -> None:
    connection = session(program)

    assert words in connection.ask({"call": "preflight"}, limit_s=60)["problem"]
    assert words in connection.ask({"call": "runs"}, limit_s=60)["problem"], "it is not asked again"


def test_files_in_sshs_options_are_looked_for_where_ansible_is_run_and_beside_the_inventory(
    command: Any, tmp_path: Path
) -> None:
    here, beside = tmp_path / "here", tmp_path / "beside"
    for path in (here / "id", here / "config", here / "both", beside / "both", beside / "known"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    words = [
        "ssh",
        "-i",
        "id",
        "-F",
        "config",
        "-iboth",
        "-o",
        "UserKnownHostsFile=known other",
        "-oIdentityFile known",
    ]
    words += ["-o", "CertificateFile = /abs", "-i", "~/id", "-o", "User=id", "-C", "id"]

    assert command._whole_paths(words, [str(here), str(beside)]) == [
        *(
            "ssh",
            "-i",
            f"{here}/id",
            "-F",
            f"{here}/config",
            f"-i{here}/both",
            "-o",
            f"UserKnownHostsFile={beside}/known other",
        ),
        *(f"-oIdentityFile {beside}/known", "-o", "CertificateFile = /abs", "-i", "~/id", "-o", "User=id", "-C", "id"),
    ]


def test_a_socket_of_a_shared_connection_is_in_a_directory_that_no_other_user_can_write_to(
    command: Any, tmp_path: Path
) -> None:
    """Also if the user names it; ssh accepts each of these forms."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)

    def words(*more: str) -> list[str]:
        return list(
            command._shared(
                ["ssh", *more, "h"], str(tmp_path / "own"), lambda path: rule.problem(path, searched=True), rule.make
            )
        )

    for mine in (
        (),
        ("-S", "none"),
        ("-o", "ControlPath=none"),
        ("-o", f"controlpath={tmp_path}/%C"),
        ("-S", f"{tmp_path}/s"),
    ):
        assert words(*mine) == ["ssh", *mine, "h"]
    assert words("-o", "ControlPersist=60s")[4].startswith(f"ControlPath={tmp_path}/own/")
    place = f"{tmp_path}/open/%C"
    for theirs in (
        f"-oControlPath={place}",
        f"-o controlpath {place}",
        f"-S {place}",
        f"-S{place}",
        "-o ControlPath=/tmp/%r/s",
    ):
        flag, _, value = theirs.partition(" ")
        with pytest.raises(command.RefusedError, match=r"ControlPath=~/\.ssh/cm-%C"):
            words(*filter(None, (flag, value)))


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7", "3.8"])
def test_a_python_that_is_too_old_reports_it_and_reads_no_further(version: str) -> None:
    """A real one: the rest of the program would not be valid in it."""
    places = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    if not places:
        pytest.skip(f"there is no Python {version} here")
    program = loaded("distlaunch_archive").Archive(agent_archive.packed()).boot()

    done = subprocess.run(
        [places[-1], "-u", "-c", f"import sys;{program}", "distlaunch-host-1 "],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    first, answer = done.stdout.splitlines()
    assert first == "", "a banner may have no line end"
    said = json.loads(answer.removeprefix("distlaunch-host-1 "))
    assert said == {"problem": f"{places[-1]} is Python {version}, and 3.9 or newer is needed"}


def test_the_program_for_a_host_that_lacks_the_agent_is_one_short_line() -> None:
    """Shells of all kinds read it; some take no line end in quotes."""
    program = loaded("distlaunch_archive").Archive(agent_archive.packed()).boot()

    assert len(program) < 4096
    assert not {"\n", '"', "$", "`", "!", "\\"} & set(program)


def test_the_signal_that_kills_node_0_before_it_opens_its_port_is_reported(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as agent:
        identity = {"pid": agent.pid, "start_ticks": processes.start_ticks(agent.pid), "stream_from": 0}
        (tmp_path / "stream").write_bytes(encode_event("agent_started", 0))
        agent.kill()

        with pytest.raises(HostError, match="the agent of node 0 has ended: killed by SIGKILL; see "):
            run._told(str(tmp_path / "rendezvous.json"), str(tmp_path), identity)
