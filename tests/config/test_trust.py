"""The rule of trust: files are read only from paths that belong to us or root, all the way up."""

from __future__ import annotations

import grp
import os
import pwd
import stat
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from launcher.agent.system import trust as rule
from launcher.errors import UntrustedError
from launcher.runs import directories, records
from launcher.system import trust
from tests.config.owners import (
    LAB,
    ME,
    STRANGER,
    _trust_is_reset,  # noqa: F401 - a fixture
    as_root,
    as_user,
    file,
    owned,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def wrong(path: Path, *trusted: str, uid: int = ME, **more: Any) -> str:
    """Why a user refuses the path; empty if it is accepted."""
    found = as_user(uid, lambda: rule.problem(str(path), trusted, **more))
    return found.message if found else ""


@as_root
class TestRule:
    """The rule itself, as a user who is not root sees it."""

    def test_my_own_and_roots_paths_are_accepted_and_other_users_are_refused_anywhere_on_the_way(
        self, place: Path
    ) -> None:
        mine, theirs = owned(place / "mine", ME, 0o755), owned(place / "theirs", STRANGER, 0o755)
        assert wrong(file(mine / "a", ME)) == ""
        assert wrong(file(mine / "b", 0)) == ""
        assert wrong(mine / "is not there/at all") == ""
        assert f"{mine}/c belongs to {STRANGER} (mode 0644)" in wrong(file(mine / "c", STRANGER))
        inner = owned(theirs / "inner", ME, 0o700)
        assert f"{theirs} belongs to {STRANGER}" in wrong(file(inner / "d", ME))
        assert f"{mine} belongs to {ME}" in wrong(mine / "a", uid=STRANGER)

    def test_others_must_not_be_able_to_write_except_to_a_sticky_directory_on_the_way(self, place: Path) -> None:
        open_, sticky = owned(place / "open", 0, 0o777), owned(place / "sticky", 0, 0o1777)
        assert f"{open_} belongs to root, and its mode 0777 lets all users write to it" in wrong(file(open_ / "a", ME))
        assert "0666" in wrong(file(place / "b", ME, 0o666))
        assert wrong(file(sticky / "c", ME)) == ""
        assert wrong(sticky) == ""
        assert wrong(sticky, searched=True) != "", "every user may put files of any name into it"
        assert wrong(file(sticky / "d", STRANGER)) != ""

    def test_links_are_followed_and_their_own_owners_count(self, place: Path) -> None:
        sticky, mine = owned(place / "sticky", 0, 0o1777), owned(place / "mine", ME, 0o755)
        good = file(mine / "good", ME)
        for name, target in (
            ("whole", good),
            ("relative", Path("../mine/good")),
            ("up", Path("../sticky/../mine/good")),
        ):
            (sticky / name).symlink_to(target)
            os.lchown(sticky / name, ME, ME)
            assert wrong(sticky / name) == "", name
        (sticky / "theirs").symlink_to(good)
        os.lchown(sticky / "theirs", STRANGER, STRANGER)
        assert f"{sticky}/theirs belongs to {STRANGER}" in wrong(sticky / "theirs")
        (mine / "out").symlink_to(owned(place / "open", 0, 0o777) / "x")
        file(place / "open" / "x", ME)
        assert f"{place}/open" in wrong(mine / "out"), "where a link leads counts as well"
        (mine / "round").symlink_to("round")
        assert "too many links" in wrong(mine / "round")

    def test_a_group_may_write_if_it_is_the_users_own_or_trusted(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        groups = {ME: ("me", []), LAB: ("lab", ["me"]), 0: ("root", [])}
        names = {ME: "me", 0: "root", STRANGER: "bob"}

        def group_of(gid: int) -> Any:
            return grp.struct_group((groups[gid][0], "x", gid, groups[gid][1]))

        monkeypatch.setattr(grp, "getgrgid", group_of)
        monkeypatch.setattr(
            pwd, "getpwuid", lambda uid: pwd.struct_passwd((names[uid], "x", uid, uid, "", "/", "/bin/sh"))
        )
        own = owned(place / "own", ME, 0o775)
        lab = owned(place / "lab", 0, 0o2770, gid=LAB)
        assert wrong(file(own / "a", ME, 0o664)) == "", "umask 002, and a group of one's own"
        inside = owned(lab / "me", ME, 0o755, gid=LAB)
        assert (
            "its mode 2770 lets the group lab write to it"
            in as_user(ME, lambda: rule.problem(str(inside)), gid=LAB).message
        )
        assert as_user(ME, lambda: rule.problem(str(inside), ("@lab",)), gid=LAB) is None
        groups[ME] = ("me", ["bob"])
        assert "lets the group me write" in wrong(own / "a"), "another user was added to it"

    def test_where_root_is_not_mapped_the_user_nobody_may_own_the_way_but_never_the_file(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As in a container whose user namespace does not map root."""
        nobody = 65534
        path = file(owned(place / "way", nobody, 0o755) / "file", 0)
        assert rule.problem(str(path)) is not None
        monkeypatch.setattr(rule, "_is_unmapped_root", lambda uid: uid == nobody)

        assert rule.problem(str(path)) is None
        os.chown(path, nobody, nobody)
        assert rule.problem(str(path)) is not None

    def test_an_access_list_is_not_a_group_of_ones_own(self, place: Path) -> None:
        shared = owned(place / "shared", ME, 0o755)
        nobody = 2**32 - 1
        entries = [(0x01, 7, nobody), (0x02, 7, STRANGER), (0x04, 5, nobody), (0x10, 7, nobody), (0x20, 5, nobody)]
        packed = struct.pack("<I", 2) + b"".join(
            struct.pack("<HHI", *entry) for entry in entries
        )  # as acl(5) and the kernel have it
        os.setxattr(shared, "system.posix_acl_access", packed)
        assert wrong(shared) != ""

    def test_a_trusted_directory_is_trusted_with_all_that_is_in_it(self, place: Path) -> None:
        theirs = owned(place / "theirs", STRANGER, 0o777)
        path = file(theirs / "a", STRANGER, 0o666)
        assert wrong(path, str(theirs)) == ""
        assert wrong(path, str(place / "their")) != "", "a prefix of a name is another directory"
        (theirs / "out").symlink_to(file(place / "b", STRANGER))
        assert wrong(theirs / "out", str(theirs)) != "", "a link that leads out of it"


def test_directories_are_made_for_their_owner_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        rule.make(str(tmp_path / "a/b/c"))
        rule.make(str(tmp_path / "a/b/c"))
        records.create(
            records.Run(
                id="x-20250101-000000-aaaa", path=tmp_path / "runs/of/mine/x-20250101-000000-aaaa", backend="local"
            )
        )
    finally:
        os.umask(before)
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "a/b/c")} == {0o700}
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("runs", "runs/of", "runs/of/mine")} == {0o755}


@as_root
@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("what", ["a directory", "a link"])
def test_a_directory_that_another_user_makes_after_the_check_is_not_used(
    place: Path, when: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, target = owned(place / "shared", 0, 0o1777), owned(place / "target", 0, 0o700)
    directory = directories.root(str(shared / "me/runs"))

    def steal() -> None:
        if what == "a directory":
            owned(shared / "me", STRANGER, 0o777)
        else:
            (shared / "me").symlink_to(target)
            os.lchown(shared / "me", STRANGER, STRANGER)

    def mkdir(path: str, mode: int = 0o777, *, really: Callable[..., None] = os.mkdir) -> None:
        if path == str(shared / "me"):
            steal()
        really(path, mode)

    if when == "before":
        steal()
    else:
        monkeypatch.setattr(os, "mkdir", mkdir)
    with pytest.raises(UntrustedError, match=f"{shared}/me belongs to {STRANGER}"):
        records.create(
            records.Run(id="x-20250101-000000-aaaa", path=directory / "x-20250101-000000-aaaa", backend="local")
        )
    assert [*(shared / "me").iterdir(), *target.iterdir()] == []


@as_root
def test_directories_are_made_in_a_trusted_one(place: Path) -> None:
    lab = owned(place / "lab", STRANGER, 0o777)
    trust.except_for([str(lab)])
    records.create(
        records.Run(id="x-20250101-000000-aaaa", path=lab / "me/runs/x-20250101-000000-aaaa", backend="local")
    )
    assert (lab / "me/runs/x-20250101-000000-aaaa/run.json").exists()
