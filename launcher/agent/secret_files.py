"""Files next to spec.json, readable only by their owner, for what must not be in it."""

from __future__ import annotations

import os

KEY_FILE, FUNCTION_FILE = "key", "function"
_SHORTEST_KEY = 32


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
