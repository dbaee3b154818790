"""The agent as a single file, which is sent to the nodes with each run."""

from __future__ import annotations

import ast
import io
import marshal
import sys
import tokenize
import zipfile
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType

import launcher

_ROOT = Path(launcher.__file__).parent
_PACKAGE = "distlaunch_agent"  # differs from the names of scripts' own modules
_MAIN = f"from {_PACKAGE}.__main__ import main\n\nmain()\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)


@cache
def packed(*, byte_code: bool = True) -> bytes:
    """The agent as a zipapp, with the same bytes for the same sources and Python.

    `byte_code`: include bytecode, which saves nodes with the same Python a third of the agent's start; others use the
    source. Without it the archive is as small as possible: comments and docstrings are removed, and line numbers stay.
    """
    buffer = io.BytesIO()
    # Level 1 for an archive that is made for each run and sent to few hosts.
    with zipfile.ZipFile(buffer, "w", compresslevel=1 if byte_code else 9) as archive:
        # The Python that the bytecode is for: another one may unpack it.
        archive.comment = str(sys.implementation.cache_tag).encode()
        archive.writestr(zipfile.ZipInfo("__main__.py", _EPOCH), _MAIN)
        agent = _ROOT / "agent"
        for source in sorted(agent.rglob("*.py")):
            name = f"{_PACKAGE}/{source.relative_to(agent)}"
            text = source.read_bytes()
            _add(archive, name, text if byte_code else without_docstrings(text))
            if byte_code:
                _add(archive, f"{name}c", _byte_code(source, f"agent.pyz/{name}"))
    return buffer.getvalue()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    # Compression is repeated here, as a ZipInfo has its own defaults.
    archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED, archive.compresslevel)


def _byte_code(source: Path, name: str) -> bytes:
    """A .pyc that is not checked against the source (PEP 552), from Python's own cache if possible.

    Version 2 of marshal has no references, which depend on what else the process has done.
    """
    loader = SourceFileLoader(source.stem, str(source))
    code = loader.get_code(source.stem)
    assert code is not None
    return MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(_named(code, name), 2)


def _named(code: CodeType, name: str) -> CodeType:
    """The code and all code within it, with this file name."""
    constants = tuple(_named(item, name) if isinstance(item, CodeType) else item for item in code.co_consts)
    return code.replace(co_filename=name, co_consts=constants)


def without_docstrings(source: bytes) -> bytes:
    """The same program without comments, and with all docstrings emptied, on the same number of lines."""
    lines = source.splitlines(keepends=True)
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.type == tokenize.COMMENT and token.start[0] > 1:
            row, column = token.start
            before = lines[row - 1].decode()[:column]  # columns count characters
            lines[row - 1] = before.rstrip().encode() + b"\n"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            begin, end = node.lineno - 1, node.end_lineno or node.lineno
            rest = lines[end - 1][node.end_col_offset :]
            lines[begin:end] = [lines[begin][: node.col_offset] + b'""' + rest, *[b"\n"] * (end - begin - 1)]
    return b"".join(lines)
