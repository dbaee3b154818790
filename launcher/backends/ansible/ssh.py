"""Calls to the hosts of a started run: by the ssh command that Ansible used for each, several at a time."""

from __future__ import annotations

import json
import os
import re
import shlex
import threading
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import output
from launcher.agent.ssh import checked_call
from launcher.agent.ssh import login as login_programs
from launcher.agent.ssh.calls import ANSWER
from launcher.agent.system import trust as rule
from launcher.agent.terminal import attach
from launcher.backends._outputs import RemoteOutputs
from launcher.backends.ansible.handle import more_s
from launcher.errors import CommandError, LaunchError
from launcher.login.connection import Login
from launcher.login.hints import hints, last_line
from launcher.system import numbers, pipes, proc, trust
from launcher.system.question import Question

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from launcher.backends.ansible.handle import AnsibleHandle, Node


_AT_ONCE = 32
_CALL_S = 25.0
_ANSWER_BYTES = 16 << 20
_OPTIONS = (
    "-T",
    "-o",
    "BatchMode=yes",
    "-o",
    "ServerAliveInterval=5",
    "-o",
    "ServerAliveCountMax=4",
    "-o",
    "ForwardAgent=no",
)

_UNSHARED = ("-o", "ControlMaster=no", "-o", "ControlPersist=no")
"""A new connection is not shared: ssh would hide what its ProxyCommand prints. One that is open is used."""

_SHARED = "the directory of SSH's connections"
_NAMING = {
    "-o": re.compile(r'(\s*ControlPath(?:\s*=\s*|\s+))"?(.+?)"?\s*', re.IGNORECASE | re.DOTALL),
    "-S": re.compile("()(.+)", re.DOTALL),
}
"""Options of ssh that name a socket, and where in their value."""


def argv(node: Node, *call: str) -> tuple[str, ...]:
    """The command that runs a call of `agent.ssh.calls` on the node's host, as one quoted word to its login shell."""
    *options, host = own_words(node)
    more = _UNSHARED if login_of(node) else ()
    python = node["python"]
    # As in the playbooks, the host expands a tilde.
    first = python if python.startswith("~/") else shlex.quote(python)
    which = json.dumps([node["agent_path"], _if_gone(*call), node.get("mounts", ()), *trust.words()])
    # Without `site`, as calls import nothing from there: a third of the time that such a Python takes to start.
    remote = f"exec {first} " + shlex.join(("-S", "-c", _checking(), which, *call))
    return (*options[:1], *_OPTIONS, *more, *options[1:], host, f"/bin/sh -c {shlex.quote(remote)}")


def _if_gone(call: str, directory: str = "", *_more: str) -> str:
    """What a host is to answer that has lost its agent and the run's directory, as in memory at a reboot."""
    gone = json.dumps({"message": f"{directory} is gone"})
    answers = {"tail": f"{{}}\ne {gone}", "signal": '{"signalled": false}', "remove": "{}"}
    return f"\n{ANSWER}{answers[call]}\n" if call in answers else ""


def own_words(node: Node) -> list[str]:
    """The ssh command for the node's host, without sockets of shared connections that another user may have made.

    ssh does not check who owns a socket, so its owner could pose as the host; and any user can recreate a directory
    in /tmp.
    """
    found, before = [], ""
    for word in node["ssh"]:
        flag, value = (before, word) if before in _NAMING else (word[:2], word[2:])
        match = _NAMING[flag].fullmatch(value) if flag in _NAMING else None
        taken = match is not None and match[2] != "none" and not _is_ours(match[2])
        found.append(f"{word[: len(word) - len(value)]}{match[1]}none" if match and taken else word)
        before = word if len(word) == 2 else ""
    if login := login_of(node):
        found[-1:-1] = ["-o", f"ProxyCommand={_proxy(login)}"]
    return found


def login_of(node: Node) -> Login | None:
    """The login node that reaches the node's host, if there is one."""
    return Login.of(node.get("login", ""), node.get("cluster", ""))


@cache
def _proxy(login: Login) -> str:
    return login.proxy_command()


def forget_proxies() -> None:
    """Ask again which connection to a login node is used."""
    _proxy.cache_clear()


def reach(handle: AnsibleHandle) -> None:
    """Open the connection to the login node that the hosts are behind, if they are. Raises `NotLoggedInError`."""
    for login in {login_of(node) for node in handle.get("nodes", ())}:
        if login:
            login.words()


def _is_ours(socket: str) -> bool:
    """Whether no other user can create files in the socket's directory, which is created if it is missing."""
    path = os.path.expandvars(os.path.expanduser(socket.replace("%d", "~")))
    directory = os.path.abspath(os.path.dirname(re.split("[%$]", path)[0]))
    try:
        trust.make(_SHARED, directory)
        trust.require(_SHARED, directory, searched=True)
    except (LaunchError, OSError) as error:
        _tell_of(
            directory, error.message if isinstance(error, LaunchError) else f"{_SHARED} {directory!r}: {error.strerror}"
        )
        return False
    return True


@cache
def _tell_of(_directory: str, why: str) -> None:
    """Warn once per directory."""
    output.warn(f"{why}; connections are not shared")


@cache
def _checking() -> str:
    """The program that runs a call, compressed to fit on a command line."""
    texts = (Path(str(module.__file__)).read_text(encoding="utf-8") for module in (rule, checked_call))
    return proc.WITHOUT_HERE + login_programs.code(*texts)


def call(node: Node, *words: str) -> dict[str, Any]:
    """The answer; `CommandError` names the host and the reason if there is none."""
    try:
        done = proc.run_bounded(argv(node, *words), timeout_s=_CALL_S + more_s(node), limit_bytes=_ANSWER_BYTES)
    except CommandError as error:
        raise CommandError(f"{node['host']}: {error.message}") from error
    _, mark, answer = done.stdout.rpartition(f"\n{ANSWER}")
    if not mark:
        raise CommandError(f"{node['host']}: {last_line(done.stderr) or f'ssh ended with code {done.returncode}'}")
    try:
        return dict(numbers.loads(answer.splitlines()[0]))
    except (ValueError, TypeError, RecursionError, IndexError):
        raise CommandError(f"{node['host']}: its answer is not an agent's: {answer[:40]!r}") from None


def terminal(node: Node, rank: int | None) -> pipes.ProgramBridge:
    """A separate connection to the terminal of that rank's worker; without a rank, to a new shell."""
    words = ("shell",) if rank is None else ("attach",)
    of = (str(node["directory"]), str(node["rank"]), *(() if rank is None else (str(rank),)))
    bridge = pipes.ProgramBridge(argv(node, *words, *of))
    try:
        bridge.wait_for(attach.CONNECTED, _CALL_S + more_s(node))
    except CommandError as error:
        raise CommandError(
            f"{node['host']}: {error.message}", hint="\n        ".join(hints([error.message])) or None
        ) from error
    return bridge


def outputs(node: Node) -> RemoteOutputs:
    """A separate connection to the files that the node's workers have written."""
    spec = os.path.join(node["directory"], "nodes", str(node["rank"]), "spec.json")
    try:
        return RemoteOutputs(node["host"], pipes.ProgramBridge(argv(node, "outputs", spec)), more_s(node))
    except CommandError as error:
        raise CommandError(error.message, hint="\n        ".join(hints([error.message])) or error.hint) from error


def call_all(handle: AnsibleHandle, work: Callable[[Node], Any]) -> list[Any]:
    """What `work` returns for each node, in rank order, with a `CommandError` for each failed call.

    If interrupted, it does not wait for hosts that do not answer, as an executor would.
    """
    room = threading.BoundedSemaphore(_AT_ONCE)

    def one(node: Node) -> Any:
        with room:
            try:
                return work(node)
            except CommandError as error:
                return error

    calls = [Question(partial(one, node), "call") for node in handle["nodes"]]
    while not all(call.answered(1.0) for call in calls):
        pass
    return [call.answer() for call in calls]


def ask(node: Node, *words: str) -> dict[str, Any]:
    """The answer to a call; `CommandError` with the host's own words if it could not do that."""
    answer = call(node, *words)
    if "problem" in answer:
        raise CommandError(f"{node['host']}: {answer['problem']}")
    return answer


def check(answers: Sequence[Any]) -> None:
    """Raise one `CommandError` for all calls of `call_all` that have failed."""
    failed = [error.message for error in answers if isinstance(error, CommandError)]
    if failed:
        hint = "\n        ".join(hints(failed)) or None
        raise CommandError("; ".join(failed), hint=hint, in_part=len(failed) < len(answers))
