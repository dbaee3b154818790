"""What the text of a script shows without parsing it: to import `ast` takes 2 ms of each start."""

from __future__ import annotations

from typing import List, Optional

from . import origins

_IMPORTS = tuple(
    b"\n%b torch%b" % (start, end) for start in (b"import", b"from") for end in (b"\n", b"\r", b" ", b".", b",", b";")
)
_ENVIRONMENT = (b"environ", b"putenv")
_NOT_ONE_LINE = (b"\\\n", b"\r")


def surely_imports_torch(text: bytes) -> bool:
    """Whether a line of the script begins with an import of torch; if not, it may still import it."""
    return any(each in b"\n" + text for each in _IMPORTS)


def sets_no_variables(text: bytes, search: List[str]) -> bool:
    """Whether the script, with all that it imports of the user's own modules, sets no environment variable.

    False if that cannot be seen without parsing.
    """
    if any(word in text for word in (*_ENVIRONMENT, *_NOT_ONE_LINE)):
        return False
    names = _imported(text)
    return names is not None and all(name == "torch" or origins.own_files(name, search) is None for name in names)


def _imported(text: bytes) -> Optional[List[str]]:
    """The top-level names in all lines that import something; None if one is not a plain statement."""
    found: List[str] = []
    for line in text.decode("ascii", "replace").split("\n"):
        code = line.partition("#")[0]
        words = code.replace(",", " , ").split()
        if "import" not in code or not words:
            continue
        if ";" in code or words[0] not in ("from", "import"):
            return None
        ends = words[:2] if words[0] == "from" else words
        starts = [0, *(place for place, word in enumerate(ends) if word == ",")]
        names = [word.partition(".")[0] for place in starts for word in ends[place + 1 : place + 2]]
        if len(names) != len(starts) or not all(map(str.isidentifier, names)):
            return None
        found += names
    return found
