"""The login nodes of the clusters in the settings, and whether a connection to each is open."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from launcher import backends
from launcher.errors import RequestError
from launcher.login.connection import Login
from launcher.settings import config
from launcher.system import names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.results.cluster import LoginState


def known() -> dict[str, Login]:
    """The login nodes by the names of their clusters."""
    settings = config.load()
    found = {}
    for name in settings.cluster_names():
        profile = settings.cluster(name, lambda kind: backends.load(kind).options)
        if address := profile.values.get("login"):
            found[name] = Login(str(address.value), name)
    return found


def named(name: str) -> Login:
    """The login node of the cluster of this name, or of this address. Raises `RequestError` if there is none."""
    found = known()
    if name in found:
        return found[name]
    settings = config.load()
    if name in settings.cluster_names():
        raise RequestError(f"cluster {name!r} has no login node", hint="its settings would name it: login = ...")
    if "@" in name or "." in name or any(each.address == name for each in found.values()):
        return Login(name)
    raise RequestError(f"unknown cluster {name!r}", hint=names.hint(name, [*found]) if found else None)


def states(logins: Sequence[Login]) -> list[LoginState]:
    """Whether a connection to each is open; opens none."""
    return [
        {"cluster": each.cluster or None, "login": each.address, "open": each.is_open(), "lasts": None}
        for each in logins
    ]


def opened(login: Login) -> LoginState:
    """Open the connection; at a terminal, ssh asks the user whatever it needs. Raises `NotLoggedInError`."""
    lasts = None
    if os.isatty(0):
        lasts = login.open_at_terminal()
    else:
        login.words()
    return {"cluster": login.cluster or None, "login": login.address, "open": True, "lasts": lasts}


def closed(login: Login) -> LoginState:
    """Close the connection."""
    login.close()
    return states([login])[0]
