"""What is wrong is told before anything runs: one error that names the thing, the host, and the way out."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.ansible.conftest import Rack

pytestmark = pytest.mark.ssh


@pytest.mark.parametrize(
    ("inventory", "options", "words"),
    [
        ("", (), "no hosts"),
        ("[nodes\nn1", (), "Failed to parse inventory"),
        ("n1\nn2", ("--limit", "nope"), "no host or group nope"),
        ("n1\nn2", ("--nodes", "3"), "3 nodes are asked for, and the inventory has 2 hosts"),
        ("n1\nn2", ("--nodes", "2", "--spares", "1"), "2 nodes and 1 spares are asked for"),
        ("n1 distlaunch_rank=first", (), "distlaunch_rank 'first' is not a number"),
        ("n1\nn2", ("--exclude", "n2,n1"), "all of its hosts are excluded"),
        ("n1", ("--snapshot-limit", "banana"), "is no size"),
        ("n1", ("--snapshot-limit", "0.0001KB"), "at most 0 B are sent"),
    ],
)
def test_a_wrong_request_names_what_is_wrong(rack: Rack, inventory: str, options: tuple[str, ...], words: str) -> None:
    rack.write("x.py", "print()")
    path = rack.cli.write("inventory.ini", inventory)

    done = rack(*options, "x.py", inventory=path)

    assert done.exit_code == 2, done.stderr
    assert words in done.stderr
    assert done.stderr.count("error[") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("inventory", "words"),
    [("missing.ini", "'missing.ini' does not exist"), ("n1,n2,n1,", "n1 is there twice"), (",", "no host")],
)
def test_an_inventory_that_is_none(rack: Rack, inventory: str, words: str) -> None:
    done = rack("reduce.py", inventory=inventory)

    assert done.exit_code == 2
    assert words in done.stderr


def test_all_hosts_that_cannot_take_part_are_named_with_their_reasons_at_once(rack: Rack) -> None:
    n1, n2 = (host.address for host in rack.ssh.hosts[:2])
    ancient = rack.write(
        "old-python", '#!/bin/sh\nexec python3 -c "import sys; sys.version_info = (3, 6); exec(sys.argv[1])" "$3"\n'
    )
    ancient.chmod(0o755)
    torch = f"distlaunch_python={sys.executable}"
    inventory = rack.inventory(
        f"good ansible_host={n1} {torch}\ntwin ansible_host={n1} {torch}\ndown ansible_host=10.77.250.250\n"
        f"bare ansible_host={n2} distlaunch_python=/usr/bin/no-such-python\n"
        f"ancient ansible_host={n2} distlaunch_python={ancient}\n"
    )

    done = rack.cli(
        "ansible",
        "-i",
        str(inventory),
        "--remote-dir",
        str(rack.remote),
        "reduce.py",
        env={"ANSIBLE_TIMEOUT": "3"},
        timeout_s=120,
    )

    assert done.exit_code == 3, done.stderr
    said = done.stderr
    assert "there is no /usr/bin/no-such-python" in said
    assert "is Python 3.6, and 3.9 or newer is needed" in said
    assert "down: " in said
    assert "twin and good are one machine (n1)" in said
    assert said.count("error[") == 1


def test_hosts_without_torch_or_with_another_one(rack: Rack) -> None:
    rack.write("other/torch/version.py", "__version__ = '0.1'\n")
    old = rack.write("other/torch/__init__.py", "").parent.parent
    other = rack.write("other-python", f'#!/bin/sh\nPYTHONPATH={old} exec {sys.executable} "$@"\n')
    none = rack.write("bare-python", f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    for script in (other, none):
        script.chmod(0o755)
    n1, n2, n3, n4 = (host.address for host in rack.ssh.hosts)
    inventory = rack.inventory(
        f"n1 ansible_host={n1} distlaunch_python={sys.executable}\nn2 ansible_host={n2} distlaunch_python={other}\n"
        f"n3 ansible_host={n3} distlaunch_python={sys.executable}\nn4 ansible_host={n4} distlaunch_python={none}\n"
    )

    done = rack.cli("ansible", "-i", str(inventory), "--remote-dir", str(rack.remote), "reduce.py", timeout_s=120)

    assert done.exit_code == 3, done.stderr
    assert "n2: torch is 0.1, and " in done.stderr
    assert "n4: there is no torch in " in done.stderr
    assert "--python PATH" in done.stderr
    spared = rack.cli(
        "ansible", "-i", str(inventory), "--remote-dir", str(rack.remote), "--spares", "2", "reduce.py", timeout_s=120
    )
    assert spared.exit_code == 0, spared.stderr
    assert "left out: n2: torch is 0.1" in spared.stderr
    assert "rank 0/2 on n1" in spared.stdout


def test_an_unknown_host_key_a_wrong_key_and_a_host_that_listens_to_nobody(rack: Rack) -> None:
    hosts = rack.ssh.hosts
    config = rack.ssh.config.read_text()
    unknown = rack.cli.write("unknown_config", config.replace(str(rack.ssh.known_hosts), "/dev/null"))
    key = rack.cli.write("wrong_config", config.replace(str(rack.ssh.key), str(rack.ssh.folder / "n1.key")))
    lines = (
        f"unknown ansible_host={hosts[0].address} ansible_ssh_common_args='-F {unknown}'\n"
        f"wrong ansible_host={hosts[1].address} ansible_ssh_common_args='-F {key}'\n"
        f"shut ansible_host={hosts[2].address} ansible_port=23 ansible_ssh_common_args='-F {rack.ssh.config}'\n"
    )
    path = rack.cli.write("inventory.ini", lines)

    done = rack("reduce.py", inventory=path)

    assert done.exit_code == 3, done.stderr
    assert "unknown: " in done.stderr
    assert "Host key verification failed" in done.stderr
    assert "wrong: " in done.stderr
    assert "Permission denied" in done.stderr
    assert "Connection refused" in done.stderr
    assert "ssh-keyscan" in done.stderr, "how to accept a key"


def test_a_full_disk_is_told_before_the_start_and_nothing_is_left_running(rack: Rack) -> None:
    host = rack.ssh.hosts[1]
    rack.private_disks(host, size_bytes=4_000_000)
    host.fill(rack.remote)

    done = rack("--nodes", "2", "reduce.py")

    assert done.exit_code == 3, done.stderr
    assert "n2: " in done.stderr
    assert "No space left" in done.stderr
    assert not rack.left()


def test_a_jump_host_and_a_shell_that_talks_and_is_slow(rack: Rack) -> None:
    if shutil.which("bash") is None:
        pytest.skip("no bash here")
    n1, n2 = rack.ssh.hosts[:2]
    jump = f"-F {rack.ssh.config} -o ProxyCommand='ssh -F {rack.ssh.config} -W %h:%p {n1.name}'"
    slow = rack.cli.write(
        "slow_python", f"#!/bin/sh\necho WELCOME TO THE MACHINE; printf 'no newline'; sleep 2\nexec {sys.executable} \"$@\"\n"
    )
    slow.chmod(0o755)
    path = rack.cli.write(
        "inventory.ini",
        f'n2 ansible_host={n2.address} ansible_user=root ansible_ssh_common_args="{jump}" distlaunch_python={slow}\n',
    )

    done = rack.cli("ansible", "-i", str(path), "--remote-dir", str(rack.remote), "reduce.py", timeout_s=120)

    assert done.exit_code == 0, done.stderr
    assert "rank 0/1 on n2" in done.stdout
