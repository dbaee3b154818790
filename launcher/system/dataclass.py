"""`dataclasses`, whose classes are made in a tenth of the time: it imports `inspect`, and compiles six functions each.

A launch makes 40 of them. Here only the constructor is compiled, and not before the first instance is made. The
functions of `dataclasses` take these classes, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import MISSING as MISSING  # noqa: PLC0414 - exported
    from dataclasses import Field as Field  # noqa: PLC0414
    from dataclasses import asdict as asdict  # noqa: PLC0414
    from dataclasses import dataclass as dataclass  # noqa: PLC0414
    from dataclasses import field as field  # noqa: PLC0414
    from dataclasses import fields as fields  # noqa: PLC0414
    from dataclasses import replace as replace  # noqa: PLC0414
else:
    MISSING: Any = type("MISSING", (), {})()
    _FIELDS = "__distlaunch_fields__"

    class Field:
        """One field of a class."""

        __slots__ = ("compare", "default", "default_factory", "kw_only", "metadata", "name", "repr", "type")

        def __init__(self, **given: Any) -> None:
            self.default = self.default_factory = MISSING
            self.repr = self.compare = True
            self.kw_only, self.name, self.type, self.metadata = False, "", "", {}
            for name, value in given.items():
                setattr(self, name, value)

    def field(**given: Any) -> Any:
        """A field with more than a default."""
        return Field(**given)

    def fields(made: Any) -> tuple[Field, ...]:
        """The fields of a class or an instance, in order."""
        return tuple(getattr(made, _FIELDS).values())

    def replace(instance: Any, /, **changes: Any) -> Any:
        """A copy with other values."""
        return type(instance)(**{**_values(instance), **changes})

    def asdict(instance: Any) -> dict[str, Any]:
        """The values by name, in which instances of such classes are replaced in the same way."""
        return {name: _plain(value) for name, value in _values(instance).items()}

    def dataclass(made: Any = None, /, **options: bool) -> Any:
        """Make a class a dataclass; `frozen`, `slots` and `kw_only` are known."""
        if made is None:
            return lambda made: _make(made, **options)
        return _make(made, **options)

    def _make(made: Any, *, frozen: bool = False, slots: bool = False, kw_only: bool = False) -> Any:
        space = dict(made.__dict__)
        own = _own_fields(space, kw_only)
        every = {name: each for base in reversed(made.__mro__) for name, each in base.__dict__.get(_FIELDS, {}).items()}
        every |= own
        added = {_FIELDS: every, "__dataclass_fields__": _Standard(), **(_FROZEN if frozen else _OPEN)}
        added["__match_args__"] = tuple(name for name, each in every.items() if not each.kw_only)
        space = {name: value for name, value in space.items() if name not in own} | {
            name: each.default for name, each in own.items() if each.default is not MISSING and not slots
        }
        explicit = {name for name, value in space.items() if (name, value) != ("__hash__", None)}
        space |= {name: value for name, value in added.items() if name not in explicit}
        if slots:
            space["__slots__"] = tuple(name for name in own if not hasattr(made.__base__, name))
        for name in ("__dict__", "__weakref__"):
            space.pop(name, None)
        if "__init__" not in explicit:
            space["__init__"] = lambda self, *args, **named: _first(new, self, *args, **named)
        new = type(made)(made.__name__, made.__bases__, space)
        return new

    def _own_fields(space: dict[str, Any], kw_only: bool) -> dict[str, Field]:
        own = {}
        for name, annotation in space.get("__annotations__", {}).items():
            if not annotation.startswith("ClassVar"):
                given = space.get(name, MISSING)
                each = own[name] = given if isinstance(given, Field) else Field(default=given)
                each.name, each.type, each.kw_only = name, annotation, kw_only
        return own

    def _values(instance: Any) -> dict[str, Any]:
        return {name: getattr(instance, name) for name in getattr(instance, _FIELDS)}

    def _compared(instance: Any) -> tuple[Any, ...]:
        return tuple(getattr(instance, each.name) for each in fields(instance) if each.compare)

    def _plain(value: Any) -> Any:
        if hasattr(type(value), _FIELDS):
            return asdict(value)
        if isinstance(value, dict):
            return type(value)((_plain(key), _plain(item)) for key, item in value.items())
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(_plain, value))
        return type(value)(map(_plain, value)) if isinstance(value, (list, tuple)) else value

    class _Standard:
        """The fields as `dataclasses` has them, made when it asks for them."""

        def __get__(self, instance: Any, owner: Any) -> dict[str, Any]:
            import dataclasses

            given = []
            for each in fields(owner):
                names = ("default", "default_factory", "repr", "compare", "metadata", "kw_only")
                words = {name: value for name in names if (value := getattr(each, name)) is not MISSING}
                given.append((each.name, each.type, dataclasses.field(**words)))
            made = dataclasses.make_dataclass(owner.__name__, given)
            return made.__dataclass_fields__

    def _first(owner: Any, /, *args: Any, **named: Any) -> None:
        """The constructor until it was called; two threads may both compile it."""
        owner.__init__ = compiled = _constructor(owner)
        compiled(*args, **named)

    def _constructor(owner: Any) -> Callable[..., None]:
        words, lines, known = [], [], {"_missing": MISSING, "_set": object.__setattr__}
        for each in sorted(fields(owner), key=lambda each: each.kw_only):
            if each.kw_only and "*" not in words:
                words.append("*")
            value = word = each.name
            if each.default_factory is not MISSING:
                word, known[f"_make_{value}"] = f"{value}=_missing", each.default_factory
                value = f"_make_{value}() if {value} is _missing else {value}"
            elif each.default is not MISSING:
                word, known[f"_default_{value}"] = f"{value}=_default_{value}", each.default
            words.append(word)
            lines.append(f"    _set(self, {each.name!r}, {value})\n")
        if hasattr(owner, "__post_init__"):
            lines.append("    self.__post_init__()\n")
        exec(f"def __init__(self, {', '.join(words)}):\n{''.join(lines) or '    pass'}", known)  # noqa: S102 - made here
        return known["__init__"]

    def _equal(self: Any, other: object) -> bool:
        return _compared(self) == _compared(other) if type(other) is type(self) else NotImplemented

    def _shown(self: Any) -> str:
        shown = [f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr]
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def _refuse(self: Any, name: str, *_value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be changed")

    def _set_state(self: Any, state: list[Any]) -> None:
        for each, value in zip(fields(self), state, strict=True):
            object.__setattr__(self, each.name, value)

    _OPEN = {"__eq__": _equal, "__repr__": _shown, "__hash__": None}
    _FROZEN = {
        **_OPEN,
        "__hash__": lambda self: hash(_compared(self)),
        "__setattr__": _refuse,
        "__delattr__": _refuse,
        "__getstate__": lambda self: [*_values(self).values()],
        "__setstate__": _set_state,
    }
