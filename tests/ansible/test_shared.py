"""The socket of a shared connection: to ssh, its maker is the host, so one that others may have made is never used."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from launcher.backends.ansible import ssh
from launcher.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.ssh, pytest.mark.skipif(not shutil.which("ssh"), reason="needs ssh")]

SHARING = ("-F", "none", "-o", "ControlMaster=auto", "-o", "ControlPersist=60s", "-o", "ConnectTimeout=5")
NO_SERVER = ("-p", "1", "127.0.0.1")


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's."""
    with tempfile.TemporaryDirectory(prefix="dl-") as directory:
        yield Path(directory)


def node(*words: str) -> Any:
    """A node whose ssh is real, and at whose port nothing listens."""
    return {
        "host": "h",
        "rank": 0,
        "python": "python3",
        "agent_path": "/x/a",
        "ssh": ["ssh", *SHARING, *words, *NO_SERVER],
    }


class Stranger:
    """Listens on the socket of a connection to a host."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        self._socket.setblocking(False)

    def close(self) -> None:
        """Listen no more."""
        self._socket.close()

    def was_asked(self) -> bool:
        """Whether a client has connected; it is sent away."""
        try:
            self._socket.accept()[0].close()
        except BlockingIOError:
            return False
        return True


def ask(*words: str) -> str:
    """Why a call by a real ssh had no answer."""
    with pytest.raises(CommandError) as caught:
        ssh.call(node(*words), "signal", "/x", "0", "15")
    return caught.value.message


def argv_asks(stranger: Stranger, *words: str) -> bool:
    """Whether ssh, as it would follow a stream, goes to that socket."""
    command = ssh.argv(node(*words), "tail")
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        while process.poll() is None:
            if stranger.was_asked():
                process.kill()
                return True
    return stranger.was_asked()


@pytest.mark.parametrize("form", ["-o ControlPath={}", "-oControlPath={}", "-o controlpath={}", "-S {}", "-S{}"])
def test_a_socket_that_others_may_have_made_is_not_used(short: Path, form: str) -> None:
    directory = short / "c"
    directory.mkdir(0o700)
    words = form.format(directory / "s").split()
    with closing(Stranger(directory / "s")) as stranger:
        assert argv_asks(stranger, *words), "a socket of our own is used"

        directory.chmod(0o777)
        assert not argv_asks(stranger, *words)
        if os.geteuid() == 0:
            directory.chmod(0o700)
            os.chown(directory, 54321, 54321)
            assert not argv_asks(stranger, *words)
            assert "refused" in ask(*words), "the host itself has answered"


def test_paths_with_tokens_and_variables_are_kept_except_in_directories_that_all_users_can_write_to(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(short))
    monkeypatch.setenv("PLACE", str(short))
    (short / "open").mkdir()
    (short / "open").chmod(0o1777)

    def kept(path: str) -> bool:
        options = ssh.own_words(node("-o", f"ControlPath={path}"))
        assert ("ControlPath=none" in options) is (f"ControlPath={path}" not in options)
        return "ControlPath=none" not in options

    assert all(map(kept, ("~/.ssh/cm-%C", "%d/cm/%r@%h", "${PLACE}/cm-%C")))
    assert not any(map(kept, ("/tmp/cm-%C", "/tmp/%r/s", f"{short}/open/s", "${PLACE}/open/%C", '"~/open/s"')))


def test_a_directory_that_a_reboot_has_removed_is_made_anew_for_us_alone(short: Path) -> None:
    directory = short / "gone" / "too"

    said = ask("-o", f"ControlPath={directory}/s")

    assert "refused" in said, said
    assert [path.stat().st_mode & 0o777 for path in (directory, directory.parent)] == [0o700, 0o700]
