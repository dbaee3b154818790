"""What the fork server has imported stays out of a worker's sight until the worker imports it, as in a new interpreter.

That import is the moment at which torch and the libraries below it read variables, and at which `sys.path` says which torch it
is. Where that has come out otherwise than in the fork server, the worker starts again, in an interpreter of its own: nothing
that the script has set is silently lost.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Set

from . import cpython, traces
from .early import is_read_at_import

Again = Callable[[List[str]], None]
"""Called with the reasons for which the worker has to start again; returns where it cannot, which was said then."""


def environment() -> Dict[bytes, bytes]:
    """The C library's, which also knows what was set by `os.putenv` or by native code."""
    found: Dict[bytes, bytes] = {}
    entries = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    place = 0
    while entries and entries[place] is not None:
        name, _, value = entries[place].partition(b"=")
        found.setdefault(name, value)
        place += 1
    return found


def packages(before: Iterable[str]) -> Set[str]:
    """Top-level packages outside the standard library, imported since `before`, the names in `sys.modules`, was taken."""
    known = {name.partition(".")[0] for name in before}
    new = {name.partition(".")[0] for name in sys.modules} - known
    return {name for name in new if name != "__mp_main__" and not _is_of_python(sys.modules.get(name))}


def _is_of_python(module: Optional[ModuleType]) -> bool:
    """Of the standard library, built in, or made up by somebody."""
    spec = getattr(module, "__spec__", None)
    places = [str(getattr(spec, "origin", None)), *map(str, getattr(spec, "submodule_search_locations", None) or [])]
    stdlib, site = os.path.dirname(os.__file__), ("site-packages", "dist-packages")
    files = [place for place in places if place.startswith("/")]
    return not any(not place.startswith(stdlib) or any(part in place for part in site) for place in files)


class Hidden:
    """A finder that answers the first import of each hidden package with the modules that are there already."""

    def __init__(self, imported: Mapping[str, Set[str]], before: traces.Before, again: Again) -> None:
        """`imported`: the packages that the server was asked to import, each with all that this brought along.

        `before`: how the interpreter was before these imports.
        """
        self._modules: Dict[str, Dict[str, ModuleType]] = {}
        self._brought = imported
        self._again = again
        self._env = environment()
        everything: Set[str] = set().union(*imported.values())
        for name, module in list(sys.modules.items()):
            top = name.partition(".")[0]
            if top in everything:
                self._modules.setdefault(top, {})[name] = module
                del sys.modules[name]
        self._tops = frozenset(self._modules)
        if self._modules:
            self._traces = traces.Traces(before)
            sys.meta_path.insert(0, self)  # what import wants of a finder is `find_spec` alone
            self._ways = self._ways_of_import()
            atexit.register(self.reveal_all)  # later than hooks of the script's, earlier than those of libraries

    @staticmethod
    def _ways_of_import() -> List[Any]:
        return [list(sys.path), list(sys.meta_path), list(sys.path_hooks)]

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None) -> Any:
        """The real module's spec, by which it comes back instead of being loaded; None for what is not hidden."""
        top = name.partition(".")[0]
        if top not in self._tops or target is not None:
            return None
        module = self._modules.get(name, {}).get(name)
        if path is not None:
            if top in self._modules:
                self._again([f"{top} is not imported in the usual way"])
            return None
        if module is None:  # another thread has let it be seen since this one looked
            seen = sys.modules.get(name)
            return seen and _spec(seen, self)
        reasons = self._changes(name, module)
        if reasons:
            self._again(reasons)
        return _spec(module, self)

    def _changes(self, name: str, module: ModuleType) -> List[str]:
        """What a new interpreter would find otherwise, in words."""
        here = environment()
        changed = sorted(key for key in {*here, *self._env} if here.get(key) != self._env.get(key))
        names = [key for key in map(os.fsdecode, changed) if is_read_at_import(name, key)]
        reasons = [f"{', '.join(names)} {'was' if len(names) == 1 else 'were'} set before {name} was imported"] if names else []
        reasons += [f"{what} was called before {name} was imported" for what in self._traces.changes()]
        for top in [name, *sorted(self._brought.get(name, ()))] if self._ways != self._ways_of_import() else [name]:
            there = getattr(self._modules.get(top, {}).get(top, module).__spec__, "origin", None)
            found = self._find(top)
            if found != there and (top == name or (found and there)):
                reasons.append(f"{top} was to be imported from {found or 'nowhere'}, not {there}")
        for top in {*self._brought, *self._brought.get(name, ())}:
            put = traces.taken(self._modules.get(top, {}))
            reasons += [f"{put[0]} came into sys.modules in another way than by import, before {name} did"] if put else []
        return reasons

    def _find(self, name: str) -> Optional[str]:
        """Where an import would find it now."""
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, None)
            if spec is not None:
                return spec.origin
        return None

    def reveal(self, name: str) -> None:
        """Let that package be seen, with all that its import has brought along."""
        for top in {name, *self._brought.get(name, ())}:
            sys.modules.update(self._modules.get(top, {}))
            self._modules.pop(top, None)
        if name in self._brought or name == "numpy":
            self._traces.put_back()
        if not self._modules:
            self.remove()

    def reveal_all(self) -> None:
        """The script has ended, and exit hooks of libraries may want to find them."""
        for modules in self._modules.values():
            sys.modules.update(modules)
        self._modules.clear()
        self.remove()

    def remove(self) -> None:
        """There is nothing to find any more. Another thread may be going through this list."""
        if self in sys.meta_path and cpython.python_threads() == 1:
            sys.meta_path.remove(self)
        atexit.unregister(self.reveal_all)


def _spec(module: ModuleType, hidden: Hidden) -> ModuleSpec:
    """A spec like the module's own, whose loader finds it loaded."""
    own: Any = module.__spec__
    spec = ModuleSpec(own.name, _loader(module, hidden), origin=own.origin, loader_state=own.loader_state)
    spec.submodule_search_locations = own.submodule_search_locations
    spec.has_location, spec.cached = own.has_location, own.cached
    return spec


def _loader(module: ModuleType, hidden: Hidden) -> Any:
    """The module's own loader, but that loading it is nothing more than to let it be seen."""
    own: Any = getattr(module.__spec__, "loader", None)
    kind = type(own)
    if kind not in _kinds:
        _kinds[kind] = type(kind.__name__, (_Loaded, kind), {"__module__": kind.__module__})
    loader: Any = object.__new__(_kinds[kind])
    vars(loader).update(vars(own), distlaunch=(module, module.__spec__, hidden))
    return loader


_kinds: Dict[type, type] = {}


class _Loaded:
    """What makes a loader give what is loaded already."""

    def create_module(self, _spec: ModuleSpec) -> ModuleType:
        """The one that is there."""
        module: ModuleType = vars(self)["distlaunch"][0]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It was executed in the fork server; import has given it our spec."""
        _, own, hidden = vars(self)["distlaunch"]
        module.__spec__ = own
        if isinstance(module.__loader__, _Loaded):
            module.__loader__ = own.loader
        hidden.reveal(module.__name__)
