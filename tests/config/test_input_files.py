"""Files that a user names: one that is not a file, is too large or cannot be read is one clear error."""

from __future__ import annotations

import ctypes
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from launcher.system import input_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.command import Cli

libc = ctypes.CDLL(None)
INVENTORY = ("ansible", "--dry-run", "--inventory", "{}", "x.py")
NAMED = {
    "script": ("local", "{}"),
    "program": ("local", "--no-python", "{}"),
    "inventory": INVENTORY,
    "limit": ("ansible", "--dry-run", "--inventory", "a,b,", "--limit", "@{}", "x.py"),
    "template": ("slurm", "--dry-run", "--template", "{}", "x.py"),
    "setup": ("slurm", "--dry-run", "--setup", "@{}", "x.py"),
    "patch": ("k8s", "--dry-run", "--image", "i", "--patch", "{}", "x.py"),
    "kubeconfig": ("k8s", "--image", "i", "--kubeconfig", "{}", "x.py"),
}
"""Commands that read the file in place of `{}`."""

BY_VARIABLE = {
    "settings": ({"DISTLAUNCH_SYSTEM_CONFIG": "{}"}, ("config",)),
    "kubeconfigs": ({"KUBECONFIG": "/none:{}"}, ("k8s", "--image", "i", "x.py")),
    "ansible's settings": ({"ANSIBLE_CONFIG": "{}"}, ("ansible", "--dry-run", "--inventory", "a,", "x.py")),
}


def make_fifo(path: Path) -> None:
    os.mkfifo(path, 0o777)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as here:
        here.bind(os.path.relpath(path))
    path.chmod(0o777)


def make_huge(path: Path) -> None:
    path.touch(0o777)
    os.truncate(path, 4 << 30)


def make_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def run(distlaunch: Cli, name: str, path: Path, **more: Any) -> str:
    """What the command that reads the file reports about it, within a limit."""
    work = distlaunch.write("work/x.py", "").parent
    variables, words = BY_VARIABLE.get(name) or ({}, NAMED[name])
    env: dict[str, str | None] = {key: text.format(path) for key, text in variables.items()}
    done = distlaunch(
        *(word.format(path) for word in words), env={"KUBECONFIG": None, **env}, cwd=work, timeout_s=60, **more
    )
    assert done.exit_code == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert not distlaunch.runs.exists() or name.startswith("kubeconfig")
    return done.stderr


@pytest.mark.parametrize("name", [*NAMED, *BY_VARIABLE])
@pytest.mark.parametrize(
    ("make", "says"),
    [(make_fifo, "a FIFO"), (make_socket, "a socket"), (make_device, "a device")],
    ids=["fifo", "socket", "device"],
)
def test_what_is_not_a_file_is_named_and_not_waited_for(
    distlaunch: Cli, monkeypatch: pytest.MonkeyPatch, name: str, make: Callable[[Path], None], says: str
) -> None:
    monkeypatch.chdir(distlaunch.directory)  # a socket's path is short
    path = distlaunch.directory / "named.yml"
    make(path)

    said = run(distlaunch, name, path)

    assert f"{says}, not a file" in said or (name, says, "not executable" in said) == ("program", "a device", True)
    assert "named.yml" in said


@pytest.mark.parametrize("name", ["script", "settings", "setup", "patch", "template"])
def test_a_file_of_4_gb_is_not_read(distlaunch: Cli, name: str) -> None:
    path = distlaunch.directory / "named.yml"
    make_huge(path)

    assert "larger than 16 MB" in run(distlaunch, name, path)


@pytest.mark.parametrize("name", ["script", "settings", "setup", "patch", "template"])
def test_a_directory_is_not_a_file(distlaunch: Cli, name: str) -> None:
    path = distlaunch.directory / "named.yml"
    path.mkdir()

    said = run(distlaunch, name, path)

    assert "a directory" in said
    assert "named.yml" in said


@pytest.mark.parametrize("place", ["hosts/more", "hosts/group_vars/all", "host_vars/a.yml"])
def test_a_pipe_inside_or_beside_an_inventory_is_found(distlaunch: Cli, place: str) -> None:
    inventory = "hosts" if place.startswith("hosts") else "hosts.ini"
    distlaunch.write("hosts/one", "a\n")
    distlaunch.write("hosts.ini", "a\n")
    (distlaunch.directory / place).parent.mkdir(exist_ok=True)
    os.mkfifo(distlaunch.directory / place)

    said = run(distlaunch, "inventory", distlaunch.directory / inventory)

    assert f"{place} is a FIFO, not a file" in said


def test_a_pipe_in_place_of_a_settings_file_in_a_parent_directory_is_named(distlaunch: Cli) -> None:
    os.mkfifo(distlaunch.directory / "distlaunch.toml")
    distlaunch.write("below/x.py", "")

    done = distlaunch("local", "x.py", cwd=distlaunch.directory / "below", timeout_s=60)

    assert done.exit_code == 2
    assert "cannot read" in done.stderr
    assert "distlaunch.toml: a FIFO, not a file" in done.stderr


def test_a_damaged_run_directory_with_pipes_in_it_can_be_listed(distlaunch: Cli) -> None:
    directory = distlaunch.runs / "train-20250101-000000-abcd"
    directory.mkdir(parents=True)
    os.mkfifo(directory / "run.json")
    os.mkfifo(directory / "result.json")

    done = distlaunch("ls", timeout_s=60)

    assert (done.exit_code, "unknown" in done.stdout) == (0, True), done.stderr


def test_each_way_in_which_a_file_cannot_be_read_is_an_error_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_fifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("none")
    (tmp_path / "good").write_bytes(b"abc")
    said = {}
    for name in ("pipe", "loop", "dangling", "none/x", "good/x", "nul\0", "x" * 300, "/dev/null", "."):
        with pytest.raises(OSError) as caught:  # noqa: PT011 - its text is what this is about
            input_file.read(name)
        said[name] = caught.value.strerror

    assert all(said.values()), said
    assert said["pipe"] == "a FIFO, not a file"
    assert said["nul\0"] == "no file can have that name"
    assert input_file.read("good") == b"abc"
    assert input_file.read("/proc/self/cmdline"), "without a size, like all of /proc"
    with pytest.raises(OSError, match="larger than 2 bytes"):
        input_file.read("good", limit_bytes=2)


def without_capabilities() -> None:
    """In a child that is about to execute a program: even root then reads only what permissions allow."""
    drop = 24  # PR_CAPBSET_DROP of prctl(2)
    for number in range(64):
        libc.prctl(drop, number, 0, 0, 0)


def test_a_file_that_may_not_be_read_is_named(distlaunch: Cli) -> None:
    path = distlaunch.write("named.yml", "")
    path.chmod(0)

    for name in ("script", "settings", "setup", "patch", "template", "inventory"):
        assert "Permission denied" in run(distlaunch, name, path, preexec_fn=without_capabilities, real=True)


@pytest.mark.parametrize("locked", ["group_vars", "group_vars/all", "host_vars", "hosts"])
def test_a_directory_beside_an_inventory_that_may_not_be_read_is_named(distlaunch: Cli, locked: str) -> None:
    path = distlaunch.write("inventory/hosts/h.ini", "n1\n").parent
    distlaunch.write("inventory/group_vars/all/a.yml", "")
    distlaunch.write("inventory/host_vars/n1.yml", "")
    distlaunch.write("x.py", "")
    (path.parent / locked).chmod(0)

    try:
        done = distlaunch("ansible", "-i", str(path), "--dry-run", "x.py", preexec_fn=without_capabilities)
    finally:
        (path.parent / locked).chmod(0o755)

    assert done.exit_code == 2, done
    assert done.stderr.count("error[") == 1
    assert "Traceback" not in done.stderr
    assert f"{path.parent}/{locked}" in done.stderr
    assert "Permission denied" in done.stderr
