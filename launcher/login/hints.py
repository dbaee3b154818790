"""What to do about ssh's errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

NO_SESSION = "Session open refused by peer"

HINTS = {
    NO_SESSION: "its sshd lets only so many commands through one connection (MaxSessions): try again when one that "
    "follows a run has ended",
    "Host key verification failed": "its key is not known here: compare its fingerprint, then ssh there once and "
    "accept it (or ssh-keyscan HOST >> ~/.ssh/known_hosts)",
    "REMOTE HOST IDENTIFICATION HAS CHANGED": "another host answers there now, or someone intercepts the connection: "
    "ask its admin, then ssh-keygen -R HOST",
    "Permission denied": "no key of yours is let in there, and passwords are not asked for: ssh-copy-id HOST, or name "
    "the key with ansible_ssh_private_key_file",
    "Could not resolve hostname": "its name is not known here: give ansible_host in the inventory",
    "Connection refused": "nothing listens on its SSH port: is it up, is ansible_port right?",
    "No route to host": "it is down, or a network is",
    "timed out": "it is down, or a firewall drops what is sent there",
    "Stdio forwarding request failed": "the login node does not reach its SSH port: it is down, its name is not known "
    "there, or the sshd of the login node forwards nothing (AllowTcpForwarding)",
    "not logged in to": "that opens the connection to the login node",
}
"""By words of the message, for a host of an inventory."""

LOGIN_HINTS = {
    **HINTS,
    "Could not resolve hostname": "its name is not known here: is `login` right? `ssh` must know it",
    "Connection refused": "nothing listens on its SSH port: is it up, is its port in ~/.ssh/config right?",
}
"""The same, for a login node."""


def last_line(said: str) -> str:
    """The line of ssh's stderr that gives the reason."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in lines if any(words in line for words in HINTS)), lines[-1] if lines else "")


def hints(messages: Sequence[str], known: dict[str, str] = HINTS) -> list[str]:
    """What to do about the messages that are known."""
    return list(dict.fromkeys(text for message in messages for words, text in known.items() if words in message))
