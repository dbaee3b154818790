"""What sites and users add on a host: setup lines before its Python, and containers."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ansible.conftest import results

if TYPE_CHECKING:
    from tests.ansible.conftest import Rack

pytestmark = pytest.mark.ssh

SHOW = """
import os, sys
print(*(os.environ.get(name) for name in ("LOADED", "FROM_FILE", "TOKEN", "ENGINE")), sys.executable, flush=True)
"""

ENGINE = """#!/bin/sh
# Stands for a container runtime: notes its words, and runs what follows the image here.
printf '%s\n' "$(basename "$0") $*" >> {log}
[ "$1" = rm ] && exit
variables=
while [ "$1" != the/image ]; do
    [ "$1" = --env ] && variables="$variables $2=$(printenv "$2")"
    shift
done
shift
case $0 in
*/podman) exec env -i "PATH=$PATH" ENGINE=podman $variables "$@" ;;  # no other variables of its client
*) ENGINE=apptainer exec "$@" ;;
esac
"""


def test_setup_lines_run_before_the_python_of_each_host_and_a_failed_one_names_host_and_line(rack: Rack) -> None:
    rack.write("show.py", SHOW)
    lines = rack.write("lines.sh", "export FROM_FILE=file-of-$(uname -n)\n")
    path = f"PATH={sys.prefix}/bin:$PATH"
    setup = ("--setup", path, "--setup", "echo loads; cat; export LOADED=yes", "--setup", f"@{lines}")

    done = rack("--nodes", "2", "--log-ranks", "all", *setup, "--python", "python3", "show.py", python=None)
    assert done.exit_code == 0, done.stderr
    shown = re.findall(r"yes (file-of-n\d) None None (\S+)", done.stdout)
    assert sorted(shown) == [(f"file-of-n{n}", f"{sys.prefix}/bin/python3") for n in (1, 2)]

    wrong = {
        "test $(uname -n) = n1": "n2: setup failed with code 1: test $(uname -n) = n1\n",
        "no-such-module load x": "n2: setup failed with code 127: no-such-module load x (/bin/bash: line ",
        "if [": "n2: setup failed with code 2: see above (/bin/bash: eval: line ",
    }
    asked = (("--nodes", "2", "--setup", line, "--setup", "export LOADED=no", "show.py") for line in wrong)
    for said, failed in zip(wrong.values(), results(*(rack.start(*words) for words in asked)), strict=True):
        assert (failed.exit_code, said in failed.stderr) == (3, True), failed.stderr
        assert "hint: --setup lines run in bash on each host" in failed.stderr


def test_a_host_without_bash_is_named_if_setup_lines_need_it(rack: Rack) -> None:
    rack.write("show.py", SHOW)
    passwd = rack.cli.write("passwd", re.sub("(?m)^(root:.*:).*$", r"\1/bin/sh", Path("/etc/passwd").read_text()))
    host = rack.ssh.hosts[0]
    if Path("/bin/sh").resolve() == Path("/bin/bash").resolve():
        pytest.skip("/bin/sh is bash here")
    anew = {"ANSIBLE_SSH_ARGS": "-o ControlPath=none"}  # a connection that is open knows the shell that was root's
    for file, place in ((passwd, "/etc/passwd"), (Path("/dev/null"), "/bin/bash")):
        host.run(("mount", "--bind", str(file), place), check=True, cwd="/")
    try:
        done, wrong = results(
            rack.start("--nodes", "1", "--setup", "export LOADED=yes", "show.py", env=anew),
            rack.start("--nodes", "1", "--limit", "n2", "--setup", "true", "--python", "/no/python", "show.py"),
        )
    finally:
        for place in ("/etc/passwd", "/bin/bash"):
            host.run(("umount", place), check=True, cwd="/")

    assert (done.exit_code, wrong.exit_code) == (3, 3)
    assert "n1: /bin/bash cannot be started, in which --setup lines run\n" in done.stderr, done.stderr
    assert "n2: there is no /no/python (" in wrong.stderr, wrong.stderr


def test_agents_run_in_the_container_of_each_runtime_with_the_runs_variables_alone(rack: Rack) -> None:
    rack.write("show.py", SHOW)
    log = rack.cli.directory / "log"
    for name in ("podman", "apptainer"):
        rack.write(f"engines/{name}", ENGINE.replace("{log}", str(log))).chmod(0o755)
    common: tuple[str, ...] = (
        "--setup",
        f"PATH={rack.directory}/engines:$PATH; export LOADED=login",
        "--container-image",
        "the/image",
    )
    common += ("--container-mounts", "/a:/b", "--secret", "TOKEN", "--nodes", "1")
    token: dict[str, str | None] = {"TOKEN": "s3cr3t"}

    podman = rack(*common, "show.py", env=token)
    apptainer = rack(*common, "--container-runtime", "apptainer", "show.py", env=token)

    assert f"None None s3cr3t podman {sys.executable}" in podman.stdout, podman.stderr
    assert f"login None s3cr3t apptainer {sys.executable}" in apptainer.stdout, apptainer.stderr
    removed, first, second = log.read_text().splitlines()
    assert removed.startswith("podman rm --force distlaunch-show-")
    for part in (
        "run --rm --name distlaunch-show-",
        "--network host --ipc host --pid host",
        f"--volume {rack.remote}:{rack.remote}",
        "--volume /a:/b",
        "--env TOKEN the/image",
    ):
        assert part in first
    assert second.startswith(f"apptainer exec --bind {rack.remote}:{rack.remote} --bind ")
    assert "--bind /a:/b --pwd" in second
    assert "s3cr3t" not in log.read_text()
    missing, planned = results(
        rack.start(*common, "--container-runtime", "singularity", "show.py", env=token),
        rack.start("--dry-run", *common, "show.py", "--output", "json", env=token),
    )
    assert "n1: there is no singularity on its PATH, which --container-image needs" in missing.stderr
    assert planned.exit_code == 0, planned.stderr


def test_mounts_without_a_container_and_keys_in_setup_lines_are_refused(rack: Rack) -> None:
    rack.write("show.py", SHOW)

    mounts, key = results(
        rack.start("--container-mounts", "/a:/b", "show.py"),
        rack.start("--setup", "export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567", "show.py"),
    )

    assert "container-mounts without a container\n  hint: name one: --container-image IMAGE" in mounts.stderr
    assert "setup sets WANDB_API_KEY, whose value looks like a key" in key.stderr
    assert (mounts.exit_code, key.exit_code) == (2, 2)
