"""sshd in every host, with keys of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plugins import failures

if TYPE_CHECKING:
    from pathlib import Path

    from testbed import SshHosts

pytestmark = pytest.mark.ssh


def test_every_host_is_reached_by_name(ssh_hosts: SshHosts) -> None:
    names = [ssh_hosts.run(host, ("hostname",), check=True).stdout.strip() for host in ssh_hosts.hosts]

    assert names == ["n1", "n2", "n3", "n4"]


def test_arguments_arrive_unchanged(ssh_hosts: SshHosts) -> None:
    done = ssh_hosts.run(ssh_hosts.hosts[0], ("printf", "%s|", "a b", "$HOME", "'"), check=True)

    assert done.stdout == "a b|$HOME|'|"


def test_each_host_has_its_own_key(ssh_hosts: SshHosts) -> None:
    keys = [line.split()[2] for line in ssh_hosts.known_hosts.read_text().splitlines()]

    assert len(set(keys)) == len(ssh_hosts.hosts) == 4


def test_a_dead_host_refuses_connections_and_recovers(ssh_hosts: SshHosts) -> None:
    host = ssh_hosts.hosts[3]
    host.kill()
    dead = ssh_hosts.run(host, ("true",))
    ssh_hosts.start_sshd(host)

    assert dead.returncode == 255
    assert "Connection refused" in dead.stderr
    assert ssh_hosts.run(host, ("true",)).returncode == 0


def test_logs_of_its_daemons_are_kept_when_a_test_fails(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    assert ssh_hosts.run(ssh_hosts.hosts[1], ("true",)).returncode == 0

    failures.keep_logs(tmp_path)

    (log,) = tmp_path.glob(f"testbed-*/{ssh_hosts.hosts[1].name}.log")
    assert "Accepted publickey" in log.read_text()
