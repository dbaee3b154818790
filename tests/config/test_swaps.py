"""Files that a stranger swaps while they are checked, and a stranger's links to files that are trusted."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.system import trust as rule
from launcher.backends.kubernetes import patch
from launcher.backends.slurm import script
from launcher.errors import UntrustedError
from launcher.payload import setup_lines
from launcher.runs import directories
from launcher.settings import config, quarantine, toml_file
from launcher.system import input_file, trust
from tests.config.owners import _trust_is_reset, as_root, file, owned  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STRANGER, TEAM = 54321, 54322

pytestmark = as_root


@pytest.fixture
def team(tmp_path: Path) -> Path:
    """A directory of other users, whom we trust, beside a sticky one in which every user can create names."""
    owned(tmp_path / "sticky", 0, 0o1777)
    team = owned(tmp_path / "team", TEAM, 0o775)
    file(team / "good", TEAM, 0o664, "good")
    return team


def link(path: Path, target: Path | str, uid: int) -> Path:
    path.symlink_to(target)
    os.lchown(path, uid, uid)
    return path


def test_trust_holds_from_the_directory_itself_on_and_no_strangers_link_leads_there(team: Path) -> None:
    sticky, words = team.parent / "sticky", (str(team),)
    assert rule.problem(str(team / "good"), words) is None
    assert rule.problem(str(link(sticky / "ours", team / "good", 0)), words) is None
    assert rule.problem(str(link(team / "theirs", "good", TEAM)), words) is None, (
        "inside the directory, their links count"
    )
    for path in (link(sticky / "file", team / "good", STRANGER), link(sticky / "directory", team, STRANGER) / "good"):
        found = rule.problem(str(path), words)
        assert found is not None
        assert f"belongs to {STRANGER}" in found.message
    assert rule.problem(str(link(team / "out", sticky / "file", TEAM)), words) is not None, (
        "trust ends where the way leads out"
    )
    assert rule.problem(str(link(team / "up", team / "../sticky/directory/good", TEAM)), words) is not None


def test_a_trusted_path_is_the_directory_that_our_or_roots_links_lead_to(team: Path) -> None:
    sticky = team.parent / "sticky"
    assert rule.problem(str(team / "good"), (str(link(sticky / "ours", team, 0)),)) is None
    assert rule.problem(str(team / "good"), (str(link(sticky / "theirs", team, STRANGER)),)) is not None
    assert rule.problem(str(team / "good"), (str(link(sticky / "everything", "/", STRANGER)),)) is not None


def test_directories_above_a_trusted_one_are_held_to_the_rule(team: Path) -> None:
    """Its owner can put another directory there."""
    way = owned(team.parent / "way", STRANGER, 0o755)
    path = file(owned(way / "team", TEAM, 0o755) / "good", TEAM)

    assert rule.problem(str(path), (str(way / "team"),)) is not None
    assert rule.problem(str(path), (str(way),)) is None


def test_a_link_that_changes_between_two_looks_is_a_problem_and_not_a_traceback(
    team: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = link(team.parent / "sticky/x", team / "good", 0)

    def readlink(step: str, *, really: Callable[..., str] = os.readlink) -> str:
        if step == str(path):
            raise OSError(22, "Invalid argument", step)  # a file by now
        return really(step)

    monkeypatch.setattr(os, "readlink", readlink)
    found = rule.problem(str(path), (str(team),))

    assert found is not None
    assert "Invalid argument" in found.message


READERS: dict[str, Callable[[Path], Any]] = {
    "a settings file": lambda path: toml_file.read_file(str(path)),
    "a project file": lambda path: config.load({"DISTLAUNCH_SYSTEM_CONFIG": "/none"}, str(path.parent)),
    "a template": lambda path: script._source(str(path)),
    "setup": lambda path: setup_lines.watched([f"@{path}"], ship_secrets=True),
    "a patch": lambda path: patch.read([str(path)], ship_secrets=False),
    "bad hosts": lambda path: quarantine.hosts("lab", {"XDG_CONFIG_HOME": str(path.parent.parent)}),
    "a run": lambda path: directories.read(path.parent.parent, path.parent.name),
}
NAMES = {"a project file": "distlaunch.toml", "bad hosts": "quarantine.json", "a run": "run.json"}

CASES = [
    (what, gone_first) for what in READERS for gone_first in (False, True) if (what, gone_first) != ("a template", True)
]
"""With a link of ours in its place before, or with nothing; a missing template is not opened."""


@pytest.mark.parametrize(("what", "gone_first"), CASES)
def test_the_file_that_is_read_is_the_one_that_was_checked(
    team: Path, what: str, gone_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stranger swaps at the best moment: right before the file is opened, and back right after."""
    directory = owned(team.parent / "sticky/distlaunch", 0, 0o1777)
    path = directory / NAMES.get(what, "x")
    evil = file(
        directory / "evil",
        STRANGER,
        text='{"lab": {"evil": {"reason": "evil"}}}' if what == "bad hosts" else '{"backend": "x"}',
    )
    good = directory / "good"
    good.write_text("{}")
    if not gone_first:
        path.symlink_to(good)
    took: list[str] = []

    def opening(name: Any, *more: Any, really: Callable[..., int] = input_file.open_fd) -> int:
        if str(name) != str(path):
            return really(name, *more)
        path.unlink(missing_ok=True)
        path.symlink_to(evil)
        try:
            fd = really(name, *more)
            took.append(os.readlink(path))
            return fd
        finally:
            path.unlink()
            if not gone_first:
                path.symlink_to(good)

    monkeypatch.setattr(input_file, "open_fd", opening)
    if what == "a project file":
        monkeypatch.setattr(config, "project_file", lambda *_: str(path))
    refused: list[str] = []
    try:
        refused.append(getattr(READERS[what](path), "damaged", "nothing was reported"))
    except UntrustedError as error:
        refused.append(error.message)
    assert "was changed while it was opened" in refused[0]
    assert took


def test_the_file_of_a_stranger_who_swaps_all_the_time_is_never_read(team: Path) -> None:
    """Root reads below a sticky directory; the link into the trusted directory and the file are the stranger's."""
    sticky = team.parent / "sticky"
    file(sticky / "evil", STRANGER, text='python = "/evil"')
    link(sticky / "good", team / "good", STRANGER)
    trust.except_for([str(team)])
    path = str(link(sticky / "x.toml", team / "good", STRANGER))
    pid = os.fork()
    if not pid:
        try:
            while os.getppid() != 1:
                for name in ("evil", "good"):
                    os.link(sticky / name, sticky / "next", follow_symlinks=False)
                    os.rename(sticky / "next", path)
        finally:
            os._exit(0)
    try:
        tries = refused = 0
        while tries < 1500 or not refused:
            tries += 1
            try:
                assert toml_file.read_file(path) is None
            except UntrustedError:
                refused += 1
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
