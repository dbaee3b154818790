"""What may stand for a login node in settings."""

from __future__ import annotations

from launcher.errors import SpecError


def check(text: str) -> None:
    """Raise `SpecError` for what ssh would take for an option, or for several words."""
    if text.startswith("-") or any(character.isspace() for character in text):
        raise SpecError(f"login {text!r} is not a host", hint="write what ssh takes: login = 'me@juno.example.org'")
