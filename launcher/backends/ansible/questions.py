"""Questions to the hosts of an inventory that start nothing: a playbook in a temporary directory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.backends.ansible import playbook
from launcher.payload import agent_archive

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from launcher.backends.ansible.inventory import Host


def ask(
    name: str, sources: Sequence[str], hosts: Sequence[Host], settings: Mapping[str, str], variables: Mapping[str, Any]
) -> playbook.Playbook:
    """Run that playbook to its end; it has the answers, and the problems of hosts that do not answer."""
    variables = {"distlaunch_hosts": [host.name for host in hosts], **variables}
    with tempfile.TemporaryDirectory(prefix="distlaunch-") as scratch:
        directory = Path(scratch)
        playbook.write_directory(
            directory, playbook.directory_texts(sources, settings, variables), {"agent.pyz": agent_archive.packed()}
        )
        running = playbook.Playbook(directory, name, shows=False)
        running.run({})
    return running
