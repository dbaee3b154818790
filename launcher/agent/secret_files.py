"""Files next to spec.json, readable only by their owner, for what must not be in it."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

KEY_FILE, FUNCTION_FILE, NOTIFY_FILE = "key", "function", "notify"
_SHORTEST_KEY = 32


def beside(directory: str, *, alone: bool, calls: bool) -> Dict[str, Any]:
    """The fields of a job that these files hold. `alone`: it has one node; `calls`: it calls a function."""
    key = key_in(os.path.join(directory, KEY_FILE), alone=alone)
    function = function_in(os.path.join(directory, FUNCTION_FILE)) if calls else None
    return {"key": key, "function": function, "notify": notify_in(os.path.join(directory, NOTIFY_FILE))}


def key_in(path: str, *, alone: bool) -> str:
    """The run's key; a single node may make its own, as no other node needs it."""
    try:
        with open(path, encoding="ascii") as file:
            key = file.read().strip()
    except FileNotFoundError:
        if not alone:
            raise ValueError(f"{path} is missing: it holds the secret by which nodes authenticate each other") from None
        return os.urandom(32).hex()
    if len(key) < _SHORTEST_KEY:
        raise ValueError(f"{path} does not hold a key of at least {_SHORTEST_KEY} random characters")
    return key


def function_in(path: str) -> str:
    """The request to call a function."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: it holds the function to call") from None


def notify_in(path: str) -> Optional[str]:
    """Whom to tell of the run; None: no one."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except FileNotFoundError:
        return None
