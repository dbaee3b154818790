"""Text that is safe on a terminal: foreign text without escapes, and our own colours, which it cannot imitate."""

from __future__ import annotations

import os
import re

_STYLES = {"bold": "1", "red": "31", "green": "32", "yellow": "33", "dim": "2"}
_MARK = "".join(chr(0xFDD0 + byte % 32) for byte in os.urandom(8))
"""Stands for the start of our own escapes until text is written: random, so that foreign text cannot contain it."""

OURS = re.compile(f"({_MARK}[0-9;]+m)")


def ours(drawn: str) -> str:
    """Mark all escapes in a text as ours, as it was made from `plain` texts."""
    return drawn.replace("\033[", _MARK)


def styled(text: str, style: str) -> str:
    """The text in this style, for `encode`."""
    return f"{_MARK}{_STYLES[style]}m{text}{_MARK}0m"


def plain(text: object) -> str:
    """One line that is safe on a terminal: non-printable characters, even line ends, are escaped as in Python.

    So are C1 codes, characters that reorder or hide others (bidi, zero width), and bytes that are not UTF-8.
    """
    found = str(text)
    if found.isprintable():
        return found
    parts = OURS.split(found)
    return "".join(part if number % 2 else "".join(map(_shown, part)) for number, part in enumerate(parts))


def _shown(char: str) -> str:
    if char.isprintable():
        return char
    return f"\\x{ord(char) - 0xDC00:02x}" if 0xDC80 <= ord(char) <= 0xDCFF else repr(char)[1:-1]


def encode(text: str) -> bytes:
    """The text in UTF-8, with our own escapes. Bytes that were decoded with surrogateescape are restored."""
    text = text.replace(_MARK, "\033[")
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace")
