"""The options of `distlaunch ansible`."""

from __future__ import annotations

from typing import ClassVar

from launcher.login import address
from launcher.settings.option import duration, not_below, one_of, option
from launcher.spec import parse_size
from launcher.system.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsibleOptions:
    """Which hosts to use, and what to send there."""

    per_role: ClassVar[tuple[str, ...]] = ("limit", "container_image", "container_mounts", "container_runtime")

    inventory: tuple[str, ...] = option(
        (),
        metavar="PATH|H1,H2,",
        flags=("-i", "--inventory"),
        help="Ansible inventory, or hosts separated by commas; otherwise ansible.cfg's.",
        executes=True,
        path="whole",
        group="resources",
    )
    login: str = option(
        "",
        metavar="[USER@]HOST",
        help="Login node that reaches the hosts, as ssh takes it, unless they have a proxy of their own.",
        executes=True,
        check=address.check,
        group="network",
    )
    limit: str = option("", metavar="PATTERN", help="Only these hosts or groups of the inventory.", group="resources")
    exclude: str = option("", metavar="H1,H2", help="Hosts of the inventory to exclude.", group="resources")
    spares: int = option(
        0,
        metavar="K",
        help="Spare hosts that replace hosts that fail the preflight, or with --max-restarts are lost.",
        check=not_below("spares"),
        group="resources",
    )
    wait: bool = option(
        False, help="Wait for hosts, or their GPUs, that another run has, in order of arrival.", group="resources"
    )
    wait_timeout: str = option(
        "24h",
        metavar="DURATION",
        help="Maximum time to wait with --wait.",
        check=duration("wait-timeout"),
        group="resources",
    )
    share: bool = option(
        False, help="Use hosts and GPUs even if another run has them, and take no leases.", group="resources"
    )
    partial: bool = option(
        False,
        help="Use only hosts that no other run has: --nodes of the inventory, or without --nodes all of them.",
        group="resources",
    )
    remote_dir: str = option(
        "~/.distlaunch/hosts",
        metavar="DIR",
        help="Directory on the hosts for agents, files and runs.",
        executes=True,
        group="files",
    )
    snapshot_limit: str = option(
        "200MB",
        metavar="SIZE",
        help="Maximum size of the working directory to upload.",
        check=lambda text: parse_size(text, "snapshot-limit"),
        group="files",
    )
    project_dir: bool = option(
        True,
        help="On the hosts, start in a directory that stays the same for launches from this directory.",
        group="files",
    )
    in_place: bool = option(
        False, help="Use the working directory, which the hosts see; upload no files.", executes=True, group="files"
    )
    host_timeout: int = option(
        120,
        metavar="SECONDS",
        help="Maximum time for one step on a host.",
        check=not_below("host-timeout", 1),
        group="network",
    )
    setup: tuple[str, ...] = option(
        (),
        metavar="LINE|@FILE",
        help="Shell line, or file of such lines, to run on each host before its Python: module load ...",
        adds_up=True,
        repeats=True,
        executes=True,
        path="at",
        group="job",
    )
    container_image: str = option(
        "", metavar="IMAGE", help="Container image for the agents and workers.", executes=True, path="dots", group="job"
    )
    container_mounts: tuple[str, ...] = option(
        (),
        metavar="SRC:DST",
        help="Directory to mount in the container, besides the working directory and the run's.",
        adds_up=True,
        executes=True,
        group="files",
    )
    container_runtime: str = option(
        "podman",
        metavar="podman|docker|apptainer|singularity",
        help="Container runtime: a program on the hosts.",
        executes=True,
        check=one_of("container-runtime", "podman", "docker", "apptainer", "singularity"),
        group="job",
    )
