"""`typing.NamedTuple`, whose classes are made in a tenth of the time: it compiles each annotation and each constructor.

An agent makes dozens of them while it starts: 0.3 ms each, and 2.5 ms for the first, in which Python makes the classes
of syntax trees.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Tuple

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple  # noqa: PLC0414 - exported
else:

    class _Meta(type):
        """Makes the annotated names of a class the names of its items."""

        def __new__(mcs, name: str, bases: Tuple[type, ...], space: Dict[str, Any]) -> Any:
            if bases == (tuple,) or hasattr(bases[0], "_fields"):
                return super().__new__(mcs, name, bases, {"__slots__": (), **space})
            if "__annotations__" not in space:
                raise TypeError(f"{name} has no fields, or its module lacks `from __future__ import annotations`")
            fields = tuple(space["__annotations__"])
            space["_field_defaults"] = {field: space[field] for field in fields if field in space}
            space.update({field: property(itemgetter(index)) for index, field in enumerate(fields)})
            space.update(__slots__=(), _fields=fields, __match_args__=fields)
            return super().__new__(mcs, name, bases, space)

    class NamedTuple(tuple, metaclass=_Meta):
        """A tuple with names for its items, which the annotations of its class are, and defaults."""

        __slots__ = ()

        def __new__(cls, *values: Any, **named: Any) -> Any:
            """By position or by name."""
            if named or len(values) != len(cls._fields):
                values = cls._all(values, named)
            return tuple.__new__(cls, values)

        @classmethod
        def _all(cls, values: Tuple[Any, ...], named: Dict[str, Any]) -> Tuple[Any, ...]:
            rest = cls._fields[len(values) :]
            odd = [name for name in named if name not in rest]
            if odd or len(values) > len(cls._fields):
                raise TypeError(f"{cls.__name__} has no place for {odd[0] if odd else values[-1]!r}")
            known = {**cls._field_defaults, **named}
            absent = [name for name in rest if name not in known]
            if absent:
                raise TypeError(f"{cls.__name__} lacks {', '.join(absent)}")
            return (*values, *[known[name] for name in rest])

        @classmethod
        def _make(cls, values: Iterable[Any]) -> Any:
            return cls(*values)

        def _asdict(self) -> Dict[str, Any]:
            return dict(zip(self._fields, self))

        def _replace(self, **new: Any) -> Any:
            return type(self)(**{**self._asdict(), **new})

        def __repr__(self) -> str:
            items: List[str] = [f"{name}={value!r}" for name, value in self._asdict().items()]
            return f"{type(self).__name__}({', '.join(items)})"

        def __getnewargs__(self) -> Tuple[Any, ...]:
            return tuple(self)
