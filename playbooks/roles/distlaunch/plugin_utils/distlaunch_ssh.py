"""The ssh command by which Ansible reaches a host: what it executes and reads here, and where it shares connections."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_SETTINGS_S = 10.0


def ssh_argv(
    connection: Any, rule: Any, trusted: Sequence[str], places: Sequence[str], proxy: str
) -> tuple[list[str], bool]:
    """How Ansible reaches the host that its ssh connection plugin is set to, as an argument list that ends in the host.

    Files that it names are looked up in `places`, as ssh is started elsewhere, also to follow the run. Also returns
    whether it is reached by `proxy`, a ProxyCommand for hosts that have none. Raises `RefusedError`.
    """
    argv = [connection.get_option("ssh_executable") or "ssh"]
    for option in ("ssh_args", "ssh_common_args", "ssh_extra_args"):
        argv += shlex.split(connection.get_option(option) or "")
    if connection.get_option("host_key_checking") is False:
        argv += ["-o", "StrictHostKeyChecking=no"]  # the user's own setting, which Ansible obeys
    key = os.path.expanduser(str(connection.get_option("private_key_file") or ""))
    if key and not os.path.isabs(key) and _found(key, places) == key:
        raise RefusedError(f"its key file {key} is neither in {' nor in '.join(places)}")
    options = (("Port", "port"), ("IdentityFile", key), ("User", "remote_user"), ("ConnectTimeout", "timeout"))
    for name, option in options:
        value = option if name == "IdentityFile" else connection.get_option(option)
        if value:
            argv += ["-o", f"{name}={value}"]
    argv.append(str(connection.get_option("host")))
    words = _whole_paths(list(map(str, argv)), places)
    for path in _programs(words):
        found = rule.problem(os.path.expanduser(path), trusted)
        if found:
            raise RefusedError(f"what SSH executes here: {found.message}; {found.hint}")
    if not (proxy and not _has_proxy(words)):
        proxy = ""
    directory = os.path.expanduser(str(connection.get_option("control_path_dir")))
    words = _shared(words, directory, lambda path: rule.problem(path, trusted, searched=True), rule.make, proxy)
    return words, bool(proxy)


def proxied(words: Sequence[str], proxy: str) -> list[str]:
    """The words with that ProxyCommand; one that stands before it wins, also `none`."""
    return [*words[:-1], "-o", f"ProxyCommand={proxy}", words[-1]]


def _has_proxy(words: Sequence[str]) -> bool:
    """Whether ssh's settings for the host name a proxy."""
    try:
        done = subprocess.run(
            [words[0], "-G", *words[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SETTINGS_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False  # its use reports it
    lines = done.stdout.decode(errors="replace").splitlines()
    return any(line.partition(" ")[0] in ("proxycommand", "proxyjump") for line in lines)


class RefusedError(Exception):
    """The inventory or Ansible's settings ask for something that is refused."""


_FILES = ("identityfile", "certificatefile", "userknownhostsfile", "globalknownhostsfile", "revokedhostkeys")
"""Options of ssh that name files."""


def _whole_paths(words: Sequence[str], places: Sequence[str]) -> list[str]:
    """The words with relative paths of files made absolute."""
    found: list[str] = []
    before = ""
    for word in words:
        flag, value = (before, word) if before in ("-i", "-F", "-o") else (word[:2], word[2:])
        start = word[: len(word) - len(value)]
        if flag in ("-i", "-F") and value:
            value = _found(value, places)
        elif flag == "-o":
            match = re.match(r"(\w*)(\s*=\s*|\s+|)(.*)", value, re.DOTALL)
            if match and match[1].lower() in _FILES:
                value = match[1] + match[2] + " ".join(_found(one, places) for one in match[3].split(" "))
        found.append(start + value)
        before = word if len(word) == 2 else ""
    return found


def _programs(words: list[str]) -> list[str]:
    """The files that decide what an ssh command executes here: ssh itself if it is a path, and its settings (`-F`)."""
    settings = [
        word[2:] or following for word, following in zip(words, [*words[1:], ""], strict=True) if word[:2] == "-F"
    ]
    return [word for word in words[:1] if "/" in word] + [path for path in settings if path != "none"]


def _shared(
    words: list[str], directory: str, problem: Callable[[str], Any], make: Callable[[str], Any], proxy: str = ""
) -> list[str]:
    """The words, with a socket in that directory if connections are shared. ssh does not check who owns the socket."""
    if any("ControlPersist" in word for word in words) and not any("controlpath" in word.lower() for word in words):
        import hashlib

        make(directory)
        path = os.path.join(
            directory, hashlib.sha256("\0".join([*words, *filter(None, [proxy])]).encode()).hexdigest()[:10]
        )
        words[-1:-1] = ["-o", f"ControlPath={path}"]
    for place in _control_directories(words):
        found = problem(place)
        if found:
            mend = found.hint if place == directory else "name one of your own: -o ControlPath=~/.ssh/cm-%C"
            raise RefusedError(f"the directory of SSH's connections here: {found.message}; {mend}")
    return words


def _control_directories(words: Sequence[str]) -> Iterator[str]:
    """The directories of the shared connections' sockets that these words name, up to the first placeholder."""
    for before, word in zip(["", *words], words, strict=False):
        text = word if before in ("-o", "-S") else word[2:] if word[:2] in ("-o", "-S") else ""
        value = re.fullmatch(r'\s*ControlPath(?:\s*=\s*|\s+)"?(.+?)"?\s*', text, re.IGNORECASE | re.DOTALL)
        path = value[1] if value else text if "-S" in (before, word[:2]) else ""
        if path not in ("", "none"):
            path = os.path.expandvars(os.path.expanduser(path.replace("%d", "~")))
            yield os.path.dirname(re.split("[%$]", path)[0])


def _found(path: str, places: Sequence[str]) -> str:
    """The path in the first of these directories that has it; unchanged if none does, or if it is not relative."""
    whole = [os.path.join(place, path) for place in places if path and not path.startswith(("/", "~", "%", "$"))]
    return next((one for one in whole if os.path.exists(one)), path)
