"""Text that a terminal only shows: what others wrote without its escapes, and our own colours, which nobody else can write."""

from __future__ import annotations

import os
import re

_STYLES = {"bold": "1", "red": "31", "green": "32", "yellow": "33", "dim": "2"}
_MARK = "".join(chr(0xFDD0 + byte % 32) for byte in os.urandom(8))
"""Stands for the beginning of an escape of ours, until it is written: no text can hold one that nobody outside knows."""

OURS = re.compile(f"({_MARK}[0-9;]+m)")


def ours(drawn: str) -> str:
    """A text whose escapes are ours, as it was made of `plain` texts."""
    return drawn.replace("\033[", _MARK)


def styled(text: str, style: str) -> str:
    """The text in that style, for `encode`."""
    return f"{_MARK}{_STYLES[style]}m{text}{_MARK}0m"


def plain(text: object) -> str:
    """One line that a terminal only shows: whatever is not printable is written as Python does, line ends and C1 codes, too.

    So are characters that reorder or hide others (bidi, zero width), and bytes that are no UTF-8.
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
    """UTF-8, with our own escapes; bytes that came in with surrogateescape go out as they were."""
    text = text.replace(_MARK, "\033[")
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace")
