"""What of an environment travels, without nodes."""

from __future__ import annotations

import os
import tarfile
from typing import TYPE_CHECKING

import pytest

from launcher.agent.environment import disks, source
from launcher.agent.environment.listing import listed
from launcher.agent.environment.manifest import PIECE_BYTES, BringError
from launcher.agent.environment.shelf import Shelf
from launcher.agent.environment.store import Store

if TYPE_CHECKING:
    from pathlib import Path


def files(directory: Path, *names: str) -> Path:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
        path.chmod(0o755)
    return directory


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base Python as conda has it, with packages and environments of its own."""
    return files(
        tmp_path / "conda",
        "bin/python3",
        "lib/python3.11/os.py",
        "pkgs/big/x",
        "envs/other/lib/y",
        "conda-meta/history",
    )


def venv(directory: Path, python: Path, home: Path) -> Path:
    files(directory, "lib/python3.11/site-packages/m.py")
    (directory / "bin").mkdir()
    (directory / "bin/python3").symlink_to(python)
    (directory / "pyvenv.cfg").write_text(f"home = {home}\n")
    return directory


def test_of_condas_base_neither_its_packages_nor_its_environments_travel(tmp_path: Path, base: Path) -> None:
    found = listed(str(venv(tmp_path / "env", base / "bin/python3", base / "bin")), "")

    assert found.base == str(base)
    assert [each.path for each in found.files if each.path.startswith("base/")] == [
        "base/bin/python3",
        "base/lib/python3.11/os.py",
    ]


def test_a_base_python_is_found_through_a_directory_of_links(tmp_path: Path, base: Path) -> None:
    """As ~/.local/bin, to which uv links the Pythons that it installs."""
    links = files(tmp_path / "home/.local", "share/keyrings/secret", "lib/x") / "bin"
    links.mkdir()
    (links / "python3").symlink_to(base / "bin/python3")

    found = listed(str(venv(tmp_path / "env", links / "python3", links)), "")

    assert found.base == str(base)
    assert not [each for each in found.files if "keyrings" in each.path]


def test_the_base_of_a_copied_interpreter_is_where_its_settings_say(tmp_path: Path, base: Path) -> None:
    env = venv(tmp_path / "env", base / "bin/python3", base / "bin")
    (env / "bin/python3").unlink()
    files(env, "bin/python3")

    assert listed(str(env), "").base == str(base)


@pytest.mark.timeout(60)
def test_a_link_to_a_pipe_does_not_travel(tmp_path: Path) -> None:
    env = files(tmp_path / "env", "bin/python3", "lib/m.py")
    os.mkfifo(tmp_path / "pipe")
    (env / "lib/pipe").symlink_to(tmp_path / "pipe")

    assert [each.path for each in listed(str(env), "").files] == ["env/bin/python3", "env/lib/m.py"]


def test_an_environment_may_be_packed_with_its_directory(tmp_path: Path) -> None:
    env, packed, place = files(tmp_path / ".venv", "bin/python3"), tmp_path / "env.tar.gz", tmp_path / "there"
    with tarfile.open(packed, "w:gz") as tar:
        tar.add(env, ".venv")
    place.mkdir()

    found = source.unpacked(str(packed), str(place), str(tmp_path / "list"))

    assert [each.path for each in found.manifest.files] == ["env/bin/python3"]
    (piece,) = Shelf(Store(str(tmp_path / "store")), found.manifest).pieces
    assert [data for _, data in source.contents(found, [piece], [0])] == [b"x"]


@pytest.mark.parametrize("what", ["no environment", "damaged"])
def test_a_packed_file_that_cannot_be_used_is_named(tmp_path: Path, what: str) -> None:
    packed, place = tmp_path / "env.tar.gz", tmp_path / "there"
    with tarfile.open(packed, "w:gz") as tar:
        tar.add(files(tmp_path / "data", "a", "b"), ".")
    if what == "damaged":
        packed.write_bytes(packed.read_bytes()[:-6] + b"123456")
    place.mkdir()

    with pytest.raises(BringError) as raised:
        source.unpacked(str(packed), str(place), str(tmp_path / "list"))

    assert str(raised.value).startswith(str(packed))
    assert str(place) not in str(raised.value)


def test_a_run_that_gives_up_leaves_what_another_has_received(tmp_path: Path) -> None:
    env = files(tmp_path / "env", "bin/python3")
    (env / "big").write_bytes(b"y" * (PIECE_BYTES + 1))
    store = Store(str(tmp_path / "store"))
    found = source.of_directory(str(env), store.directory)
    ours, theirs = (Shelf(store, found.manifest) for _ in range(2))
    index = next(index for index, piece in enumerate(ours.pieces) if piece.file.path == "env/big")
    assert ours.put(index, b"y" * PIECE_BYTES)
    big = ours.pieces[index].file
    with open(theirs.store.object(big), "wb") as whole:
        whole.write(b"y" * (PIECE_BYTES + 1))

    ours.close()

    assert theirs.store.has(big)
    assert [name for _, _, names in os.walk(tmp_path / "store/objects") for name in names if name.count(".") > 1] == []


@pytest.mark.parametrize(
    ("kind", "shared"), [("fuse.juicefs", True), ("wekafs", True), ("fuse.fuse-overlayfs", False), ("ext4", False)]
)
def test_a_store_on_a_shared_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, shared: bool
) -> None:
    monkeypatch.setattr(disks, "_file_system", lambda _path: kind)

    if shared:
        with pytest.raises(BringError, match=rf"is on a shared disk \({kind}\)"):
            Store(str(tmp_path / "store"))
    else:
        Store(str(tmp_path / "store"))
