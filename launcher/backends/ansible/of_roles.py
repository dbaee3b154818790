"""Which hosts of the inventory the roles of a run get."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.errors import SpecError
from launcher.system import amounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.backends.ansible.inventory import Host
    from launcher.backends.ansible.options import AnsibleOptions
    from launcher.spec import JobSpec


def hosts(options: AnsibleOptions, spec: JobSpec, matching: Callable[[str], list[Host]]) -> list[Host]:
    """The hosts in the order of their node ranks. `matching`: those of a pattern of the inventory.

    The role with the fewest hosts to choose from chooses first. Raises `SpecError` if a role gets too few.
    """
    for name in ("spares", "partial"):
        if getattr(options, name):
            raise SpecError(f"--{name} does not go with roles", hint="each role has the number of hosts that it names")
    of_limit: dict[str, list[Host]] = {}
    for role in spec.roles:
        if role.options.limit not in of_limit:
            of_limit[role.options.limit] = matching(role.options.limit)
    taken: dict[str, Host] = {}
    chosen: dict[str, list[Host]] = {}
    for role in sorted(spec.roles, key=lambda role: len(of_limit[role.options.limit])):
        found, wanted = of_limit[role.options.limit], role.job.nodes.max
        free = [host for host in found if host.name not in taken]
        if len(free) < wanted:
            group = f" of {role.options.limit}" if role.options.limit else " of the inventory"
            left = f", of which other roles have {len(found) - len(free)}" if len(free) < len(found) else ""
            has = f"{amounts.counted(len(found), 'host')}{left}"
            raise SpecError(
                f"role {role.name}: {amounts.counted(wanted, 'node')}{group} are asked for, which has {has}",
                hint="hosts: " + ", ".join(host.name for host in found[:20]),
            )
        chosen[role.name] = free[:wanted]
        taken |= {host.name: host for host in free[:wanted]}
    return [host for role in spec.roles for host in chosen[role.name]]
