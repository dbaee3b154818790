"""A host as the inventory and Ansible's settings describe it: how it is reached, and our own variables."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import distlaunch_ssh
from ansible import constants
from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.loader import connection_loader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_DISCOVERED = ("", "auto", "auto_legacy", "auto_silent", "auto_legacy_silent")
"""Values of ansible_python_interpreter that name no program."""


class Target(NamedTuple):
    """A host of the inventory."""

    ssh: list[str] | None
    """The command that reaches it; None if it is not reached by ssh, or is refused."""

    proxied: bool
    """Whether it is reached through the login node."""

    refused: str
    """Why it is refused; empty if it is not."""

    connection: str
    python: str
    workers: str
    addr: str
    shared: bool
    """Whether other hosts may share its disk."""


class Play(NamedTuple):
    """What the play and the command line say for all hosts; a host's variables come first.

    The task's own play context has the variables of its first host.
    """

    task: Any
    context: Any
    """The play context, for what a connection plugin needs one for."""

    arguments: Mapping[str, Any]
    """Of Ansible's command line."""

    @property
    def become(self) -> bool:
        """Whether it has another user than the connection's."""
        return bool(self.task.become)

    @property
    def become_user(self) -> str:
        """That user."""
        return str(self.task.become_user or "root")

    @property
    def asks_for_password(self) -> bool:
        """Whether the command line gives one."""
        return bool(self.arguments.get("ask_pass") or self.arguments.get("connection_password_file"))


def target(
    host: str,
    hostvars: Mapping[str, Any],
    play: Play,
    *,
    rule: Any,
    trusted: Sequence[str],
    here: str | None,
    proxy: str,
) -> Target:
    """The host by its variables and the play. Relative paths: in `here`, then next to the inventory.

    `proxy`: the ProxyCommand for hosts that have none.
    """
    if host not in hostvars:
        raise AnsibleActionFail(f"{host} is not in the inventory")
    known = hostvars[host]
    transport = str(known.get("ansible_connection") or "ssh")
    argv, proxied, refused = None, False, ""
    if transport in ("ssh", "smart", "ansible.builtin.ssh"):
        connection = _connection(host, known, play)
        places = [here or os.getcwd(), str(known.get("inventory_dir") or os.getcwd())]
        try:
            _check_user(known, connection, play)
            argv, proxied = distlaunch_ssh.ssh_argv(connection, rule, trusted, list(dict.fromkeys(places)), proxy)
        except distlaunch_ssh.RefusedError as error:
            refused = str(error)
    return Target(
        ssh=argv,
        proxied=proxied,
        refused=refused,
        connection=transport,
        python=_python(str(known.get("distlaunch_python") or known.get("ansible_python_interpreter") or "")),
        workers=str(known.get("distlaunch_workers") or "auto"),
        addr=str(known.get("distlaunch_addr") or ""),
        shared=str(known.get("distlaunch_shared", True)).strip().lower() not in ("false", "no", "off", "0"),
    )


def _python(named: str) -> str:
    """The program; the default in place of how Ansible is to look for one."""
    return "python3" if named in _DISCOVERED else named.removeprefix("/usr/bin/env ").strip()


def _connection(host: str, known: Mapping[str, Any], play: Play) -> Any:
    """Ansible's own ssh connection plugin, with the host's settings."""
    connection = connection_loader.get("ssh", play.context, new_stdin=None)
    names = [name for name in constants.config.get_plugin_vars("connection", "ssh") if name in known]
    variables = {"inventory_hostname": host, **{name: known[name] for name in names}}
    user = {"remote_user": play.task.remote_user} if play.task.remote_user else {}
    connection.set_options(task_keys=user, var_options=variables)
    return connection


def _check_user(known: Mapping[str, Any], connection: Any, play: Play) -> None:
    """Refuse settings that give Ansible's own tasks another user, or other credentials, than the run would have."""
    user = str(known.get("ansible_become_user") or play.become_user)
    if boolean(known.get("ansible_become", play.become), strict=False) and user != connection.get_option("remote_user"):
        raise distlaunch_ssh.RefusedError(
            f"become is set, to {user}: a run is its ssh user's; set ansible_user={user} and ansible_become=false"
        )
    for name in ("password", "private_key", "private_key_passphrase"):
        with contextlib.suppress(AnsibleError, KeyError):  # this Ansible does not know the option
            if connection.get_option(name) or (name == "password" and play.asks_for_password):
                what = (
                    f"{name.replace('_', ' ')} is given (ansible_{name}), and only keys that ssh itself finds are used"
                )
                raise distlaunch_ssh.RefusedError(f"a {what}: ssh-copy-id, ssh-agent, or ansible_ssh_private_key_file")
