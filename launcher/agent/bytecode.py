"""The agent's modules from one piece of bytecode: a search in the archive for each takes half of the time of an import.

The archive has the bytecode of the launcher's Python, in which that of seldom modules is compressed. Another Python
compiles the sources each time, or, if `compiled` was called, has its own bytecode in a file beside the archive.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import stat
import sys
from importlib.util import MAGIC_NUMBER
from types import CodeType, ModuleType
from typing import Any, Dict, Iterator, Optional, Sequence, Tuple, Union

Modules = Dict[str, Tuple[bool, bool, Union[bytes, memoryview]]]
"""By full name: whether it is a package, whether its code is compressed, and the code by `marshal`."""

_SIZE_BYTES = 8

SUFFIX = ".bytecode"
_PACKAGE = __name__.rpartition(".")[0]  # Python 3.9 sets __package__ later


class Finder:
    """Finds and loads the modules of one package in the archive, in place of zipimport."""

    def __init__(self, modules: Modules, archive: Any, directory: str) -> None:
        """`archive`: its `zipimport.zipimporter`. `directory`: the package's, in the archive."""
        self._modules, self._archive, self._directory = modules, archive, directory

    def find_spec(self, name: str, target: Optional[ModuleType] = None) -> Any:  # noqa: ARG002 - import's protocol
        """The module's spec; None if there is none of that name."""
        if name not in self._modules:
            return None
        is_package, path = self._modules[name][0], self._path(name)
        loader: Any = self
        spec: Any = type(os.__spec__)(name, loader, origin=path, is_package=is_package)
        spec.has_location = True
        if is_package:
            directory = os.path.dirname(path)
            spec.submodule_search_locations.append(directory)
            sys.path_importer_cache[directory] = Finder(self._modules, self._archive, directory)
        return spec

    def create_module(self, _spec: Any) -> None:
        """Have import make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Execute it."""
        _, is_compressed, code = self._modules[module.__name__]
        exec(marshal.loads(_decompressed(code) if is_compressed else code), module.__dict__)  # noqa: S302,S102 - ours

    def get_source(self, name: str) -> str:
        """Its text, which tracebacks show."""
        return self.get_data(self._path(name)).decode()  # also once the worker has forgotten the module

    def _path(self, name: str) -> str:
        inside = f"{os.sep}__init__" if self._modules[name][0] else ""
        return f"{self._directory}{os.sep}{name.rpartition('.')[2]}{inside}.py"

    def get_data(self, path: str) -> bytes:
        """The content of a file in the archive."""
        if isinstance(self._archive, str):
            import zipimport  # only for a traceback

            self._archive = zipimport.zipimporter(self._archive)
        data: bytes = self._archive.get_data(path)
        return data

    def moved(self, archive: str) -> Finder:
        """The same for another archive with the same content."""
        before = self._archive if isinstance(self._archive, str) else self._archive.archive
        return Finder(self._modules, archive, archive + self._directory[len(before) :])


def use() -> bool:
    """Import all other modules of the agent from its bytecode; False if it has none for this Python."""
    package = sys.modules[_PACKAGE]
    loader: Any = package.__loader__
    modules = _read(loader)
    if modules is None:
        return False
    for directory in package.__path__:
        sys.path_importer_cache[directory] = Finder(modules, loader, directory)
    return True


def serve(packed: bytes, archive: str) -> None:
    """Import all modules of the agent in that archive from this bytecode of it, without a look into the archive."""
    sys.path_importer_cache[archive] = Finder(_unpack(packed), archive, archive)


def compiled() -> bool:
    """`use`, for which the sources are compiled once for this Python, into a file beside the archive."""
    if use():
        return True
    loader: Any = sys.modules[_PACKAGE].__loader__
    modules: Modules = {}
    for name, is_package, path in _sources(loader):
        modules[name] = (is_package, False, dump(compile(loader.get_data(path), path, "exec", dont_inherit=True)))
    from .system import files  # by zipimport, as there is no bytecode yet

    with contextlib.suppress(OSError):  # a full disk: it is compiled again each time
        files.write_whole(_beside(loader), pack(modules), 0o600, sync=False)
    return use()


def module_of(name: str) -> Tuple[str, bool]:
    """The full name of the module in that file of the archive, and whether it is a package."""
    is_package = name.endswith("/__init__.py")
    return name[: -len("/__init__.py" if is_package else ".py")].replace("/", "."), is_package


def member(magic: bytes) -> str:
    """The name in the archive of the bytecode that is for Pythons with this magic number."""
    return f"{magic.hex()}{SUFFIX}"


def pack(modules: Modules) -> bytes:
    """The bytecode as `use` reads it: the size of a list, the list of modules with sizes, and their code."""
    listed = marshal.dumps([(name, *about, len(code)) for name, (*about, code) in modules.items()], 2)
    return b"".join([len(listed).to_bytes(_SIZE_BYTES, "little"), listed, *(code for *_, code in modules.values())])


def _decompressed(code: Union[bytes, memoryview]) -> bytes:
    import zlib

    return zlib.decompress(code)


def _unpack(packed: bytes) -> Modules:
    """The modules, whose code is not copied; raises `ValueError` if some of it is missing."""
    data = memoryview(packed)
    start = _SIZE_BYTES + int.from_bytes(data[:_SIZE_BYTES], "little")
    found: Modules = {}
    for name, is_package, is_compressed, size in marshal.loads(data[_SIZE_BYTES:start]):  # noqa: S302 - our own
        found[name] = (is_package, is_compressed, data[start : start + size])
        start += size
    if start != len(data):
        raise ValueError("cut off")
    return found


def dump(code: CodeType) -> bytes:
    """A module's code, in the same bytes whatever else the process has done.

    To load what was written with references takes three quarters of the time. `marshal` leaves those out for which
    nothing else holds the object, so all texts are held here. It also tells whether a text is interned, as those of one
    character, which are shared, may be or not.
    """
    try:
        fresh = marshal.loads(marshal.dumps(code, 2))  # noqa: S302 - our own
    except ValueError:  # from Python 3.14 on, a constant may be a slice
        return marshal.dumps(code)
    held = [sys.intern(text) if text < "\u0100" and len(text) < 2 else text for text in _texts(fresh)]
    written = marshal.dumps(fresh, 4)
    del held
    return written


def _texts(value: Any) -> Iterator[str]:
    """All texts in a constant."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (tuple, frozenset)):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, CodeType):
        names = (value.co_name, value.co_filename, getattr(value, "co_qualname", ""))
        for part in (value.co_consts, value.co_names, value.co_varnames, value.co_cellvars, value.co_freevars, names):
            yield from _texts(part)


def _read(loader: Any) -> Optional[Modules]:
    try:
        data = loader.get_data(os.path.join(loader.archive, member(MAGIC_NUMBER)))
    except OSError:
        data = _own_file(_beside(loader))
    except AttributeError:  # not an archive
        return None
    try:
        return _unpack(data)
    except (EOFError, ValueError, TypeError):  # cut off by a full disk
        return None


def _beside(loader: Any) -> str:
    return f"{loader.archive}.{member(MAGIC_NUMBER)}"


def _own_file(path: str) -> bytes:
    """The content of a file that no other user can change; nothing if it is not of that kind."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            about = os.fstat(file.fileno())
            ours = stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o022
            return file.read() if ours else b""
    except OSError:
        return b""


def _sources(loader: Any) -> Sequence[Tuple[str, bool, str]]:
    """Of each module: its full name, whether it is a package, and its path in the archive."""
    import zipfile

    with zipfile.ZipFile(loader.archive) as archive:
        names = [name for name in archive.namelist() if name.startswith(f"{_PACKAGE}/") and name.endswith(".py")]
    return [(*module_of(name), os.path.join(loader.archive, name)) for name in names]
