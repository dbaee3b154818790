"""A small disk that several hosts see at the same path."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from testbed import packages, processes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from testbed.hosts import Host

_LEAST_BYTES = 256 << 20
"""Of a btrfs."""

_LIMIT_S = 60


@contextmanager
def small(directory: Path, hosts: Sequence[Host], size_bytes: int) -> Iterator[None]:
    """These hosts see a disk of this size at the directory; this machine does not."""
    with _mounted(directory, hosts, size_bytes, ("mkfs.ext4", "-q", "-m", "0")):
        yield


@contextmanager
def with_quota(directory: Path, hosts: Sequence[Host], quota_bytes: int) -> Iterator[None]:
    """The same with a quota, which holds for root, too.

    Raises:
        NotAvailableError: there is no btrfs.
    """
    packages.require(packages.QUOTAS)
    with _mounted(directory, hosts, _LEAST_BYTES, ("mkfs.btrfs", "--quiet")):
        for words in (("quota", "enable"), ("qgroup", "limit", str(quota_bytes))):
            hosts[0].run(("btrfs", *words, str(directory)), check=True, cwd="/")
        yield


@contextmanager
def _mounted(directory: Path, hosts: Sequence[Host], size_bytes: int, make: Sequence[str]) -> Iterator[None]:
    image = directory.with_name(f"{directory.name}.img")
    with ExitStack() as undo:
        undo.callback(image.unlink)
        with image.open("wb") as file:
            file.truncate(size_bytes)
        processes.run((*make, str(image)), timeout_s=_LIMIT_S, check=True)
        found = processes.run(("losetup", "--find", "--show", str(image)), timeout_s=_LIMIT_S, check=True)
        device = found.stdout.strip()
        with ExitStack() as attached:  # from its first mount on, the kernel frees it with the last
            attached.callback(processes.run, ("losetup", "--detach", device), timeout_s=_LIMIT_S, check=True)
            for host in hosts:
                host.run(("mount", device, str(directory)), check=True, cwd="/")
                undo.callback(host.run, ("umount", "--lazy", str(directory)), check=True, cwd="/")
        yield
