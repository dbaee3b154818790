"""The program that a login runs, here without a host: what it trusts, what it checks anew, and for which Pythons."""

from __future__ import annotations

import binascii
import json
import os
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent import bytecode
from launcher.agent.ssh import boot
from launcher.agent.ssh.calls import ANSWER
from launcher.agent.system import trust as rule
from launcher.payload import agent_archive
from tests.ansible.test_session import loaded
from tests.config.owners import as_root
from tests.packed import with_damaged_seldom_modules

if TYPE_CHECKING:
    from pathlib import Path

STRANGER = 54321
SEARCHED = "# zipimport: found"
"""What `python -v` says when the directory of an archive is read."""


class Login:
    """One login after the other on this host."""

    def __init__(self, base: Path) -> None:
        self.archive = loaded("distlaunch_archive").Archive(agent_archive.packed())
        self.base = base
        self.installed = base / "agents" / f"{self.archive.name}.pyz"

    def __call__(self, *options: str, **other: Any) -> tuple[list[dict[str, Any]], str]:
        """The answers to a preflight, and stderr. The agent is sent, in case that it is missing."""
        request = {
            "call": "preflight", "dir": str(self.base), "run": "", "agent": self.archive.name, "trusted": [],
            "rule": self.archive.rule_text(), "whole_ns": rule.WHOLE_NS, "program": self.archive.program(),
            "bytecode": self.archive.places(), **other,
        }  # fmt: skip
        about, sent = self.archive.compressed()
        announced = json.dumps({**about, "bytes": len(sent)}) + "\n"
        lines = (json.dumps(request) + "\n").encode(), announced.encode(), sent
        done = subprocess.run(
            [sys.executable, *options, "-c", self.archive.boot(), ANSWER],
            input=b"".join(lines if not self._has_it() else lines[:1]), capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        said = done.stdout.decode().splitlines()
        answers = [json.loads(line.removeprefix(ANSWER)) for line in said if line.startswith(ANSWER)]
        return answers, done.stderr.decode()

    def is_marked(self) -> bool:
        """Whether the installed agent need not be read."""
        return self.installed.stat().st_mtime_ns % 10**9 == rule.WHOLE_NS

    def _has_it(self) -> bool:
        return self.installed.is_file() and self.installed.read_bytes() == self.archive.content


@pytest.fixture
def login(tmp_path: Path) -> Login:
    return Login(tmp_path / "distlaunch")


def test_an_agent_is_read_whole_when_it_is_installed_and_once_it_was_changed(login: Login) -> None:
    first, said = login("-X", "importtime")
    assert [answer.get("lacks") for answer in first] == ["agent", None]
    assert first[-1]["python"] == sys.executable
    assert not {"hashlib", "shutil"} & _imported(said), "it was checked when it was packed"
    assert login.is_marked()
    assert abs(time.time() - login.installed.stat().st_mtime) < 60, "it is no old file, which a site may remove"

    rule_is_used = login.archive.login.packed(b"raise SystemExit('the rule is used')")
    again, said = login("-X", "importtime", rule=rule_is_used)
    assert [answer.get("lacks") for answer in again] == [None]
    imported = _imported(said)
    assert "distlaunch_agent.ssh.preflight" in imported
    assert not {"hashlib", "zipfile", "dataclasses", "inspect"} & imported
    assert SEARCHED not in login("-v")[1]

    with login.installed.open("r+b") as file:
        file.seek(1000)
        file.write(b"another's")
    changed, _ = login()
    assert [answer.get("lacks") for answer in changed] == ["agent", None]
    assert "does not match its name" in changed[-1]["replaced"]
    assert login.installed.read_bytes() == login.archive.content

    os.utime(login.installed)
    assert "the rule is used" in login(rule=rule_is_used)[1]
    touched, said = login("-X", "importtime")
    assert [answer.get("lacks") for answer in touched] == [None], "it is whole"
    assert "hashlib" in said, "which was checked"


def test_a_remote_directory_may_begin_with_two_slashes(login: Login) -> None:
    usual, _ = login()

    answers, said = login(dir=f"/{login.base}")

    assert answers, said
    assert answers[-1]["mounts"] == usual[-1]["mounts"]


def _imported(said: str) -> set[str]:
    """The modules in what `python -X importtime` says."""
    return {line.rpartition("|")[2].strip() for line in said.splitlines()}


def test_a_login_imports_nothing_that_is_compressed(login: Login) -> None:
    login.archive = loaded("distlaunch_archive").Archive(with_damaged_seldom_modules(agent_archive.packed()))
    login.installed = login.base / "agents" / f"{login.archive.name}.pyz"

    answers, said = login()

    assert answers[-1]["python"] == sys.executable, said


def test_many_hosts_that_lack_the_agent_wait_for_one_thread_that_packs_it(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    compress, packed = zlib.compress, []

    def slowly(*args: Any) -> bytes:
        packed.append(args)
        time.sleep(0.2)
        return compress(*args)

    monkeypatch.setattr(zlib, "compress", slowly)
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(lambda _: login.archive.compressed(), range(8))]

    assert len(packed) == 1
    assert all(each == found[0] for each in found)
    assert zlib.decompress(found[0][1]) == login.archive.content


def test_a_directory_in_place_of_an_agent_is_replaced(login: Login) -> None:
    login.installed.mkdir(parents=True, mode=0o700)
    (login.installed / "something").touch()

    answers, said = login()

    assert answers[-1]["python"] == sys.executable, said
    assert login.installed.read_bytes() == login.archive.content
    assert [path.name for path in login.installed.parent.iterdir()] == [login.installed.name]


def test_an_agent_that_arrives_damaged_is_not_marked_as_whole(login: Login) -> None:
    about, _ = login.archive.compressed()
    login.archive.compressed = lambda: (about, zlib.compress(b"something else"))

    answers, _ = login()

    assert "does not match its name" in answers[-1]["problem"]
    assert not login.is_marked()


@pytest.mark.parametrize("name", ["bytecode", "ssh.calls", "system.facts"])
def test_a_disk_error_in_what_is_executed_leads_to_a_new_agent(login: Login, name: str) -> None:
    """It changes no time, so the mark stays."""
    login()
    marked = login.installed.stat()
    size, start = login.archive.places()["all"]
    *_, code = bytecode._unpack(login.archive.content[start : start + size])[f"distlaunch_agent.{name}"]
    with login.installed.open("r+b") as file:
        file.seek(login.archive.content.index(bytes(code), start))
        file.write(bytes(len(code)))
    os.utime(login.installed, ns=(marked.st_atime_ns, marked.st_mtime_ns))
    assert login.is_marked()

    if name == "system.facts":  # it is imported after the first answer could have been given
        answers, said = login()
        assert not answers
        assert "marshal" in said
    answers, _ = login()

    assert [answer.get("lacks") for answer in answers] == ["agent", None]
    assert "does not match its name" in answers[-1]["replaced"]
    assert login.installed.read_bytes() == login.archive.content


def test_a_disk_that_cannot_be_waited_for_is_no_obstacle(login: Login) -> None:
    """Some file systems refuse fsync: the agent is installed, and read each time."""
    text = zlib.decompress(binascii.a2b_base64(login.archive.program()["text"]))
    refuses = b"""import errno, os
def refuse(_, left=[1]):  # the probe of the disk also waits for it
    if left:
        raise OSError(errno.EINVAL, left.pop())
os.fsync = refuse
"""
    program = {"magic": "", "code": "", "text": login.archive.login.packed(text.replace(b"import errno", refuses, 1))}

    answers, _ = login(program=program)

    assert answers[-1]["python"] == sys.executable
    assert login.installed.read_bytes() == login.archive.content
    assert not login.is_marked()


def test_whom_the_user_trusts_cannot_mark_an_agent(tmp_path: Path) -> None:
    """They may write there, so the agent's name must be its digest."""
    path = tmp_path / "0123.pyz"
    path.write_text("another's")
    now = int(time.time()) * 10**9
    os.utime(path, ns=(now, now + rule.WHOLE_NS))

    assert rule.agent_problem(str(path)) is None, "only this user has been able to"
    found = rule.agent_problem(str(path), (str(tmp_path),))
    assert found is not None
    assert "does not match its name" in found.message


def test_a_python_with_another_bytecode_runs_the_texts(login: Login) -> None:
    other = "00000000"
    first, _ = login(program={**login.archive.program(), "magic": other, "code": ""})
    assert first[-1]["python"] == sys.executable

    again, said = login("-v", bytecode={"magic": other})
    assert again[-1]["python"] == sys.executable
    assert SEARCHED in said


def test_a_request_that_was_cut_off_is_no_surprise(login: Login) -> None:
    """The connection was lost."""
    done = subprocess.run(
        [sys.executable, "-c", login.archive.boot(), ANSWER], input=b'{"call": "pre', capture_output=True, check=False
    )
    assert done.returncode != 0
    assert ANSWER.encode() not in done.stdout


def _odd(top: Path, name: str) -> Path:
    """A directory or file of that name, which the rule judges in one way or the other."""
    made = top / name
    made.mkdir(mode=0o700)
    inside = made / "inside"
    if name == "link":
        (top / "leads/end").mkdir(parents=True)
        inside.symlink_to(top / "leads")
        return inside / "end"
    inside.mkdir(mode=0o700)
    if name == "file":
        (inside / "end").write_text("")
    modes = {"group": 0o770, "all": 0o777, "sticky": 0o1777, "read": 0o755}
    inside.chmod(modes.get(name, 0o700))
    if name in ("theirs", "sticky and theirs"):
        os.chown(inside, STRANGER, STRANGER)
        inside.chmod(0o1777 if name.startswith("sticky") else 0o755)
    if name != "file":
        (inside / "end").mkdir(mode=0o755)
    return inside / "end"


@as_root
@pytest.mark.parametrize(
    "name", ["own", "file", "read", "group", "all", "sticky", "link", "theirs", "sticky and theirs", "absent"]
)
def test_what_is_ours_at_a_glance_is_trusted_by_the_rule(tmp_path: Path, name: str) -> None:
    path = _odd(tmp_path, name)
    if name == "absent":
        path = path / "none"

    for each in (path, path.parent):
        if boot._is_ours(str(each)):
            assert rule.problem(str(each), searched=each.is_dir()) is None
    assert boot._is_ours(str(path)) is (name in ("own", "file", "read", "sticky"))
    assert not boot._is_ours(os.path.join(str(path), "..", path.name))
    assert not boot._is_ours(os.path.relpath(path))
