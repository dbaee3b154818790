"""Hides what the fork server has imported from a worker until the worker imports it, as in a new interpreter.

At that import, torch and the libraries below it read variables, and `sys.path` decides which torch is imported. If the
outcome would differ from the fork server's, the worker starts again in an interpreter of its own, so nothing that the
script has set is silently lost.
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
"""Called with the reasons why the worker must start again; returns if it cannot, after printing them."""


def environment() -> Dict[bytes, bytes]:
    """The environment of the C library, which includes what `os.putenv` or native code has set."""
    found: Dict[bytes, bytes] = {}
    entries = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    place = 0
    while entries and entries[place] is not None:
        name, _, value = entries[place].partition(b"=")
        found.setdefault(name, value)
        place += 1
    return found


def packages(before: Iterable[str]) -> Set[str]:
    """Top-level packages outside the standard library that are new since `before`, earlier names of `sys.modules`."""
    known = {name.partition(".")[0] for name in before}
    new = {name.partition(".")[0] for name in sys.modules} - known
    return {name for name in new if name != "__mp_main__" and not _is_of_python(sys.modules.get(name))}


def _is_of_python(module: Optional[ModuleType]) -> bool:
    """Whether a module is in the standard library, built in, or synthetic."""
    spec = getattr(module, "__spec__", None)
    places = [str(getattr(spec, "origin", None)), *map(str, getattr(spec, "submodule_search_locations", None) or [])]
    stdlib, site = os.path.dirname(os.__file__), ("site-packages", "dist-packages")
    files = [place for place in places if place.startswith("/")]
    return not any(not place.startswith(stdlib) or any(part in place for part in site) for place in files)


class Hidden:
    """A finder that answers the first import of each hidden package with the modules that are already loaded."""

    def __init__(self, imported: Mapping[str, Set[str]], before: traces.Before, again: Again) -> None:
        """`imported`: the packages that the server was asked to import, each with all that its import has loaded.

        `before`: the interpreter's state before these imports.
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
            sys.meta_path.insert(0, self)  # import needs only `find_spec` of a finder
            self._ways = self._ways_of_import()
            atexit.register(self.reveal_all)  # runs after the script's hooks, and before those of libraries

    @staticmethod
    def _ways_of_import() -> List[Any]:
        return [list(sys.path), list(sys.meta_path), list(sys.path_hooks)]

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None) -> Any:
        """A spec with which import returns the loaded module; None for what is not hidden."""
        top = name.partition(".")[0]
        if top not in self._tops or target is not None:
            return None
        module = self._modules.get(name, {}).get(name)
        if path is not None:
            if top in self._modules:
                self._again([f"{top} is not imported in the usual way"])
            return None
        if module is None:  # another thread has revealed it in the meantime
            seen = sys.modules.get(name)
            return seen and _spec(seen, self)
        reasons = self._changes(name, module)
        if reasons:
            self._again(reasons)
        return _spec(module, self)

    def _changes(self, name: str, module: ModuleType) -> List[str]:
        """Descriptions of what would be different in a new interpreter."""
        here = environment()
        changed = sorted(key for key in {*here, *self._env} if here.get(key) != self._env.get(key))
        names = [key for key in map(os.fsdecode, changed) if is_read_at_import(name, key)]
        reasons = (
            [f"{', '.join(names)} {'was' if len(names) == 1 else 'were'} set before {name} was imported"]
            if names
            else []
        )
        reasons += [f"{what} was called before {name} was imported" for what in self._traces.changes()]
        for top in [name, *sorted(self._brought.get(name, ()))] if self._ways != self._ways_of_import() else [name]:
            there = getattr(self._modules.get(top, {}).get(top, module).__spec__, "origin", None)
            found = self._find(top)
            if found != there and (top == name or (found and there)):
                reasons.append(f"{top} was to be imported from {found or 'nowhere'}, not {there}")
        for top in {*self._brought, *self._brought.get(name, ())}:
            put = traces.taken(self._modules.get(top, {}))
            reasons += (
                [f"{put[0]} came into sys.modules in another way than by import, before {name} did"] if put else []
            )
        return reasons

    def _find(self, name: str) -> Optional[str]:
        """Where an import would find the module now."""
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):  # some of old libraries have only find_module
                continue
            spec = finder.find_spec(name, None)
            if spec is not None:
                return spec.origin
        return None

    def reveal(self, name: str) -> None:
        """Make the package visible, with all that its import has loaded."""
        for top in {name, *self._brought.get(name, ())}:
            sys.modules.update(self._modules.get(top, {}))
            self._modules.pop(top, None)
        if name in self._brought or name == "numpy":
            self._traces.put_back()
        if not self._modules:
            self.remove()

    def reveal_all(self) -> None:
        """Make all packages visible once the script has ended, as exit hooks of libraries may need them."""
        for modules in self._modules.values():
            sys.modules.update(modules)
        self._modules.clear()
        self.remove()

    def remove(self) -> None:
        """Remove the finder, which has nothing left to find, unless another thread may be iterating over the list."""
        if self in sys.meta_path and cpython.python_threads() == 1:
            sys.meta_path.remove(self)
        atexit.unregister(self.reveal_all)


def _spec(module: ModuleType, hidden: Hidden) -> ModuleSpec:
    """A spec like the module's own, whose loader returns the loaded module."""
    own: Any = module.__spec__
    spec = ModuleSpec(own.name, _loader(module, hidden), origin=own.origin, loader_state=own.loader_state)
    spec.submodule_search_locations = own.submodule_search_locations
    spec.has_location, spec.cached = own.has_location, own.cached
    return spec


def _loader(module: ModuleType, hidden: Hidden) -> Any:
    """A copy of the module's own loader, with which loading only makes the module visible."""
    own: Any = getattr(module.__spec__, "loader", None)
    kind = type(own)
    if kind not in _kinds:
        _kinds[kind] = type(kind.__name__, (_Loaded, kind), {"__module__": kind.__module__})
    loader: Any = object.__new__(_kinds[kind])
    vars(loader).update(vars(own), distlaunch=(module, module.__spec__, hidden))
    return loader


_kinds: Dict[type, type] = {}


class _Loaded:
    """Makes a loader return the module that is already loaded."""

    def create_module(self, _spec: ModuleSpec) -> ModuleType:
        """Return the loaded module."""
        module: ModuleType = vars(self)["distlaunch"][0]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the spec, which import has replaced; the module was executed in the fork server."""
        _, own, hidden = vars(self)["distlaunch"]
        module.__spec__ = own
        if isinstance(module.__loader__, _Loaded):
            module.__loader__ = own.loader
        hidden.reveal(module.__name__)
