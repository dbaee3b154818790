"""The scripts of a rendered directory, which run its playbooks by hand."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from launcher.agent.secret_files import KEY_FILE
from launcher.backends._writing import forget_beside

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from launcher.backends.ansible.plan import AnsiblePlan


def scripts(plan: AnsiblePlan) -> dict[str, str]:
    """One for each playbook that a run needs, with Ansible's settings as distlaunch sets them."""
    secrets = "".join(
        f': "${{{name}:?export it first}}"  # its value goes to the workers\n' for name in plan.job_secrets
    )
    return {"start.sh": _script(plan, "start", secrets)} | {
        f"{name}.sh": _script(plan, name) for name in ("status", "collect", "stop")
    }


def inventory_flags(inventory: Sequence[str]) -> list[str]:
    """Ansible's options for an inventory of these sources."""
    return [part for source in inventory for part in ("--inventory", source)]


def forget(plan: AnsiblePlan, directory: Path) -> None:
    """Remove what the run that was rendered here before had and this one has not: the playbooks would take it."""
    has = {"setup.sh": plan.setup, "container.json": plan.container, "files.tar.gz": plan.snapshot}
    lacks = [name for name, content in has.items() if not content]
    forget_beside(directory, plan.job, [*lacks, KEY_FILE, *(() if plan.inventory else ("env/cmdline",))])


def _script(plan: AnsiblePlan, name: str, first: str = "") -> str:
    """Ansible would pass over hosts that are not in the inventory, and succeed: here they are an error."""
    settings = {**plan.settings, "ANSIBLE_HOST_PATTERN_MISMATCH": "error"}
    exports = "".join(f"export {setting}={shlex.quote(value)}\n" for setting, value in settings.items())
    words = [*inventory_flags(plan.inventory), "--extra-vars", "@env/extravars", f"project/{name}.yml"]
    return (
        f"#!/bin/sh\n# The playbook {name} for the run {plan.run_dir.name}, as distlaunch would.\nset -e\n{first}"
        f'cd "$(dirname "$0")"\n{exports}exec ansible-playbook {shlex.join(words)} "$@"\n'
    )
