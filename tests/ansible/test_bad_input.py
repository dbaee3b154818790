"""What is wrong is reported before anything runs: one error that names the thing, the host, and the way out."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from launcher.backends.ansible import inventory as ansible_inventory
from launcher.backends.ansible.backend import AnsibleBackend
from launcher.backends.ansible.options import AnsibleOptions
from launcher.errors import SpecError
from launcher.spec import JobSpec, NodeRange
from tests.ansible.conftest import SUM, results

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ansible.conftest import Rack
    from tests.command import Cli


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """An inventory, the same file for the same text."""
    directory = tmp_path_factory.mktemp("inventories")
    files: dict[str, Path] = {}

    def place(text: str) -> Path:
        path = files.setdefault(text, directory / f"{len(files)}.ini")
        path.write_text(text)
        return path

    return place


@pytest.mark.usefixtures("ansible_asked_once")
@pytest.mark.parametrize(
    ("inventory", "options", "nodes", "words"),
    [
        ("", {}, None, "no hosts"),
        ("[nodes\nn1", {}, None, "Failed to parse inventory"),
        ("n1\nn2", {"limit": "nope"}, None, "no host or group nope"),
        ("n1\nn2", {}, 3, "3 nodes are asked for, but the inventory has 2 hosts"),
        ("n1\nn2", {"spares": 1}, 2, "2 nodes and 1 spares are asked for"),
        ("n1 distlaunch_rank=first", {}, None, "distlaunch_rank 'first' is not a number"),
        ("n1 distlaunch_rank=1" + "0" * 400, {}, None, "distlaunch_rank '1000"),
        ("n1 distlaunch_rank=nan", {}, None, "distlaunch_rank 'nan' is not a number"),
        ("n1 distlaunch_workers=²", {}, None, "distlaunch_workers '²' is not a positive number"),
        ("n1 distlaunch_workers=1" + "0" * 400, {}, None, "distlaunch_workers '1000"),
        ("n1\nn2", {"exclude": "n2,n1"}, None, "all of its hosts are excluded"),
        ("n1\nn2", {"snapshot_limit": "banana"}, None, "is not a size"),
        ("n1\nn2", {"snapshot_limit": "0.0001KB"}, None, "at most 0 B are sent"),
    ],
)
def test_the_error_for_a_wrong_request_names_what_is_wrong(
    write: Callable[[str], Path], tmp_path: Path, inventory: str, options: dict[str, Any], nodes: int | None, words: str
) -> None:
    (tmp_path / "x.py").write_text("print()")
    backend = AnsibleBackend(AnsibleOptions(inventory=(str(write(inventory)),), **options))
    wanted = NodeRange(min=nodes or 1, max=nodes or 1)
    spec = JobSpec(name="x", command=("x.py",), nodes=wanted, all_nodes=nodes is None, cwd=str(tmp_path), env={})

    with pytest.raises(SpecError) as error:
        backend.plan(spec, tmp_path / "runs/x")

    assert words in error.value.message


@pytest.mark.parametrize(
    ("inventory", "words"),
    [("missing.ini", "'missing.ini' does not exist"), ("n1,n2,n1,", "n1 is listed twice"), (",", "no host")],
)
def test_an_invalid_inventory_is_refused(inventory: str, words: str) -> None:
    with pytest.raises(SpecError, match=re.escape(words)):
        ansible_inventory.sources([inventory], "/")


def test_the_command_reports_it_in_one_error_with_its_exit_code(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "print()")

    done = distlaunch("ansible", "--inventory", "n1,n2,", "--nodes", "3", "x.py")

    assert done.exit_code == 2, done.stderr
    assert "3 nodes are asked for, but the inventory has 2 hosts" in done.stderr
    assert done.stderr.count("error[") == 1
    assert "Traceback" not in done.stderr


def old_python(rack: Rack) -> Path:
    """A Python that is too old: a real one, if this host has any."""
    for version in ("3.6", "3.7", "3.8", "2.7"):
        for path in sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python")):
            return path
    old = rack.write(
        "old-python",
        '#!/bin/sh\nexec python3 -c "import sys; sys.version_info = (3, 6); exec(sys.argv.pop(1))" "$3" "$4"\n',
    )
    old.chmod(0o755)
    return old


@pytest.mark.ssh
def test_all_hosts_that_cannot_take_part_are_named_with_their_reasons_at_once_and_spares_take_their_places(
    rack: Rack,
) -> None:
    n1, n2, n3, n4 = rack.ssh.hosts
    rack.write("other/torch/version.py", "__version__ = '0.1'\n")
    rack.write("other/torch/__init__.py", "")
    other = rack.write("other-python", f'#!/bin/sh\nPYTHONPATH={rack.directory}/other exec {sys.executable} "$@"\n')
    bare = rack.write("bare-python", f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    for script in (other, bare):
        script.chmod(0o755)
    config = rack.ssh.config.read_text()
    unknown = rack.cli.write("unknown_config", config.replace(str(rack.ssh.known_hosts), "/dev/null"))
    wrong = rack.cli.write("wrong_config", config.replace(str(rack.ssh.key), str(rack.ssh.directory / "n1.key")))
    shared = rack.cli.write("shared_config", config)
    shared.chmod(0o666)
    rack.private_disks(n3, size_bytes=4_000_000)
    n3.fill(rack.remote)
    good = f"distlaunch_python={sys.executable}"
    hosts = {
        "a-good": f"{n1.address} {good}",
        "b-ancient": f"{n2.address} distlaunch_python={old_python(rack)}",
        "b-down": f"10.77.250.250 {good}",
        "b-full": f"{n3.address} {good}",
        "b-missing": f"{n2.address} distlaunch_python=/usr/bin/no-such-python",
        "b-other": f"{n2.address} distlaunch_python={other}",
        "b-shared": f"{n2.address} ansible_ssh_common_args='-F {shared}'",
        "b-shut": f"{n3.address} {good} ansible_port=23",
        "b-torchless": f"{n4.address} distlaunch_python={bare}",
        "b-twin": f"{n1.address} {good}",
        "b-unknown": f"{n1.address} ansible_ssh_common_args='-F {unknown}'",
        "b-wrong": f"{n2.address} ansible_ssh_common_args='-F {wrong}'",
        "c-good": f"{n4.address} {good}",
    }
    inventory = rack.inventory("".join(f"{name} ansible_host={about}\n" for name, about in hosts.items()))
    rack.write("sum.py", f"import torch\n{SUM}")

    def ask(*options: str) -> Any:
        return rack(
            *options, "--log-ranks", "all", "sum.py", inventory=inventory, python=None, env={"ANSIBLE_TIMEOUT": "3"}
        )

    refused = ask()
    spared = ask("--nodes", "2", "--spares", "11")

    reasons = {
        "b-ancient": r".* is Python \d\.\d, and 3.9 or newer is needed",
        "b-down": r".*([Tt]imed out|No route to host|unreachable).*",
        "b-full": r".*No space left on device",
        "b-missing": r"there is no /usr/bin/no-such-python \(looked for along the PATH.*",
        "b-other": r"torch is 0\.1, and \S+ on 2 other hosts",
        "b-shared": rf"what SSH executes here: {shared} .* mode 0666 lets all users write to it; chmod o-w {shared}",
        "b-shut": r"ssh: connect to host \S+ port 23: Connection refused",
        "b-torchless": r"there is no torch in .*",
        "b-twin": r"b-twin and a-good are one host \(n1\)",
        "b-unknown": r".*Host key verification failed\.?",
        "b-wrong": r".*Permission denied \(publickey\).*",
    }
    assert refused.exit_code == 3, refused.stderr
    assert refused.stderr.count("error[") == 1
    assert "11 of 13 hosts cannot take part:" in refused.stderr
    assert "Traceback" not in refused.stderr
    for hint in ("ssh-keyscan", "ssh-copy-id", "--python PATH", "--remote-dir", "take one of the names out"):
        assert hint in refused.stderr
    assert spared.exit_code == 0, spared.stderr
    assert sorted(spared.stdout.splitlines()) == ["[0:0] rank 0/2 on n1: sum 3", "[1:1] rank 1/2 on n4: sum 3"]
    assert re.findall(r"^(\S+) +[01] +\?", spared.stderr, re.MULTILINE) == ["a-good", "c-good"], spared.stderr
    for said in (
        re.findall(r"^  (b-\S+): (.*)$", refused.stderr, re.MULTILINE),
        re.findall(r"left out: (\S+): (.*)$", spared.stderr, re.MULTILINE),
    ):
        assert sorted(host for host, _ in said) == sorted(reasons), said
        for host, reason in said:
            assert re.fullmatch(reasons[host], reason), f"{host}: {reason}"


@pytest.mark.ssh
def test_a_host_that_does_not_reach_node_0_is_named_and_what_has_started_is_stopped(rack: Rack) -> None:
    first, second = rack.ssh.hosts[:2]
    rack.write("sum.py", SUM)
    second.run(("ip", "route", "add", "blackhole", f"{first.address}/32"), check=True)
    try:
        done = rack("--nodes", "3", "sum.py")
    finally:
        second.run(("ip", "route", "delete", "blackhole", f"{first.address}/32"), check=True)

    assert done.exit_code == 3, done.stderr
    assert re.search(
        rf"n2: cannot reach port \d+ of node 0 at any of its addresses: {first.address}$", done.stderr, re.MULTILINE
    )
    assert len(list(rack.remote.glob("runs/sum-*/nodes/0/started.json"))) == 1, "node 0 had started"
    rack.wait_nothing_left()


@pytest.mark.ssh
def test_a_node_0_that_ends_before_the_others_reach_it_is_named_with_its_cause(rack: Rack) -> None:
    first, second = rack.ssh.hosts[:2]
    rack.write("dies.py", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    rack.write("x.py", "print('never')\n")
    neighbour = (first.address, "lladdr", "02:00:00:00:00:99", "dev", "eth0")  # no host's, so there is no answer
    second.run(("ip", "neigh", "replace", *neighbour, "nud", "permanent"), check=True)
    try:
        done = rack("--nodes", "2", "--preload", "dies", "x.py")
    finally:
        second.run(("ip", "neigh", "delete", *neighbour), check=True)

    assert done.exit_code == 3, done.stderr
    why = "the fork server was killed by SIGKILL, sent by another process, not distlaunch"
    assert f"1 of 2 hosts cannot take part; n1: the agent of node 0 has ended: {why}\n" in done.stderr
    rack.wait_nothing_left()


def test_what_ansible_itself_cannot_do_is_an_error_that_names_its_log(rack: Rack) -> None:
    rack.write("x.py", "print('never')\n")

    done = rack("x.py", env={"ANSIBLE_STRATEGY": "nosuch"})

    assert done.exit_code == 4, done
    (log,) = re.findall(r"Ansible's log: (.*)$", done.stderr, re.MULTILINE)
    assert "nosuch" in Path(log).read_text()


@pytest.mark.ssh
def test_ansibles_settings_for_a_host_are_honoured_or_refused(rack: Rack) -> None:
    """Relative paths start at the working or the inventory's directory; another user or a password is not ignored."""
    rack.write("x.py", "import os\nprint('user', os.getuid())\n")
    for name, path in (("inv/keys/id", rack.ssh.key), ("known", rack.ssh.known_hosts)):
        rack.write(name, path.read_text()).chmod(0o600)
    about = f"ansible_user=root distlaunch_python={sys.executable}"
    common = "ansible_ssh_common_args='-F /dev/null -o UserKnownHostsFile=known -o IdentitiesOnly=yes'"

    def inventory(name: str, *settings: str) -> str:
        hosts = zip(rack.ssh.hosts, settings, strict=False)
        lines = (f"{host.name} ansible_host={host.address} {about} {common} {more}\n" for host, more in hosts)
        rack.write(f"inv/{name}.ini", "".join(lines))
        return f"inv/{name}.ini"

    def ask(*options: str, **env: str) -> Any:
        words = ("ansible", *options, "--remote-dir", str(rack.remote), "--ship-secrets", "x.py")
        return rack.open(*words, env={"ANSIBLE_TIMEOUT": "5", **env})

    good = "ansible_ssh_private_key_file=keys/id"
    refused = {
        "ansible_private_key_file=keys/other": "its key file keys/other is neither in",
        f"{good} ansible_become=yes ansible_become_user=nobody": "become is set, to nobody: a run is its ssh user's",
        f"{good} ansible_password=x": "a password is given (ansible_password)",
        f"{good} ansible_ssh_pass=x": "a password is given",
    }
    working = (
        good,
        "ansible_private_key_file=inv/keys/id",
        f"{good} ansible_become=true ansible_become_user=root",
        f"{good} ansible_become=false ansible_become_user=nobody",
    )
    by_host, by_setting, other, *wrong = results(
        ask("-i", inventory("working", *working), "--log-ranks", "all"),
        ask("-i", inventory("becomes", f"{good} ansible_become_user=nobody"), ANSIBLE_BECOME="1"),
        ask("-i", "n7,", ANSIBLE_TIMEOUT="1"),
        *(ask("-i", inventory(f"wrong{number}", more)) for number, more in enumerate(refused)),
    )
    by_environment = {
        "ANSIBLE_PRIVATE_KEY_FILE": "inv/keys/id", "ANSIBLE_INVENTORY": inventory("bare", "")
    }  # fmt: skip
    (by_variables,) = results(ask("--nodes", "1", **by_environment))

    assert (by_host.exit_code, sorted(by_host.stdout.splitlines())) == (
        0, [f"[{rank}:{rank}] user 0" for rank in range(4)]
    ), by_host  # fmt: skip
    assert (by_variables.exit_code, by_variables.stdout) == (0, "user 0\n"), by_variables
    for done, (more, words) in zip(wrong, refused.items(), strict=True):
        assert done.exit_code == 2, (more, done)
        assert f"n1: {words}" in done.stderr, (more, done)
    assert (by_setting.exit_code, "become is set, to nobody" in by_setting.stderr) == (2, True), by_setting
    assert other.exit_code == 3
    assert re.search(r"error\[\w+\]: \S", other.stderr)
