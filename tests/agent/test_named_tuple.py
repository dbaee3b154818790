"""Our named tuples behave as `typing.NamedTuple`'s, and to make one compiles nothing."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import typing
from typing import Any

import pytest

from launcher.agent.named_tuple import NamedTuple


def made(name: str, base: Any) -> Any:
    """A class of that name in this module, where pickle finds it."""

    class Point(base):  # type: ignore[misc]
        """A point."""

        x: int
        y: int | None
        name: str = "origin"

        @property
        def far(self) -> bool:
            return bool(self.x > 9)

        def moved(self, by: int) -> Any:
            return self._replace(x=self.x + by)

    Point.__name__ = Point.__qualname__ = name
    return Point


Ours, Theirs = made("Ours", NamedTuple), made("Theirs", typing.NamedTuple)
BOTH = pytest.mark.parametrize("kind", [Ours, Theirs])


@BOTH
def test_values_have_names_defaults_and_the_order_of_a_tuple(kind: Any) -> None:
    point = kind(1, y=None)
    x, y, name = point

    assert (x, y, name) == point == (1, None, "origin") == kind(y=None, x=1, name="origin")
    assert (point.x, point.y, point.name, point[0], len(point)) == (1, None, "origin", 1, 3)
    assert {point: "known"}[1, None, "origin"] == "known"
    assert kind(1, 2) < kind(2, 1)
    assert isinstance(point, tuple)
    assert repr(point) == f"{kind.__name__}(x=1, y=None, name='origin')"
    assert (kind._fields, kind._field_defaults) == (("x", "y", "name"), {"name": "origin"})
    assert kind.__doc__ == "A point."


@BOTH
def test_a_changed_copy_is_of_the_same_class(kind: Any) -> None:
    point = kind(1, 2)

    assert point._asdict() == {"x": 1, "y": 2, "name": "origin"}
    assert type(point.moved(9)) is kind
    assert (point.moved(9), point.moved(9).far, point.far) == ((10, 2, "origin"), True, False)
    for same in (
        pickle.loads(pickle.dumps(point)),
        copy.copy(point),
        copy.deepcopy(point),
        kind._make([1, 2, "origin"]),
    ):
        assert (same, type(same)) == (point, kind)


@BOTH
def test_it_cannot_be_changed_and_has_no_other_names(kind: Any) -> None:
    point = kind(1, 2)

    for name in ("x", "other"):
        with pytest.raises(AttributeError):
            setattr(point, name, 3)
    assert not hasattr(point, "__dict__")


@BOTH
def test_a_missing_or_odd_value_is_refused(kind: Any) -> None:
    for positional, named in (((), {}), ((1,), {}), ((1, 2, "a", 4), {}), ((1, 2), {"z": 3}), ((1, 2), {"x": 3})):
        with pytest.raises(TypeError):
            kind(*positional, **named)
    with pytest.raises((TypeError, ValueError)):
        kind(1, 2)._replace(z=3)


def test_an_error_names_the_class_and_what_is_wrong() -> None:
    for wrong, message in (({}, "Ours lacks x, y"), ({"x": 1, "y": 2, "z": 3}, "Ours has no place for 'z'")):
        with pytest.raises(TypeError, match=message):
            Ours(**wrong)


def test_a_class_without_fields_is_refused() -> None:
    base: Any = NamedTuple
    with pytest.raises(TypeError, match="Empty has no fields"):
        type(base)("Empty", (base,), {})


def test_a_class_below_has_the_same_values() -> None:
    class Below(Ours):  # type: ignore[misc,valid-type]
        __slots__ = ()

        @property
        def far(self) -> bool:
            return True

    assert (Below(1, 2), Below(1, 2).far, Below(x=1, y=2).name) == (Ours(1, 2), True, "origin")


STARTS = ("ssh.run", "ssh.boot", "node.run", "node.agent", "forkserver.server", "group.process", "group.worker_group")
COMPILED = """
import functools, selectors, shutil, sys, {modules}
found = []
sys.addaudithook(lambda event, args: found.append(args[0]) if event == "compile" and args[1] == "<string>" else None)
import {ours}
print(found)
"""


def test_what_starts_a_node_compiles_nothing() -> None:
    """The first text that is compiled costs 2.5 ms, and each annotation that `typing` compiles 0.01 ms."""
    program = COMPILED.format(modules="json, socket", ours=", ".join(f"launcher.agent.{name}" for name in STARTS))

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout == "[]\n"
