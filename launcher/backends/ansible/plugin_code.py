"""Bytecode of our plugins for Ansible: a run has its own copy of them, which each of its Pythons would compile anew."""

from __future__ import annotations

import importlib.util
import marshal
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path

from launcher.system import install

_CHECKED = (0b11).to_bytes(4, "little")


@cache
def beside_texts() -> dict[str, bytes]:
    """Files to write beside the plugins' texts, by their paths in the playbooks' directory; other Pythons ignore them.

    Python compares each with its text, as its flags demand (https://peps.python.org/pep-0552).
    """
    root, found = install.data("playbooks"), {}
    for path in sorted(root.rglob("*.py")):
        code = SourceFileLoader(path.stem, str(path)).get_code(path.stem)
        head = importlib.util.MAGIC_NUMBER + _CHECKED + importlib.util.source_hash(path.read_bytes())
        where = Path(importlib.util.cache_from_source(path)).name
        found[str(path.relative_to(root).parent / "__pycache__" / where)] = head + marshal.dumps(code)
    return found
