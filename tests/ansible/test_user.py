"""A user of the hosts who is nobody: not root, no sudo, with login files that talk and are slow, and a systemd of his own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ansible.conftest import make
from tests.testbed import fixtures, wait_until

if TYPE_CHECKING:
    from tests.conftest import Cli
    from tests.testbed import Host

pytestmark = pytest.mark.ssh

UID = 4242
HOME = "/home/alice"
RUNTIME = f"/run/user/{UID}"
LOGIN = "echo WELCOME; echo 'to the machine' >&2; sleep 1; printf 'no newline'\n"
SYSTEMD_RUN = f"""#!/bin/sh
echo "$XDG_RUNTIME_DIR $@" >> {HOME}/systemd-run.log
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""
WHO = """
import os, time
print("user", os.getuid(), "home", os.environ["HOME"], flush=True)
while not os.path.exists(os.path.join(os.environ["HOME"], "go")):
    time.sleep(0.1)
"""


def settle(host: Host, folder: Path) -> None:
    """Let alice live on the host, who can run this interpreter. All of it is in the host's own mounts, and ends with it."""

    def run(*argv: str) -> None:
        host.run(argv, check=True, cwd="/")

    def own_disk(path: str) -> Path:
        run("mkdir", "-p", path)
        run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", path)
        return host.path(Path(path))

    def place(path: str, text: str, *, mode: int = 0o644) -> None:
        file = folder / f"{host.name}-{Path(path).name}"
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
    place("/usr/bin/systemd-run", SYSTEMD_RUN, mode=0o755)
    (own_disk("/home") / "alice").mkdir()
    (host.path(Path(HOME)) / ".bashrc").write_text(LOGIN)
    (own_disk("/var/lib/systemd/linger") / "alice").touch()
    (own_disk("/run/user") / f"{UID}/systemd/private").mkdir(parents=True)
    run("chown", "-R", f"{UID}:{UID}", HOME, RUNTIME)


@pytest.mark.skipif(not Path("/usr/bin/systemd-run").exists(), reason="no systemd-run to stand in for")
def test_a_user_who_is_not_root_with_slow_login_files_and_a_systemd_of_his_own(distlaunch: Cli) -> None:
    with fixtures.make(2, ssh=True) as testbed:
        rack = make(distlaunch, testbed.ssh)
        testbed.ssh.folder.parent.chmod(0o711)  # to the key that the hosts let in
        for host in testbed.ssh.hosts:
            settle(host, rack.cli.folder)
        text = testbed.ssh.inventory.read_text().replace("ansible_user=root", "ansible_user=alice")
        rack.write("who.py", WHO)
        options = ("-i", str(rack.cli.write("alice.ini", text)), "--python", sys.executable, "--log-ranks", "all")

        launcher = rack.cli.start("ansible", *options, "who.py")
        wait_until(
            "both workers",
            lambda: sum(b"user" in path.read_bytes() for path in rack.cli.runs.glob("who*/nodes/*/stream")) == 2,
            limit_s=120,
        )
        run = next(rack.cli.runs.glob("who*")).name
        homes = [host.path(Path(HOME)) for host in testbed.ssh.hosts]
        logs = [(home / "systemd-run.log").read_text() for home in homes]
        for home in homes:
            (home / "go").touch()
        stdout, stderr = launcher.communicate(timeout=120)

        assert launcher.returncode == 0, stderr
        assert sorted(stdout.decode().splitlines()) == [f"[{rank}:{rank}] user {UID} home {HOME}" for rank in (0, 1)]
        for rank, (home, log) in enumerate(zip(homes, logs, strict=True)):
            words = log.split()
            unit = words[5]
            assert words[:5] == [RUNTIME, "--user", "--scope", "--quiet", "--collect"]
            assert unit.startswith(f"--unit=distlaunch-{run}-{rank}-")
            folder = home / ".distlaunch/hosts/runs" / run
            spec = f"{HOME}/.distlaunch/hosts/runs/{run}/nodes/{rank}/spec.json"
            assert words[6:8] == ["--", sys.executable]
            assert words[8].endswith(".pyz")
            assert words[9:] == ["--spec", spec, "--node-rank", str(rank)]
            assert (os.stat(folder).st_mode & 0o777, os.stat(folder).st_uid) == (0o700, UID)
        wait_until("nothing to be left of it", lambda: not rack.left(), limit_s=60)
