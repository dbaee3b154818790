"""Users by their names."""

from __future__ import annotations


def name_of(uid: int) -> str:
    """The user's name, or the number if that has none, as in many containers."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
