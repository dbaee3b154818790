"""A user of the hosts without root or sudo, with login files that print and are slow, and with an own systemd."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed import fixtures, wait_until
from tests.ansible.conftest import make

if TYPE_CHECKING:
    from testbed import Host
    from tests.ansible.conftest import Rack
    from tests.command import Cli

pytestmark = pytest.mark.ssh

UID = 4242
HOME = "/home/alice"
RUNTIME = f"/run/user/{UID}"
LOGIN = "echo WELCOME; echo 'to the machine' >&2; sleep 1; printf 'no newline'\n"
WHO = """
import os, sys
print("user", os.getuid(), "home", os.environ["HOME"], flush=True)
open(f"{sys.argv[1]}.{os.environ['RANK']}", "rb", buffering=0).read(1)
"""


def settle(host: Host, directory: Path) -> None:
    """Give the host a user alice who can run this interpreter, in mounts of the host that end with it."""

    def run(*argv: str) -> None:
        host.run(argv, check=True, cwd="/")

    def own_disk(path: str) -> Path:
        run("mkdir", "-p", path)
        run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", path)
        return host.path(Path(path))

    def place(path: str, text: str, *, mode: int = 0o644) -> None:
        file = directory / f"{host.name}-{Path(path).name}"
        file.write_text(text)
        file.chmod(mode)
        run("mount", "--bind", str(file), path)

    for prefix in {sys.base_prefix, sys.prefix}:
        parents = [*reversed(Path(prefix).parents), Path(prefix)]
        shut = next((str(path) for path in parents if not path.stat().st_mode & 0o001), None)
        if shut is not None:
            own_disk("/mnt")
            run("mkdir", "/mnt/kept")
            run("mount", "--bind", prefix, "/mnt/kept")
            own_disk(shut)
            run("mkdir", "-p", prefix)
            run("mount", "--bind", "/mnt/kept", prefix)
    place("/etc/passwd", Path("/etc/passwd").read_text() + f"alice:x:{UID}:{UID}::{HOME}:/bin/bash\n")
    (own_disk("/home") / "alice").mkdir()
    (host.path(Path(HOME)) / ".bashrc").write_text(LOGIN)
    for name in ("base64.py", "selectors.py", "torch.py"):
        (host.path(Path(HOME)) / name).write_text("raise SystemExit('this is alice's own')\n")
    (own_disk("/var/lib/systemd/linger") / "alice").touch()
    (own_disk("/run/user") / str(UID)).mkdir()
    (own_disk("/run/systemd") / "system").mkdir()  # by which a user's systemd knows that systemd has started the host
    run("chown", "-R", f"{UID}:{UID}", HOME, RUNTIME)
    run("chmod", "700", RUNTIME)


def cgroups(name: str) -> list[Path]:
    """New cgroups of alice, as the host's systemd would make them: below cgroup2, and systemd's own of version 1."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    places = [Path(m[1]) for m in mounts if m[2] == "cgroup2" or (m[2] == "cgroup" and "name=systemd" in m[3])]
    made = [
        place / name for place in places if place.is_relative_to("/sys/fs/cgroup")
    ]  # other tests mount some elsewhere
    try:
        for path in (directory for group in made for directory in (group, group / "session")):
            path.mkdir()
            for file in (path, *path.iterdir()):
                os.chown(file, UID, UID)
    except OSError as error:
        pytest.skip(f"no cgroups can be made here: {error.strerror}")
    return made


def start_systemd(host: Host, directory: Path, groups: list[Path]) -> None:
    """Alice's own, real systemd; her logins are beside it, as she may not move foreign processes into her scopes."""
    for process in host.processes():
        for group in groups:
            (group / "session/cgroup.procs").write_text(str(process.pid))
    env = (
        "env",
        "-i",
        f"PATH={os.environ['PATH']}",
        f"HOME={HOME}",
        f"XDG_RUNTIME_DIR={RUNTIME}",
        "SYSTEMD_LOG_TARGET=console",
    )
    alice = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", *env)
    enter = " && ".join(f"echo $$ > {group}/cgroup.procs" for group in groups)
    systemd = (*alice, "/lib/systemd/systemd", "--user", "--unit=basic.target")
    log = directory / f"{host.name}-systemd.log"
    host.daemon(("sh", "-c", f'{enter} && exec "$@"', "sh", *systemd), log)
    private = host.path(Path(RUNTIME)) / "systemd/private"
    wait_until("alice's systemd", private.exists, limit_s=60)


def removed(group: Path) -> bool:
    """Whether the cgroup could be removed, with those in it."""
    with contextlib.suppress(OSError):  # processes are still in it
        for path in sorted((group, *group.rglob("*/")), reverse=True):
            path.rmdir()
    return not group.exists()


def scopes(groups: list[Path]) -> list[str]:
    """Names of the scopes of runs."""
    return sorted({path.name for group in groups for path in group.rglob("distlaunch-*.scope")})


@pytest.mark.skipif(not Path("/lib/systemd/systemd").exists(), reason="no systemd here that can run as a user's own")
def test_a_user_who_is_not_root_with_slow_login_files_and_an_own_systemd_can_run(distlaunch: Cli) -> None:
    with fixtures.make(2, ssh=True) as testbed:
        rack = make(distlaunch, testbed.ssh)
        testbed.ssh.directory.parent.chmod(0o711)  # to the key that the hosts let in
        groups = {host.name: cgroups(f"distlaunch-{os.getpid()}-{host.name}") for host in testbed.ssh.hosts}
        try:
            for host in testbed.ssh.hosts:
                settle(host, rack.cli.directory)
                start_systemd(host, rack.cli.directory, groups[host.name])
            run_as_alice(rack, groups)
        finally:
            rack.close()
            for host in testbed.ssh.hosts:
                host.kill()
            wait_until(
                "her processes to end", lambda: all(removed(group) for made in groups.values() for group in made)
            )


def run_as_alice(rack: Rack, groups: dict[str, list[Path]]) -> None:
    """Her agents are in scopes of her systemd, and leave nothing there."""
    hosts = rack.ssh.hosts
    text = rack.ssh.inventory.read_text().replace("ansible_user=root", "ansible_user=alice")
    rack.write("who.py", WHO)
    options = ("-i", str(rack.cli.write("alice.ini", text)), "--python", sys.executable, "--log-ranks", "all")
    homes = [host.path(Path(HOME)) for host in hosts]
    gates = [rack.gate(home / "gate", rank) for rank, home in enumerate(homes)]
    before = rack.left()

    launcher = rack.open("ansible", *options, "who.py", f"{HOME}/gate")
    launcher.until("user", count=2)
    run = rack.id_of("who")
    directories = [home / ".distlaunch/hosts/runs" / run for home in homes]
    agents = [
        json.loads((directory / f"nodes/{rank}/started.json").read_text()) for rank, directory in enumerate(directories)
    ]
    seen = [
        (Path(f"/proc/{agent['pid']}/cmdline").read_text(), Path(f"/proc/{agent['pid']}/cgroup").read_text())
        for agent in agents
    ]
    kept = [scopes(groups[host.name]) for host in hosts]
    refused = rack("--nodes", "2", "who.py", f"{HOME}/gate")  # by root, as another user of these hosts
    for gate in gates:
        gate.open()

    both = ", ".join(host.name for host in hosts)
    assert re.search(rf"{both}: in use by (alice|{UID})'s run {run} since \d\d:\d\d", refused.stderr), refused
    assert launcher.end() == 0, launcher
    assert sorted(launcher.stdout.splitlines()) == [f"[{rank}:{rank}] user {UID} home {HOME}" for rank in (0, 1)]
    for rank, (directory, (argv, cgroup)) in enumerate(zip(directories, seen, strict=True)):
        spec = f"{HOME}/.distlaunch/hosts/runs/{run}/nodes/{rank}/spec.json"
        words = argv.rstrip("\0").split("\0")
        assert words[0] == sys.executable
        assert words[1].endswith(".pyz")
        assert words[2:] == ["--spec", spec, "--node-rank", str(rank)]
        assert re.search(rf":/distlaunch-[^/]+/app.slice/distlaunch-{run}-{rank}-\d+\.scope$", cgroup, re.MULTILINE), (
            cgroup
        )
        assert len(kept[rank]) == 1
        assert agents[rank]["under"] is True
        assert (os.stat(directory).st_mode & 0o777, os.stat(directory).st_uid) == (0o700, UID)
    rack.wait_nothing_left(but=before)
    wait_until("the scopes to end", lambda: not any(scopes(made) for made in groups.values()), limit_s=60)
