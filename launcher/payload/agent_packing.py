"""Packs the agent's sources into archives."""

from __future__ import annotations

import io
import json
import re
import zipfile
import zlib
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from itertools import groupby
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

import launcher
from launcher.agent import bytecode
from launcher.payload import agent_start

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_AGENT = Path(launcher.__file__).parent / "agent"
_PACKAGE = "distlaunch_agent"  # differs from the names of scripts' own modules
_MAIN = f"from {_PACKAGE}.__main__ import main\n\nmain()\n"
_MAIN_WITH_BYTECODE = f"from {_PACKAGE} import bytecode\n\nbytecode.use()\n{_MAIN}"
_BEFORE_BYTECODE = (f"{_PACKAGE}/__init__.py", f"{_PACKAGE}/bytecode.py")
"""What is imported before that: they have bytecode in the usual form."""

_ALONE = tuple(f"{_PACKAGE}/{name}" for name in ("bytecode.py", "ssh/boot.py", "ssh/login.py", "system/trust.py"))
"""What is executed from its place in the bytecode."""

_PLACES = "places.json"
"""Tells these places: of each its size, and where in the bytecode it begins."""

_FIND_PARTS = f"""import sys

import {_PACKAGE}

{_PACKAGE}.__path__ += [f"{{sys.path[0]}}.{{number}}/{_PACKAGE}" for number in range(1, %d)]
"""
_EPOCH = (1980, 1, 1, 0, 0, 0)
PART_BYTES = 110_000
"""About the size of one part."""

_ENTRY_BYTES = 200
"""What a member takes in an archive besides its content."""

_LONG = rb'"{3}(?:[^\\]|\\.)*?"{3}|\'{3}(?:[^\\]|\\.)*?\'{3}'
_SHORT = rb'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\''
_TOKEN = re.compile(
    rb"(?P<comment>[ \t]*#[^\n]*)"
    rb"|(?P<statement>(?:\A|(?<=\n)(?<!\\\n))[ \t]*(?P<text>%b|%b)(?=[ \t]*(?:#[^\n]*)?\n))"
    rb"|%b|%b|(?P<opens>[(\[{])|(?P<closes>[)\]}])" % (_LONG, _SHORT, _LONG, _SHORT),
    re.DOTALL,
)
"""Where a comment, a text or a bracket begins in Python before 3.12, whose f-strings contain no quotes of their own."""


def whole(sources: Sequence[str]) -> bytes:
    """The agent as a zipapp.

    It includes bytecode, which saves nodes with the same Python half of the agent's start; others use the source.
    """
    paths = {_name_of(path): path for path in map(Path, sources)}
    members = {name: path.read_bytes() for name, path in paths.items()}
    codes = {name: bytecode.dump(_code(path, f"agent.pyz/{name}")) for name, path in paths.items()}
    packed = bytecode.pack(_modules(members, codes))
    for name in _BEFORE_BYTECODE:
        unchecked = MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)  # PEP 552
        members[f"{name}c"] = unchecked + codes[name]
    places = {name: (len(codes[name]), packed.index(codes[name])) for name in _ALONE}
    members[_PLACES] = json.dumps(places).encode()
    return _archive(_MAIN_WITH_BYTECODE, members, stored={bytecode.member(MAGIC_NUMBER): packed})


def _modules(texts: Mapping[str, bytes], codes: Mapping[str, bytes]) -> bytecode.Modules:
    """Each module's code, compressed if no start imports it."""
    about = {name: bytecode.module_of(name) for name in texts}
    packages = frozenset(module for module, is_package in about.values() if is_package)
    started = agent_start.modules({about[name][0]: text.decode() for name, text in texts.items()}, packages)
    found: bytecode.Modules = {}
    for name, (module, is_package) in about.items():
        is_compressed = module not in started and name not in _ALONE
        code = zlib.compress(codes[name], 9) if is_compressed else codes[name]
        found[module] = (is_package, is_compressed, code)
    return found


def parts(sources: Sequence[str]) -> dict[str, bytes]:
    """The agent as small as possible, in several files: `agent.pyz`, which is run, and `agent.pyz.1`, ... beside it.

    Comments and docstrings are removed, and line numbers stay. A package is in one part, whole.
    """
    found: list[dict[str, bytes]] = [{}]
    size = 0
    for _, package in groupby(map(Path, sources), lambda source: source.relative_to(_AGENT).parts[0]):
        members = {_name_of(source): without_docstrings(source.read_bytes()) for source in package}
        more = sum(len(zlib.compress(text, 9)) + _ENTRY_BYTES for text in members.values())
        if size and size + more > PART_BYTES:
            found.append({})
            size = 0
        found[-1] |= members
        size += more
    main = _FIND_PARTS % len(found) + _MAIN
    return {
        f"agent.pyz.{number}" if number else "agent.pyz": _archive("" if number else main, members)
        for number, members in enumerate(found)
    }


def _name_of(source: Path) -> str:
    return f"{_PACKAGE}/{source.relative_to(_AGENT)}"


def _archive(main: str, members: Mapping[str, bytes], stored: Mapping[str, bytes] | None = None) -> bytes:
    """`stored`: members that are not compressed, as they are read at each start."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        if main:
            archive.writestr(zipfile.ZipInfo("__main__.py", _EPOCH), main)
        for name, content in members.items():
            # Compression is passed here, as a ZipInfo has its own defaults.
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED, 9)
        for name, content in (stored or {}).items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content)
    return buffer.getvalue()


def _code(source: Path, name: str) -> CodeType:
    """A module's code, from Python's own cache if possible, with this file name."""
    loader = SourceFileLoader(source.stem, str(source))
    code = loader.get_code(source.stem)
    assert code is not None
    return _named(code, name)


def _named(code: CodeType, name: str) -> CodeType:
    """The code and all code within it, with this file name."""
    constants = tuple(_named(item, name) if isinstance(item, CodeType) else item for item in code.co_consts)
    return code.replace(co_filename=name, co_consts=constants)


def without_docstrings(source: bytes) -> bytes:
    """The same program without comments, and with all docstrings emptied, on the same number of lines.

    Ten times as fast as with tokenize and ast, which took half a second of each launch.
    """
    depth = 0

    def shortened(found: re.Match[bytes]) -> bytes:
        nonlocal depth
        depth += bool(found["opens"]) - bool(found["closes"])
        if found["comment"] and found.start():
            return b""
        if found["statement"] and not depth:
            indented = found["statement"].removesuffix(found["text"])
            return indented + b'""' + b"\n" * found["text"].count(b"\n")
        return found[0]

    return _TOKEN.sub(shortened, source)
